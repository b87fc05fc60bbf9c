"""Graph that is planned for: its structure, and numbers of its features and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.data.distribute import Arrangement, Slices
from spgnn.data.graph import VertexData
from spgnn.data.graph import labelled as has_label
from spgnn.data.normalise import Normalisation, add_self_loops, degree_scales
from spgnn.data.source import GraphSource
from spgnn.data.splits import seeded_split
from spgnn.data.structure import slice_rows
from spgnn.errors import InputError
from spgnn.exchange import Algorithm, Layered, Plan, build_all, layered
from spgnn.files import digest
from spgnn.layout import Axes, Int64Array
from spgnn.plan.census import Census, count
from spgnn.plan.counted import Counted
from spgnn.plan.pairs import Linked, LinkTask, PairsCensus
from spgnn.plan.wired import Wired
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
    labelled : Tensor bool [n]
        Training vertices that have a label.
    word_counts : int64 [n], optional
        Nonzeros of each vertex's features, where those are sparse.
    normalisation : {"sym", "row", "none"}
    loops : bool
        Whether the model adds self-loops.
    links : LinkTask, optional
        Where these are learnt, and not what labels say.
    directed : bool
    vertex_ids : Tensor int64 [n], optional
        Original ids, where they are not the numbers of rows.
    seed : int
    """

    name: str
    structure: CSR
    features: int
    classes: int
    labelled: Tensor
    word_counts: Int64Array | None = None
    normalisation: Normalisation = "sym"
    loops: bool = True
    links: LinkTask | None = None
    directed: bool = False
    vertex_ids: Tensor | None = None
    seed: int = 0

    @classmethod
    def of(
        cls,
        source: GraphSource,
        *,
        split: int = 0,
        seed: int = 0,
        random_features: int = 0,
        random_classes: int = 0,
        normalisation: Normalisation = "sym",
        loops: bool = True,
        links: LinkTask | None = None,
    ) -> Subject:
        """Read what planning needs of a graph; one without features may get random ones of width F.

        Where links are learnt, there need not be labels.

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
        if not classes and links is None:
            raise InputError(f"{meta.name} has no labels; --random-classes C makes some up")
        words, labelled = [], []
        for first, piece in source.pieces():
            rows = piece.select_split(split)
            if isinstance(rows.x, CSR):
                words.append(rows.x.row_lengths)
            last = min(first + source.piece_rows, meta.vertices)
            # Any vertex may be an end of a pair.
            all_count = links is not None
            labelled.append(
                torch.ones(last - first, dtype=torch.bool)
                if all_count
                else _trained(rows, first, last, source, seed)
            )
        counts = torch.cat(words).numpy() if words else None
        return cls(
            meta.name,
            source.structure(),
            features,
            classes,
            torch.cat(labelled),
            counts,
            normalisation,
            loops,
            links,
            meta.directed,
            source.vertex_ids,
            seed,
        )

    @property
    def vertices(self) -> int:
        """Rows."""
        return self.structure.shape[0]

    @cached_property
    def looped(self) -> CSR:
        """With self-loops, as it is partitioned."""
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


def _trained(rows: VertexData, first: int, last: int, source: GraphSource, seed: int) -> Tensor:
    """Mask of the vertices in the loss; a graph without a split gets a seeded one."""
    ids = torch.arange(first, last) if source.vertex_ids is None else source.vertex_ids[first:last]
    known = torch.ones(last - first, dtype=torch.bool) if rows.y is None else has_label(rows.y)
    mask = rows.train_mask
    if mask is None:
        mask, _, _ = seeded_split(ids, rows.y, seed)
    return mask & known


@dataclass(frozen=True, eq=False)
class Setting:
    """A graph arranged for an algorithm: from here plans of all ranks are made.

    Attributes
    ----------
    subject : Subject
    arranged : Arrangement
    algorithm : Algorithm
    ranks_a_node : int
    wired : Wired, optional
        Codecs of the messages in training, if any compresses or delays them.
    weighs : bool
        Whether layers weigh the nonzeros, and do not multiply.
    """

    subject: Subject
    arranged: Arrangement
    algorithm: Algorithm
    ranks_a_node: int
    wired: Wired | None = None
    weighs: bool = False

    def under(self, algorithm: Algorithm) -> Setting:
        """The same rows under another algorithm, which has as many parts."""
        other = replace(self, algorithm=algorithm)
        other.__dict__["_blocks"], other.__dict__["_known"] = self._blocks, self._known
        other.__dict__["_graph"] = self._graph
        return other

    @property
    def _ids(self) -> Tensor:
        """Original ids, in the order of ranks."""
        order, ids = self.arranged.order, self.subject.vertex_ids
        return order if ids is None else ids[order]

    @cached_property
    def _graph(self) -> tuple[CSR, PairsCensus | None]:
        """Graph of training, in the order of ranks; and the pairs, for link prediction."""
        subject, arranged = self.subject, self.arranged
        A = arranged.rows(subject.structure, 0, subject.vertices)
        if subject.links is None:
            return A, None
        linked = Linked(
            A,
            self._ids,
            arranged.ranks,
            subject.links,
            subject.seed,
            subject.directed,
            self.ranks_a_node,
        )
        return linked.counted()

    @cached_property
    def _blocks(self) -> tuple[list[CSR], Tensor | None]:
        """Every rank's rows with their scales, and those of all columns."""
        subject, layout = self.subject, self.arranged.ranks
        A, _ = self._graph
        if subject.loops:
            A = add_self_loops(A)
        row_scale, own_scale = degree_scales(A, subject.normalisation, self._ids)
        found = []
        for rank in range(layout.parts):
            own = slice(*layout.range(rank))
            scale = None if row_scale is None else row_scale[own].clone()
            found.append(slice_rows(A, own).with_scales(scale, None))
        return found, own_scale

    @property
    def words(self) -> Int64Array | None:
        """Nonzeros of each rank's features, int64 [P], if those are sparse."""
        return self.subject.words_of(self.arranged)

    @property
    def together(self) -> bool:
        """True if all ranks are on one node."""
        return self.arranged.ranks.parts <= self.ranks_a_node

    @cached_property
    def _known(self) -> dict[Algorithm, Census]:
        """Of the whole matrix on these rows, under whatever it has been counted."""
        return {}

    @cached_property
    def whole(self) -> Census:
        """Of the plans of the whole matrix."""
        algorithm, layout = self.algorithm, self.arranged.ranks
        if algorithm not in self._known:
            plans = algorithm.plans(self._blocks[0], layout, self._blocks[1])
            self._known[algorithm] = self._count(plans, algorithm.axes(layout.parts))
        return self._known[algorithm]

    def _count(self, plans: Sequence[Plan], axes: Axes) -> Census:
        return count(plans, axes, self.ranks_a_node, self.wired, weighs=self.weighs)

    def counted(self, layers: int, *, reach: bool, ghosts: bool, propagated: bool) -> Counted:
        """The plans of all layers, as the training command makes them; arguments as `layered`'s."""
        layout, axes = self.arranged.ranks, self.algorithm.axes(self.arranged.ranks.parts)
        own = layout.sizes
        if not reach and not ghosts:
            nobody = np.zeros_like(own)
            rows = np.stack([own] * (layers + 1))
            nothing = (None,) * layers
            whole, pairs = self.whole, self._graph[1]
            return Counted(whole, nothing, rows, nobody, self.together, pairs)
        labelled = self.subject.labelled[self.arranged.order]
        blocks, column_scale = self._blocks
        owned = [slice(*layout.range(rank)) for rank in range(layout.parts)]
        schemes = [
            layered(
                self.algorithm,
                block,
                layout,
                rank,
                layers=layers,
                wanted=labelled[owned[rank]].nonzero()[:, 0] if reach else None,
                ghosts=ghosts,
                propagated=propagated,
                column_scale=None if column_scale is None else column_scale[owned[rank]],
            )
            for rank, block in enumerate(blocks)
        ]
        return self._counted(build_all(schemes, axes), layers, propagated, axes)

    def _counted(
        self, made: Sequence[Layered], layers: int, propagated: bool, axes: Axes
    ) -> Counted:
        own = self.arranged.ranks.sizes
        found: list[Census | None] = []
        rows = np.stack([own] * (layers + 1))
        for layer in range(layers):
            plans = [plan.plan for one in made if (plan := one.layers[layer]) is not None]
            found.append(self._count(plans, axes) if plans else None)
            if plans:
                rows[layer] = [plan.shape[1] for plan in plans]
        rows[layers] = [len(one.rows) for one in made]
        rows[propagated] = [len(one.first) for one in made]
        if propagated:
            rows[0] = rows[1]
        fetched = [0 if one.ghosts is None else one.ghosts.volume.receive for one in made]
        ghosts = np.array(fetched)
        whole, pairs = self.whole, self._graph[1]
        return Counted(whole, tuple(found), rows, ghosts, self.together, pairs)


def set_up(
    subject: Subject,
    labels: npt.ArrayLike | None,
    algorithm: Algorithm,
    ranks: int,
    ranks_a_node: int,
) -> Setting:
    """Assign rows to ranks by a partition, as an algorithm does.

    Raises
    ------
    InputError
        If the labels do not fit.
    """
    parts, (_, shares) = algorithm.parts(ranks), algorithm.copies(ranks)
    arranged = Arrangement.of(subject.structure, labels, Slices(parts, ranks // parts, shares))
    return Setting(subject, arranged, algorithm, ranks_a_node)
