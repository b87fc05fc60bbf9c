"""From a data set's name to what batches are drawn from, on every rank the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches import DiskRows, Rows, SampledGraph, on_disk, sampled_graph
from spgnn.addons.diskbatches.cached_rows import CachedRows
from spgnn.addons.diskbatches.disk_pattern import DiskPattern, degrees_of
from spgnn.addons.diskbatches.minibatch_config import MiniBatchConfig
from spgnn.data import (
    Graph,
    GraphMeta,
    GraphSource,
    Pairs,
    ShardDirectory,
    check_weights,
    held_out_of,
    labelled,
    normalisation_of,
    open_source,
    row_normalise_features,
    seeded_split,
    vertex_ids_of,
)
from spgnn.errors import InputError
from spgnn.files import atomic_file, scratch_directory
from spgnn.frontend import dense_for_reduction, made_up_labels, random_features
from spgnn.memory import check_memory
from spgnn.nn import UNKNOWN
from spgnn.progress import ProgressBar
from spgnn.sparse import CSR

FILE = "features.bin"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A graph on one process, with labels and splits."""

    graph: SampledGraph
    meta: GraphMeta
    y: Tensor  # [n] or [n, columns]; unknown where links are learnt
    masks: list[Tensor]  # train, validation and test, bool [n] each; empty where links are learnt
    classes: int
    seeds: Tensor  # training vertices that have a label, or ends of training links
    links: list[Pairs] | None = None  # for training, validation and testing
    scratch: Path | None = None  # a directory of this process alone, for files of training

    @property
    def features(self) -> int:
        """Width of the features."""
        x = self.graph.x
        assert x is not None
        return x.width if isinstance(x, Rows) else x.shape[1]


@contextmanager
def open_dataset(config: MiniBatchConfig, rank: int = 0) -> Iterator[Dataset]:
    """The data set that the flags describe; files written for it are removed at the end."""
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
        if graph.train_mask is None:
            masks = list(seeded_split(vertex_ids_of(graph), y, config.training.seed))
        else:
            splits = [graph.train_mask, graph.val_mask, graph.test_mask]
            masks = [torch.zeros_like(graph.train_mask) if m is None else m for m in splits]
        seeds = (masks[0] & labelled(y)).nonzero()[:, 0]
    kind, loops = normalisation_of(config.model.model, config.model.aggregate)
    check_weights(graph.adjacency, kind, loops=loops, ids=vertex_ids_of(graph))
    with ExitStack() as stack:
        parent, own = config.storage.store_dir, None
        if parent is not None:  # a directory of this process alone: others may write there
            own = stack.enter_context(scratch_directory(parent, f"storage.store-dir {parent}"))
        drawn_from = sampled_graph(graph, _features(config, opened, graph, own))
        drawn_from.vertices.update(y=y)
        if config.storage.structure == "disk":
            drawn_from = on_disk(drawn_from, _structure(config, opened, graph, own))
        yield Dataset(drawn_from, meta, y, masks, classes, seeds, links, own)


def _features(
    config: MiniBatchConfig, opened: GraphSource, graph: Graph, own: Path | None
) -> Tensor | CSR | Rows:
    """The features, in memory or on a disk behind a cache."""
    storage, width = config.storage, config.data.random_features
    x = graph.x
    if x is None:
        if not width:
            raise InputError(f"{graph.name} has no features; --random-features F makes some up")
        check_memory(f"--random-features {width}", 4 * graph.vertices * width)
        x = random_features(vertex_ids_of(graph), 0, width, config.training.seed)
    x = dense_for_reduction(config.of_whole_graph(), x)
    norm = config.data.feature_norm
    normalised = norm == "row" or (norm == "auto" and opened.meta.bag_of_words)
    if storage.store == "memory":
        return row_normalise_features(x) if normalised else x
    if isinstance(x, CSR):
        raise InputError(f"--store disk needs dense features; those of {graph.name} are sparse")
    place = None
    if isinstance(opened, ShardDirectory) and opened.meta.parts == 1 and graph.x is not None:
        place = opened.place(0, "x")
    if place is not None and not normalised:
        path, offset = place
    else:
        if own is None:
            why = "its features are to be normalised" if place else "it is no graph directory"
            name = config.data.dataset
            raise InputError(f"--store disk: {name} needs storage.store-dir DIR: {why}")
        path, offset = own / FILE, 0
        with atomic_file(path, f"storage.store-dir {storage.store_dir}") as file:
            rows = row_normalise_features(x) if normalised else x
            file.write(rows.contiguous().numpy().view(np.uint8).data)
    table = DiskRows(path, offset, x.shape[0], x.shape[1], x.dtype)
    if config.table is not None:
        return config.table.of(table, config.options, own)
    if not (storage.cache or storage.memory) or storage.cache_policy == "none":
        return table
    scores = None if storage.cache_policy == "lru" else degrees_of(graph.adjacency)
    return CachedRows(table, storage.cache_policy, storage.cache, scores=scores)


def _structure(
    config: MiniBatchConfig, opened: GraphSource, graph: Graph, own: Path | None
) -> DiskPattern:
    """The neighbours, on a disk behind a cache."""
    storage, name = config.storage, config.data.dataset
    if not isinstance(opened, ShardDirectory) or opened.meta.parts != 1:
        raise InputError(f"storage.structure disk: {name} is no graph directory of one part")
    path, offset = opened.place(0, "indices") or (opened.directory, 0)
    # A copy: what is mapped counts as memory as soon as it has been looked at.
    pattern, indptr = graph.adjacency.pattern, graph.adjacency.indptr.clone()
    dtype = pattern.indices.dtype
    disk = DiskPattern(path, offset, indptr, pattern.shape[1], dtype=dtype)
    shared = storage.memory and storage.structure_cache is None and config.takes_turns
    if not config.structure_cache and not shared:
        return disk
    policy = storage.structure_policy
    scores = None if policy == "lru" else degrees_of(disk)
    return disk.cached(policy, config.structure_cache, scores, own)


def _labels(config: MiniBatchConfig, graph: Graph) -> tuple[Tensor, int]:
    if graph.y is not None:
        return graph.y, graph.classes
    classes = config.data.random_classes
    if not classes:
        raise InputError(f"{graph.name} has no labels; --random-classes C makes some up")
    return made_up_labels(config.of_whole_graph(), vertex_ids_of(graph)), classes
