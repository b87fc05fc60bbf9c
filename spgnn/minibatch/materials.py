"""From a data set's name to what batches are drawn from, on every rank the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.data import Graph, GraphMeta, GraphSource, open_source
from spgnn.data.graph import labelled, vertex_ids_of
from spgnn.data.normalise import check_weights, row_normalise_features
from spgnn.data.shards import ShardDirectory
from spgnn.data.splits import Pairs, held_out_of, seeded_split
from spgnn.errors import InputError
from spgnn.files import atomic_file, scratch_directory
from spgnn.hashing import uniform
from spgnn.memory import check_memory
from spgnn.minibatch.config import MiniBatchConfig
from spgnn.minibatch.source import Source, of_graph, on_disk
from spgnn.nn.loss import UNKNOWN
from spgnn.plan.network import normalisation_of
from spgnn.progress import ProgressBar
from spgnn.sparse import CSR
from spgnn.store import (
    CachedRows,
    DiskPattern,
    DiskRows,
    PackedRows,
    Policy,
    Rows,
    uses,
    visit_probability,
)
from spgnn.train.setup import dense_for_max, made_up_labels

FILE = "features.bin"


@dataclass(frozen=True, eq=False)
class Materials:
    """What training is made of.

    Attributes
    ----------
    source : Source
    meta : GraphMeta
    y : Tensor [n] or [n, columns]
    masks : train, validation and test, bool [n] each
    classes : int
    seeds : Tensor int64
        Training vertices that have a label, or ends of training links.
    links : list of Pairs, optional
        For training, validation and testing, where links are what is learnt: labels are unknown
        then, and masks are empty.
    """

    source: Source
    meta: GraphMeta
    y: Tensor
    masks: list[Tensor]
    classes: int
    seeds: Tensor
    links: list[Pairs] | None = None

    @property
    def features(self) -> int:
        """Width of the features."""
        x = self.source.x
        assert x is not None
        return x.width if isinstance(x, Rows) else x.shape[1]


@contextmanager
def materials(config: MiniBatchConfig, rank: int = 0) -> Iterator[Materials]:
    """Everything that one rank draws from; what had to be written for it is removed at the end.

    Raises
    ------
    InputError
        If the data set cannot be read, or has not what training needs.
    """
    data = config.data
    with ProgressBar(shown=rank == 0) as progress:
        opened = open_source(
            data.dataset, data.data_dir, progress=progress, graph_split=data.graphs_of_splits
        )
    graph = opened.graph()
    if data.symmetrise and graph.directed:
        graph = graph.symmetrised()
    graph = graph.select_split(data.split) if graph.splits > 1 else graph
    meta, links = opened.meta, None
    if config.aim.task == "links":
        aim = config.aim
        graph, links = held_out_of(graph, (aim.val_links, aim.test_links), config.training.seed)
        meta = replace(meta, edges=graph.adjacency.nnz)
        y, classes = torch.full((graph.vertices,), UNKNOWN), 0
        masks = [y > UNKNOWN] * 3
        seeds = torch.cat((links[0].sources, links[0].targets)).unique()
    else:
        y, classes = _labels(config, graph)
        masks = _masks(config, graph, y)
        seeds = (masks[0] & labelled(y)).nonzero()[:, 0]
    kind, loops = normalisation_of(config.model.model, config.model.aggregate)
    check_weights(graph.adjacency, kind, loops=loops, ids=vertex_ids_of(graph))
    with _own_directory(config) as own, _features(config, opened, graph, seeds, own) as x:
        source = of_graph(graph, x)
        source.vertices.update(y=y)
        if config.storage.structure == "disk":
            source = on_disk(source, _structure(config, opened, graph, seeds))
        yield Materials(source, meta, y, masks, classes, seeds, links)


@contextmanager
def _own_directory(config: MiniBatchConfig) -> Iterator[Path | None]:
    """One in --store-dir for this process alone: others may write there. Removed at the end."""
    parent = config.storage.store_dir
    if parent is None:
        yield None
        return
    with scratch_directory(parent, f"--store-dir {parent}") as own:
        yield own


@contextmanager
def _features(
    config: MiniBatchConfig, opened: GraphSource, graph: Graph, seeds: Tensor, own: Path | None
) -> Iterator[Tensor | CSR | Rows]:
    """Where the features are read from."""
    storage, width = config.storage, config.data.random_features
    x = graph.x
    if x is None:
        if not width:
            raise InputError(f"{graph.name} has no features; --random-features F makes some up")
        check_memory(f"--random-features {width}", 4 * graph.vertices * width)
        x = _random(graph, width, config.training.seed)
    x = dense_for_max(config.of_whole_graph(), x)
    norm = config.data.feature_norm
    normalised = norm == "row" or (norm == "auto" and opened.meta.bag_of_words)
    if storage.store == "memory":
        yield row_normalise_features(x) if normalised else x
        return
    if isinstance(x, CSR):
        raise InputError(f"--store disk needs dense features; those of {graph.name} are sparse")
    place = None
    if isinstance(opened, ShardDirectory) and opened.meta.parts == 1 and graph.x is not None:
        place = opened.place(0, "x")
    if place is not None and not normalised:
        path, offset = place
        found = DiskRows.open(path, offset, x.shape[0], x.shape[1], x.dtype)
        yield _cached(config, found, graph, seeds, own)
        return
    if own is None:
        why = "its features are to be normalised" if place else "it is no graph directory"
        raise InputError(f"--store disk: {config.data.dataset} needs --store-dir DIR: {why}")
    path = own / FILE
    with atomic_file(path, f"--store-dir {storage.store_dir}") as file:
        rows = row_normalise_features(x) if normalised else x
        file.write(rows.contiguous().numpy().view(np.uint8).data)
    on_disk = DiskRows.open(path, 0, x.shape[0], x.shape[1], x.dtype)
    yield _cached(config, on_disk, graph, seeds, own)


def _cached(
    config: MiniBatchConfig, rows: Rows, graph: Graph, seeds: Tensor, own: Path | None
) -> Rows:
    storage, sampling = config.storage, config.sampling
    if storage.pack:
        assert own is not None
        return PackedRows(rows, own, storage.pack, memory_bytes=storage.cache)
    if not storage.cache or storage.cache_policy == "none":
        return rows
    scores = None
    if storage.cache_policy in ("degree", "belady"):
        scores = uses(graph.adjacency)
    elif storage.cache_policy == "vip":
        scores = visit_probability(graph.adjacency, sampling.fanouts, seeds, sampling.batch_size)
    return CachedRows(rows, Policy(storage.cache_policy, scores), storage.cache)


def _structure(
    config: MiniBatchConfig, opened: GraphSource, graph: Graph, seeds: Tensor
) -> DiskPattern:
    """Where the neighbours are read from."""
    storage, sampling = config.storage, config.sampling
    if not isinstance(opened, ShardDirectory) or opened.meta.parts != 1:
        raise InputError(
            f"--structure disk: {config.data.dataset} is no graph directory of one part; "
            "spgnn shard makes one"
        )
    path, offset = opened.place(0, "indices") or (opened.directory, 0)
    # A copy: what is mapped counts as memory as soon as it has been looked at.
    pattern, indptr = graph.adjacency.pattern, graph.adjacency.indptr.clone()
    dtype = pattern.indices.dtype
    disk = DiskPattern.open(path, offset, indptr, pattern.shape[1], dtype=dtype)
    if not storage.structure_cache:
        return disk
    scores = None
    if storage.structure_policy == "degree":
        scores = uses(disk)
    elif storage.structure_policy == "vip":
        scores = visit_probability(disk, sampling.fanouts, seeds, sampling.batch_size)
    return disk.cached(storage.structure_policy, storage.structure_cache, scores)


def _random(graph: Graph, width: int, seed: int) -> Tensor:
    ids = vertex_ids_of(graph).numpy()
    x = torch.empty(graph.vertices, width)
    for first in range(0, width, 8):  # the draws are made in 64 bits
        draws: Any = uniform(ids, seed, f"x{first}", min(8, width - first))
        x[:, first : first + 8] = torch.from_numpy(draws)
    return x


def _labels(config: MiniBatchConfig, graph: Graph) -> tuple[Tensor, int]:
    if graph.y is not None:
        return graph.y, graph.classes
    classes = config.data.random_classes
    if not classes:
        raise InputError(f"{graph.name} has no labels; --random-classes C makes some up")
    return made_up_labels(config.of_whole_graph(), vertex_ids_of(graph)), classes


def _masks(config: MiniBatchConfig, graph: Graph, y: Tensor) -> list[Tensor]:
    if graph.train_mask is None:
        return list(seeded_split(vertex_ids_of(graph), y, config.training.seed))
    found = [graph.train_mask, graph.val_mask, graph.test_mask]
    return [torch.zeros_like(graph.train_mask) if mask is None else mask for mask in found]
