"""A data set whose rows are processed in chunks: places in files, and labels of few vertices."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.outofcore.adjacency import even_bounds
from spgnn.addons.outofcore.blocks import FileBlocks, FileExtent, MemoryBlocks
from spgnn.addons.outofcore.graph import ChunkedDataset, Labels, ids_of
from spgnn.addons.outofcore.options import Storage
from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.data import ShardDirectory, VertexData, is_graph_file, labelled, open_shards
from spgnn.direct import Transfers
from spgnn.errors import InputError
from spgnn.frontend import (
    dense_for_reduction,
    is_cut,
    made_up_labels,
    masks_of,
    normalisation_of,
    random_features,
    share_of,
)
from spgnn.progress import ProgressBar
from spgnn.registry import OPENERS
from spgnn.sparse import CSR

# Times the bytes of a file of edges that reading it in memory is assumed to take.
_READ_IN_MEMORY = 8


def open_dataset(
    config: TrainConfig,
    comm: Communicator,
    counts: Transfers,
    scratch: Path | None,
    outputs: int | None = None,
) -> ChunkedDataset:
    """Own rows of the data set: of a graph directory read later, else in memory. Collective."""
    name, data = config.data.dataset, config.data
    alone = comm.size == 1 and data.graph_split is None
    if comm.from_rank_zero(lambda: is_cut(name, comm.size)):
        if data.symmetrise:
            raise InputError("--symmetrise: shards are ready-made; symmetrise before sharding")
        rows = comm.on_every_rank(lambda: _in_directory(config, open_shards(name), comm, counts))
    elif scratch is not None and alone and _is_large(name, config.extension(Storage).memory):
        rows = _in_directory(config, _sorted_into(scratch, config), comm, counts)
    else:
        share, _ = share_of(config, comm)
        adjacency = share.adjacency
        assert adjacency is not None
        rows = ChunkedDataset(
            share.meta,
            share.layout,
            lambda bounds: MemoryBlocks.of(adjacency, bounds),
            lambda row: int(adjacency.indptr[row]),
            share.vertex_ids,
            share.data,
            share.data.x,
        )
    meta, X = rows.meta, rows.X
    features = data.random_features if X is None else meta.features
    if not features:
        raise InputError(f"{meta.name} has no features; --random-features F makes some up")
    classes, labels = outputs or 0, None
    if outputs is None:
        classes = data.random_classes if rows.data.y is None else meta.classes
        if not classes:
            raise InputError(f"{meta.name} has no labels; --random-classes C makes some up")
        labels = comm.on_every_rank(lambda: _labels(config, rows, comm.rank))
    row_normalise = X is not None and (
        data.feature_norm == "row" or (data.feature_norm == "auto" and meta.bag_of_words)
    )
    if X is None:
        X = partial(random_features, seed=config.training.seed)
    elif isinstance(X, CSR):
        X = dense_for_reduction(config, X)
    return replace(
        rows,
        meta=replace(meta, features=features, classes=classes),
        X=X,
        row_normalise=row_normalise,
        normalisation=normalisation_of(config),
        loops=config.model.registered.loops,
        labels=labels,
    )


def _is_large(name: str, memory: int | None) -> bool:
    """True if this is a file of edges that may take more memory to read than there is."""
    if memory is None or not is_graph_file(name):
        return False
    return _READ_IN_MEMORY * os.path.getsize(name) > memory


def _sorted_into(scratch: Path, config: TrainConfig) -> ShardDirectory:
    """The graph of a file of edges, in a directory with one part."""
    data, memory = config.data, config.extension(Storage).memory
    assert memory is not None
    with ProgressBar() as progress:
        source = OPENERS.need("through disk", f"{data.dataset}, larger than memory", "io")(
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
) -> ChunkedDataset:
    if shards.meta.parts != comm.size:
        raise InputError(
            f"{shards.directory}: holds {shards.meta.parts} parts, but there are {comm.size} "
            f"ranks; write it with --parts {comm.size}"
        )
    rank, meta = comm.rank, shards.meta
    places = {name: shards.place(rank, name) for name in ("indptr", "indices", "values", "x")}
    stretch = {
        name: None if place is None else FileExtent(*place) for name, place in places.items()
    }
    first, last = shards.layout.range(rank)
    indptr, indices = stretch["indptr"], stretch["indices"]
    assert indptr is not None
    assert indices is not None
    offsets = np.memmap(indptr.path, "<i8", "r", indptr.offset, (last - first + 1,))
    ids, data = shards.vertices_of(rank)
    return ChunkedDataset(
        meta,
        shards.layout,
        lambda bounds: FileBlocks(
            bounds,
            meta.vertices,
            indptr=indptr,
            indices=indices,
            values=stretch["values"] if meta.weighted else None,
            counts=counts,
        ),
        lambda row: int(offsets[row]),
        first if ids is None else ids,
        data.select_split(config.data.split),
        shards.features_of(rank) or stretch["x"],
    )


def _labels(config: TrainConfig, dataset: ChunkedDataset, rank: int) -> Labels:
    """A chunk at a time: most vertices of the largest graphs have no label."""
    rows, labels, masks = list[Tensor](), list[Tensor](), list[list[Tensor]]()
    begin, end = dataset.layout.range(rank)
    for first, last in pairwise(even_bounds(dataset.starts, end - begin, 64)):
        ids = ids_of(dataset.ids, first, last)
        data = VertexData(**dataset.data.take(slice(first, last)))
        y = made_up_labels(config, ids) if data.y is None else data.y
        split = masks_of(data, ids, y, config.training.seed)
        here = (labelled(y) & (split[0] | split[1] | split[2])).nonzero()[:, 0]
        rows.append(here + first)
        labels.append(y[here])
        masks.append([mask[here] for mask in split])
    joined = [torch.cat(parts) for parts in zip(*masks, strict=True)]
    return Labels(torch.cat(rows), torch.cat(labels), joined)
