"""A data set as a rank that works through it in chunks opens it: places, not contents."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn.chunked.blocks import Blocks, FileBlocks, MemoryBlocks, Stretch
from spgnn.chunked.rows import Adjacency
from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.data import (
    open_shards,
)
from spgnn.data.graph import VertexData, labelled
from spgnn.data.shards import ShardDirectory
from spgnn.data.source import GraphMeta
from spgnn.data.through_disk import is_edge_file, open_through_disk
from spgnn.direct import Transfers
from spgnn.errors import InputError
from spgnn.frontend.from_config import made_up_labels, masks_of, share_of
from spgnn.frontend.sources import is_cut
from spgnn.layout import RowLayout
from spgnn.progress import ProgressBar
from spgnn.sparse import CSR

# Times the bytes of a file of edges that reading it in memory is taken for.
_READ_IN_MEMORY = 8


@dataclass(frozen=True, eq=False)
class Found:
    """The data set of a rank, before any preparation.

    Attributes
    ----------
    meta : GraphMeta
    layout : RowLayout
    blocks : callable
        Bounds of parts to own rows of the adjacency.
    starts : callable
        Nonzeros before an own row.
    ids : Tensor int64 [own rows], or int
    data : VertexData
        Labels and masks.
    X : Tensor or CSR, Stretch, or None
        Features, where they lie.
    """

    meta: GraphMeta
    layout: RowLayout
    blocks: Callable[[tuple[int, ...]], Blocks]
    starts: Callable[[int], int]
    ids: Tensor | int
    data: VertexData
    X: Tensor | CSR | Stretch | None


def found_in(
    config: TrainConfig, comm: Communicator, counts: Transfers, scratch: Path | None
) -> Found:
    """Own rows of the data set, of a graph directory what is read later, else all. Collective.

    A file of edges that may not fit becomes a graph directory in `scratch` first, on one rank.
    """
    name = config.data.dataset
    if comm.from_rank_zero(lambda: is_cut(name, comm.size)):
        if config.data.symmetrise:
            raise InputError("--symmetrise: shards are ready-made; symmetrise before sharding")
        return comm.on_every_rank(lambda: _in_directory(config, open_shards(name), comm, counts))
    alone = comm.size == 1 and config.data.graph_split is None
    if scratch is not None and alone and _is_large(name, config.storage.memory):
        return _in_directory(config, _sorted_into(scratch, config), comm, counts)
    share, _ = share_of(config, comm)
    adjacency = share.adjacency
    assert adjacency is not None
    return Found(
        share.meta,
        share.layout,
        lambda bounds: MemoryBlocks.of(adjacency, bounds),
        lambda row: int(adjacency.indptr[row]),
        share.vertex_ids,
        share.data,
        share.data.x,
    )


def _is_large(name: str, memory: int | None) -> bool:
    """True if this is a file of edges that may take more memory to read than there is."""
    if memory is None or not is_edge_file(name):
        return False
    return _READ_IN_MEMORY * os.path.getsize(name) > memory


def _sorted_into(scratch: Path, config: TrainConfig) -> ShardDirectory:
    """The graph of a file of edges, in a directory with one part."""
    data, memory = config.data, config.storage.memory
    assert memory is not None
    with ProgressBar() as progress:
        source = open_through_disk(
            data.dataset,
            directory=scratch / "graph",
            memory=memory,
            symmetrise=data.symmetrise,
            progress=progress,
        )
    assert isinstance(source, ShardDirectory)
    return source


def _in_directory(
    config: TrainConfig, shards: ShardDirectory, comm: Communicator, counts: Transfers
) -> Found:
    if shards.meta.parts != comm.size:
        raise InputError(
            f"{shards.directory}: holds {shards.meta.parts} parts, but there are {comm.size} "
            f"ranks; write it with --parts {comm.size}"
        )
    rank, meta = comm.rank, shards.meta
    where = {name: shards.place(rank, name) for name in ("indptr", "indices", "values", "x")}
    stretch = {name: None if place is None else Stretch(*place) for name, place in where.items()}
    first, last = shards.layout.range(rank)
    indptr, indices = stretch["indptr"], stretch["indices"]
    assert indptr is not None
    assert indices is not None
    offsets = np.memmap(indptr.path, "<i8", "r", indptr.offset, (last - first + 1,))
    ids, data = shards.vertices_of(rank)

    def blocks(bounds: tuple[int, ...]) -> Blocks:
        return FileBlocks(
            bounds,
            meta.vertices,
            indptr=indptr,
            indices=indices,
            values=stretch["values"] if meta.weighted else None,
            counts=counts,
        )

    return Found(
        meta,
        shards.layout,
        blocks,
        lambda row: int(offsets[row]),
        first if ids is None else ids,
        data.select_split(config.data.split),
        shards.features_of(rank) or stretch["x"],
    )


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labels and masks of the vertices that have any.

    Attributes
    ----------
    rows : Tensor int64 [labelled]
        Own rows, rising.
    y : Tensor [labelled] or [labelled, columns]
    masks : list of Tensor bool [labelled]
        Train, validation, test.
    classes : int
    """

    rows: Tensor
    y: Tensor
    masks: list[Tensor]
    classes: int

    @classmethod
    def of(cls, config: TrainConfig, found: Found, bounds: tuple[int, ...]) -> Labelled:
        """A part at a time: most vertices of the largest graphs have no label."""
        rows, labels, masks = list[Tensor](), list[Tensor](), list[list[Tensor]]()
        classes = found.meta.classes if found.data.y is not None else config.data.random_classes
        if not classes:
            raise InputError(f"{found.meta.name} has no labels; --random-classes C makes some up")
        for first, last in pairwise(bounds):
            here = slice(first, last)
            ids = (
                torch.arange(first, last) + found.ids
                if isinstance(found.ids, int)
                else found.ids[here]
            )
            data = VertexData(**found.data.take(here))
            y = made_up_labels(config, ids) if data.y is None else data.y
            split = masks_of(data, ids, y, config.training.seed)
            some = labelled(y) & (split[0] | split[1] | split[2])
            chosen = some.nonzero()[:, 0]
            rows.append(chosen + first)
            labels.append(y[chosen])
            masks.append([mask[chosen] for mask in split])
        joined = [torch.cat(parts) for parts in zip(*masks, strict=True)]
        return cls(torch.cat(rows), torch.cat(labels), joined, classes)

    def taken_by(self, rows: int, *, training: bool) -> Tensor:
        """Own rows whose outputs are looked at, bool [rows]."""
        found = torch.zeros(rows, dtype=torch.bool)
        found[self.rows[self.masks[0]] if training else self.rows] = True
        return found


def adjacency_of(found: Found, bounds: tuple[int, ...]) -> Adjacency:
    """Own rows of the adjacency, by parts."""
    weighted = found.meta.weighted
    symmetric = not found.meta.directed and not weighted
    return Adjacency(found.blocks(bounds), found.layout, symmetric, weighted)
