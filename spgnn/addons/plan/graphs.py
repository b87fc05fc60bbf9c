"""The graph that is planned for, in its structure and a few numbers, and its partitions."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn.config import TrainConfig
from spgnn.data import GraphSource, MemorySource, add_self_loops, labelled, seeded_split
from spgnn.errors import InputError
from spgnn.files import digest
from spgnn.layout import Int32Array, Int64Array
from spgnn.partition import partition, read_labels, write_labels
from spgnn.progress import Progress
from spgnn.registry import Objective, Preset
from spgnn.sparse import CSR

# Part of every key: labels of a partitioner that has changed are others.
_GENERATION = "3"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A graph that is planned for."""

    name: str
    structure: CSR  # as it is stored, without self-loops
    features: int
    classes: int
    labelled: Tensor  # training vertices that have a label
    scored: Tensor | None = None
    feature_nonzeros: Int64Array | None = None
    directed: bool = False
    weighted: bool = False
    random_features: bool = False  # whether features are made up
    ids: Tensor | None = None  # original ids, where they are not the numbers of rows

    @classmethod
    def of(cls, source: GraphSource, config: TrainConfig | None = None) -> Dataset:
        """Read what planning needs of a graph; features and labels may be random ones."""
        config = TrainConfig() if config is None else config
        if config.data.symmetrise:
            source = MemorySource(source.graph().symmetrised())
        meta, data, links = source.meta, config.data, config.aim.task == "links"
        if not meta.vertices:
            raise InputError(f"{meta.name}: a graph without vertices")
        features = meta.features or data.random_features
        if not features:
            raise InputError(f"{meta.name} has no features; --random-features F makes some up")
        classes = meta.classes if meta.labelled else data.random_classes
        if not classes and not links:
            raise InputError(f"{meta.name} has no labels; --random-classes C makes some up")
        nonzeros, trained, scored = list[Tensor](), list[Tensor](), list[Tensor]()
        for first, piece in source.pieces():
            rows = piece.select_split(data.split)
            last = min(first + source.piece_rows, meta.vertices)
            if isinstance(rows.x, CSR):
                nonzeros.append(rows.x.row_lengths)
            usable = torch.ones(last - first, dtype=torch.bool)
            if links:  # any vertex may be an end of a pair
                trained.append(usable)
                continue
            if rows.y is not None:
                usable = labelled(rows.y)
            ids = source.vertex_ids
            ids = torch.arange(first, last) if ids is None else ids[first:last]
            masks = [rows.train_mask, rows.val_mask, rows.test_mask]
            if masks[0] is None:  # as training splits it
                masks = list(seeded_split(ids, rows.y, config.training.seed))
            scored.append(usable & torch.stack([m for m in masks if m is not None]).any(dim=0))
            assert masks[0] is not None
            trained.append(masks[0] & usable)
        return cls(
            meta.name,
            source.structure(),
            features,
            classes,
            torch.cat(trained),
            torch.cat(scored) if scored else None,
            torch.cat(nonzeros).numpy() if nonzeros else None,
            meta.directed,
            meta.weighted,
            not meta.features,
            source.vertex_ids,
        )

    @property
    def vertices(self) -> int:
        """Rows."""
        return self.structure.shape[0]

    @property
    def sparse(self) -> bool:
        """True if features are stored sparse."""
        return self.feature_nonzeros is not None

    @cached_property
    def looped(self) -> CSR:
        """With self-loops, as it is partitioned."""
        return add_self_loops(self.structure)

    @cached_property
    def digest(self) -> str:
        """Digest of the structure's content."""
        indptr, indices = self.structure.indptr.numpy(), self.structure.indices.numpy()
        return digest(indptr.data, np.ascontiguousarray(indices).data)


def cache_directory(path: str | None) -> Path:
    """Directory for partitions: as given, or in ``$SPGNN_CACHE`` or ``~/.cache/spgnn``."""
    if path is not None:
        return Path(path)
    home = os.environ.get("SPGNN_CACHE")
    return (Path(home) if home else Path.home() / ".cache" / "spgnn") / "partitions"


class Partitions:
    """Labels of one graph, computed at the first request and kept in a directory."""

    def __init__(
        self,
        dataset: Dataset,
        directory: Path,
        *,
        seed: int = 0,
        imbalance: float = 0.05,
        preset: Preset = "default",
        progress: Progress | None = None,
    ) -> None:
        self._dataset, self._directory, self._preset = dataset, directory, preset
        self._seed, self._imbalance, self._progress = seed, imbalance, progress
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"--cache {directory}: cannot be made: {reason}") from None

    def labels(
        self, method: str, objective: Objective, parts: int, nodes: int | None = None
    ) -> Int32Array:
        """The part of each vertex, int32 [n]; with nodes, of a partition of two levels."""
        return self._labels_and_file(method, objective, parts, nodes)[0]

    def file(self, method: str, objective: Objective, parts: int, nodes: int | None = None) -> Path:
        """File of the labels."""
        return self._labels_and_file(method, objective, parts, nodes)[1]

    def key(self, method: str, objective: Objective, parts: int, nodes: int | None = None) -> str:
        """Name of the labels: the graph, the method and its options."""
        key = _GENERATION, self._dataset.digest, method, objective, parts
        levels = () if nodes is None else (nodes,)
        options = self._seed, float(self._imbalance), self._preset
        return "/".join(map(str, (*key, *levels, *options)))

    def _labels_and_file(
        self, method: str, objective: Objective, parts: int, nodes: int | None
    ) -> tuple[Int32Array, Path]:
        name = digest(self.key(method, objective, parts, nodes).encode())

        def path_of(labels: Int32Array) -> Path:
            return self._directory / f"{name}-{digest(np.ascontiguousarray(labels).data)}.labels"

        for path in sorted(self._directory.glob(f"{name}-*.labels")):
            with suppress(InputError):
                labels = read_labels(path, self._dataset.vertices, parts)
                if path == path_of(labels):
                    return labels, path
            with suppress(OSError):
                path.unlink()
        labels, _ = partition(
            self._dataset.looped,
            parts,
            method,
            objective=objective,
            imbalance=self._imbalance,
            seed=self._seed,
            preset=self._preset,
            nodes=nodes,
            minimum=False,
            progress=self._progress,
        )
        write_labels(path_of(labels), labels)
        return labels, path_of(labels)
