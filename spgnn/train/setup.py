"""From a data set's name to what a rank trains on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data import Graph, GraphMeta, load_dataset, open_shards
from spgnn.data.distribute import RankShare, from_shards, scatter
from spgnn.data.normalise import add_self_loops, degree_scales, row_normalise_features
from spgnn.data.progress import terminal_progress
from spgnn.data.splits import seeded_split
from spgnn.errors import InputError
from spgnn.hashing import uniform
from spgnn.nn import Propagated, propagate_
from spgnn.partition import METHODS, partition, read_labels
from spgnn.partition.adjacency import Int32Array
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix, GridComm
from spgnn.train.config import TrainConfig


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything one rank trains on.

    Attributes
    ----------
    A : DistMatrix
        The normalised adjacency.
    X : Tensor or CSR [own rows, features], or Propagated
    y : Tensor int64 [own rows]
    masks : train, validation and test, bool [own rows] each
    vertex_ids : Tensor int64 [own rows]
    meta : GraphMeta
    features, classes : int
    partition_report : dict or None
        What the partitioner predicted, where this run made the partition (rank 0).
    """

    A: DistMatrix
    X: Tensor | CSR | Propagated
    y: Tensor
    masks: list[Tensor]
    vertex_ids: Tensor
    meta: GraphMeta
    features: int
    classes: int
    partition_report: dict[str, Any] | None


def prepare(config: TrainConfig, comm: Communicator, device: torch.device) -> Problem:
    """Load, partition, distribute and normalise the data set, and build the matrix. Collective.

    Raises
    ------
    InputError
        If anything about the data set or the partition is wrong.
    """
    grid = GridComm.build(comm, config.c)
    share, report = _share(config, grid)
    A = _matrix(config, share, grid).to(device)
    # The block row has become L, S and R; it must not be in memory beside the features.
    share = replace(share, adjacency=None)
    data = share.data
    X, classes = _features(config, share), share.meta.classes
    y = data.y
    if y is None:
        if not config.random_classes:
            raise InputError(f"{share.meta.name} has no labels; --random-classes C makes some up")
        classes = config.random_classes
        draws = uniform(share.vertex_ids.numpy(), config.seed, "y")
        y = torch.from_numpy((draws * classes).astype(np.int64))
    masks = _masks(config, share, y)
    features = int(X.shape[1])
    ready: Tensor | CSR | Propagated = X.to(device)
    # Dropout on the input changes A·dropout(X) every epoch; sparse features would fill in.
    if config.order == "auto" and config.dropout == 0 and isinstance(ready, Tensor):
        ready = propagate_(A, ready)
    return Problem(
        A,
        ready,
        y.to(device),
        [mask.to(device) for mask in masks],
        share.vertex_ids.to(device),
        share.meta,
        features,
        classes,
        report,
    )


def _share(config: TrainConfig, grid: GridComm) -> tuple[RankShare, dict[str, Any] | None]:
    if (Path(config.dataset) / "meta.json").exists():
        if config.symmetrise:
            raise InputError("--symmetrise: shards are ready-made; symmetrise before sharding")
        return from_shards(open_shards(config.dataset), grid), None
    graph: Graph | None = None
    labels, report = None, None
    if grid.everyone.rank == 0:
        with terminal_progress() as progress:
            graph = load_dataset(config.dataset, config.data_dir, config.seed, progress=progress)
        if config.symmetrise:
            graph = graph.symmetrised()
        labels, report = _labels(config, graph, grid.grid.block_rows)
    return scatter(graph, labels, grid), report


def _labels(
    config: TrainConfig, graph: Graph, parts: int
) -> tuple[Int32Array, dict[str, Any] | None]:
    method = config.partition
    if method not in METHODS:
        if Path(method).exists():
            return read_labels(method, graph.vertices, parts), None
        known = ", ".join(METHODS)
        raise InputError(f"--partition {method}: neither a file nor one of {known}")
    A = add_self_loops(graph.adjacency)
    labels, report = partition(
        A, parts, method=method, imbalance=config.imbalance, seed=config.seed
    )
    return labels, dict(report)


def _matrix(config: TrainConfig, share: RankShare, grid: GridComm) -> DistMatrix:
    assert share.adjacency is not None
    block = add_self_loops(share.adjacency, share.first_row)
    row_scale, own_scale = degree_scales(block, config.normalisation)
    if own_scale is not None:
        first, last = share.layout.range(grid.everyone.rank)
        own_scale = own_scale[first - share.first_row : last - share.first_row]
    return DistMatrix.build(
        block.with_scales(row_scale, None),
        share.layout,
        grid,
        exchange=config.exchange,
        cover=config.cover,
        column_scale=own_scale,
        overlap=config.overlap,
    )


def _features(config: TrainConfig, share: RankShare) -> Tensor | CSR:
    X = share.data.x
    if X is None:
        if not config.random_features:
            raise InputError(
                f"{share.meta.name} has no features; --random-features F makes some up"
            )
        return _random_features(share.vertex_ids, config.random_features, config.seed)
    if config.feature_norm == "row" or (config.feature_norm == "auto" and share.meta.bag_of_words):
        return row_normalise_features(X, in_place=True)
    return X


def _random_features(vertex_ids: Tensor, features: int, seed: int) -> Tensor:
    X = torch.empty(len(vertex_ids), features)
    # A few columns at a time: the draws are made in 64 bits.
    for first in range(0, features, 8):
        width = min(8, features - first)
        draws = uniform(vertex_ids.numpy(), seed, f"x{first}", width)
        X[:, first : first + width] = torch.from_numpy(draws)
    return X


def _masks(config: TrainConfig, share: RankShare, y: Tensor) -> list[Tensor]:
    data = share.data.select_split(config.split)
    masks = [data.train_mask, data.val_mask, data.test_mask]
    if masks[0] is None:
        return list(seeded_split(share.vertex_ids, y, config.seed))
    return [torch.zeros_like(masks[0]) if mask is None else mask for mask in masks]
