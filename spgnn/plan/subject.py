"""What is planned for: a graph's structure, and what is known of its features and classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from spgnn.data.distribute import Arrangement
from spgnn.data.normalise import Normalisation, add_self_loops, degree_scales
from spgnn.data.source import GraphSource
from spgnn.data.structure import slice_rows
from spgnn.errors import InputError
from spgnn.exchange import Algorithm, build_all
from spgnn.files import digest
from spgnn.layout import Int64Array
from spgnn.pattern import Pattern
from spgnn.plan.census import Census, count
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class Subject:
    """A graph to be trained on.

    Attributes
    ----------
    name : str
    structure : CSR [n, n]
        As it is stored, without self-loops.
    features, classes : int
    word_counts : int64 [n], optional
        Nonzeros of each vertex's features, where those are sparse.
    normalisation : {"sym", "row", "none"}
    """

    name: str
    structure: CSR
    features: int
    classes: int
    word_counts: Int64Array | None = None
    normalisation: Normalisation = "sym"

    @classmethod
    def of(
        cls,
        source: GraphSource,
        *,
        random_features: int = 0,
        random_classes: int = 0,
        normalisation: Normalisation = "sym",
    ) -> Subject:
        """What planning has to know of a graph; features of width F are made up if it has none.

        Raises
        ------
        InputError
            If the graph is empty, or has no features or labels and none are to be made up.
        """
        meta = source.meta
        if not meta.vertices:
            raise InputError(f"{meta.name}: a graph without vertices")
        features = meta.features or random_features
        if not features:
            raise InputError(f"{meta.name} has no features; --random-features F makes some up")
        classes = meta.classes if meta.labelled else random_classes
        if not classes:
            raise InputError(f"{meta.name} has no labels; --random-classes C makes some up")
        words = None
        if meta.features and meta.sparse_features:
            lengths = [rows.x.row_lengths for _, rows in source.pieces() if isinstance(rows.x, CSR)]
            words = torch.cat(lengths).numpy()
        return cls(meta.name, source.structure(), features, classes, words, normalisation)

    @property
    def vertices(self) -> int:
        """Rows."""
        return self.structure.shape[0]

    @cached_property
    def looped(self) -> CSR:
        """With self-loops, as it is partitioned and trained on."""
        return add_self_loops(self.structure)

    @cached_property
    def digest(self) -> str:
        """Of the structure's content."""
        indptr, indices = self.structure.indptr.numpy(), self.structure.indices.numpy()
        return digest(indptr.data, np.ascontiguousarray(indices).data)

    def words_of(self, arranged: Arrangement) -> Int64Array | None:
        """Nonzeros of each rank's features, int64 [P]."""
        if self.word_counts is None:
            return None
        sums = np.concatenate(([0], np.cumsum(self.word_counts[arranged.order.numpy()])))
        return np.diff(sums[arranged.ranks.offsets])


def take_census(
    subject: Subject,
    arranged: Arrangement,
    algorithm: Algorithm,
    ranks_a_node: int,
    moved: CSR | None = None,
) -> list[Census]:
    """Make the plans of all ranks, and count them: one census a layer, or one for all layers.

    What the training command does on each rank, on all of them at once and without any.

    Parameters
    ----------
    subject : Subject
    arranged : Arrangement
        Of its vertices, into ``algorithm.parts(P)`` parts with a slice for each of P ranks.
    algorithm : Algorithm
    ranks_a_node : int
    moved : CSR [n, n], optional
        `rearranged`, if it is at hand.
    """
    layout = arranged.ranks
    A = rearranged(subject, arranged) if moved is None else moved
    schemes = []
    for rank in range(layout.parts):
        block = slice_rows(A, slice(*layout.range(rank)))
        row_scale, own_scale = degree_scales(block, subject.normalisation)
        block = block.with_scales(row_scale, None)
        schemes.append(algorithm.scheme(block, layout, rank, own_scale))
    axes = algorithm.axes(layout.parts)
    plans = build_all(schemes, axes)
    # Per-layer plans (reach, ghosts) make a list of plans for each rank: one census for each.
    return [count(plans, axes, ranks_a_node)]


def rearranged(subject: Subject, arranged: Arrangement) -> CSR:
    """All rows with their self-loops, in the order of their ranks."""
    A = arranged.rows(subject.structure, 0, subject.vertices)
    looped = add_self_loops(A)
    return CSR(Pattern.trusted(looped.indptr, looped.indices, looped.shape), looped.values)


def arrange(
    subject: Subject, labels: npt.ArrayLike | None, algorithm: Algorithm, ranks: int
) -> Arrangement:
    """Who owns what when a partition is used by an algorithm.

    Raises
    ------
    InputError
        If the labels do not fit.
    """
    parts = algorithm.parts(ranks)
    return Arrangement.of(subject.structure, labels, parts, ranks // parts)
