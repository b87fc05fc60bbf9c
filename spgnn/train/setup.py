"""From a data set's name to what a rank trains on."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, Mesh
from spgnn.comm.rank_zero import from_rank_zero, on_every_rank, on_rank_zero
from spgnn.data import GraphMeta, GraphSource, open_shards, open_source
from spgnn.data.distribute import RankShare, from_shards, scatter
from spgnn.data.graph import VertexData
from spgnn.data.memory import check_memory
from spgnn.data.normalise import (
    OWN_NORMALISATION,
    add_self_loops,
    degree_scales,
    row_normalise_features,
)
from spgnn.data.shards import is_graph_directory
from spgnn.data.source import MemorySource
from spgnn.data.splits import seeded_split
from spgnn.errors import InputError, meant, memory_for
from spgnn.exchange import Layered
from spgnn.hashing import uniform
from spgnn.nn import Features, Propagated, densified, propagate_
from spgnn.nn.loss import UNKNOWN
from spgnn.partition import METHODS, partition, read_labels
from spgnn.partition.adjacency import Int32Array
from spgnn.partition.edge_files import read_edges
from spgnn.partition.gvb import Objective
from spgnn.progress import ProgressBar
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix
from spgnn.train.config import TrainConfig
from spgnn.train.rows import TrainingRows, layer_plans, training_rows

Data = TypeVar("Data", bound=VertexData)


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything one rank trains on.

    Attributes
    ----------
    A : DistMatrix
        The normalised adjacency.
    X : Tensor or CSR [own rows, features], or Propagated
    training : TrainingRows
        What of all this a training epoch works on.
    y : Tensor int64 [own rows]
    masks : train, validation and test, bool [own rows] each
    vertex_ids : Tensor int64 [own rows]
    meta : GraphMeta
    features, classes : int
    partition_report : dict or None
        What the partitioner predicted, where this run made the partition (rank 0).
    """

    A: DistMatrix
    X: Features
    training: TrainingRows
    y: Tensor
    masks: list[Tensor]
    vertex_ids: Tensor
    meta: GraphMeta
    features: int
    classes: int
    partition_report: dict[str, Any] | None


def prepare(config: TrainConfig, comm: Communicator) -> Problem:
    """Load, partition, distribute and normalise the data set, and build the matrix. Collective.

    Raises
    ------
    InputError
        If anything about the data set or the partition is wrong.
    """
    mesh, device = Mesh.build(comm, config.algorithm.distribution.axes(comm.size)), comm.device
    share, report = _share(config, comm)
    y, classes = _labels(config, share)
    masks = _masks(config, share, y)
    with memory_for(f"the adjacency of {share.meta.name}"):
        A, plans = _matrices(config, share, mesh, masks[0] & (y > UNKNOWN))
        A = A.to(device)
    # The block row has become L, S and R; it must not be in memory beside the features.
    share = replace(share, adjacency=None)
    with memory_for(f"the features of {share.meta.name}"):
        given = on_every_rank(comm, lambda: _features(config, share))
        X = _ready(config, A, given, device)
    y, masks = y.to(device), [mask.to(device) for mask in masks]
    vertex_ids = share.vertex_ids.to(device)
    with memory_for(f"what an epoch on {share.meta.name} works on"):
        training, X = training_rows(plans, A, X, vertex_ids=vertex_ids, y=y, mask=masks[0])
        if isinstance(training.X, CSR):
            _ = training.X.T  # its order serves every epoch, whatever is dropped
    return Problem(
        A,
        X,
        training,
        y,
        masks,
        vertex_ids,
        share.meta,
        int((X.AX_local if isinstance(X, Propagated) else X).shape[1]),
        classes,
        report,
    )


def _share(config: TrainConfig, comm: Communicator) -> tuple[RankShare, dict[str, Any] | None]:
    """A rank's part of the graph; rank 0 alone looks what the name stands for."""
    name, how = config.data.dataset, config.algorithm.distribution
    parts, (_, shares) = how.parts(comm.size), how.copies(comm.size)
    if from_rank_zero(comm, lambda: _is_cut(name, parts)):
        if config.data.symmetrise:
            raise InputError("--symmetrise: shards are ready-made; symmetrise before sharding")
        if config.algorithm.edges is not None:
            raise InputError("--edges: shards hold vertices by part; give the graph as one file")
        shards = on_every_rank(comm, lambda: open_shards(name))
        comm.check_agreement(f"{name}/meta.json", **asdict(shards.meta))
        _check_vertices(shards.meta.vertices, name)
        share = from_shards(shards, comm, parts, shares=shares)
        return replace(share, data=_one_split(share.data, config.data.split, name)), None
    opened = on_rank_zero(comm, lambda: _opened(config, parts))
    source, labels, edges, report = (None,) * 4 if opened is None else opened
    split = config.data.split
    return scatter(source, labels, comm, parts, split, shares=shares, edge_labels=edges), report


def _is_cut(name: str, blocks: int) -> bool:
    """Whether this is a directory of parts; one that is not cut yet is like any other data set."""
    return is_graph_directory(name) and (blocks == 1 or open_shards(name).meta.parts > 1)


def _opened(
    config: TrainConfig, parts: int
) -> tuple[GraphSource, Int32Array, Int32Array | None, dict[str, Any] | None]:
    """The graph, of which features are still to be read, and its partitions, for rank 0."""
    data = config.data
    with memory_for(data.dataset), ProgressBar() as progress:
        source = open_source(data.dataset, data.data_dir, progress=progress)
        _check_vertices(source.meta.vertices, data.dataset)
        _one_split(source.rows(slice(0, 0)), data.split, data.dataset)
        if data.symmetrise:
            source = MemorySource(source.graph().symmetrised())
        structure, file = source.structure(), config.algorithm.edges
        edges = None if file is None else read_edges(file, structure.nnz, parts)
        labels, report = _partition(config, structure, parts)
        return source, labels, edges, report


def _partition(config: TrainConfig, A: CSR, parts: int) -> tuple[Int32Array, dict[str, Any] | None]:
    method, how = config.algorithm.partition, config.algorithm
    if method not in METHODS:
        if os.path.exists(method):
            return read_labels(method, A.shape[0], parts), None
        known = ", ".join(METHODS)
        raise InputError(
            f"--partition {method}: neither a file nor one of {known}{meant(method, METHODS)}"
        )
    # Only gvb knows what is sent where the cheaper of rows and columns is.
    objective: Objective = "cover" if how.cover == "minimum" and method == "gvb" else "column"
    labels, report = partition(
        add_self_loops(A),
        parts,
        method=method,
        objective=objective,
        imbalance=how.imbalance,
        seed=config.training.seed,
    )
    return labels, {**report, "objective": objective}


def _check_vertices(vertices: int, name: str) -> None:
    if not vertices:
        raise InputError(f"{name}: a graph without vertices")


def _one_split(data: Data, split: int, name: str) -> Data:
    """The same with masks that are vectors."""
    for mask in (data.train_mask, data.val_mask, data.test_mask):
        if mask is not None and mask.dim() == 2 and not mask.shape[1]:
            raise InputError(f"{name}: masks without columns; there is no split to train on")
    return data.select_split(split)


def _matrices(
    config: TrainConfig, share: RankShare, mesh: Mesh, labelled: Tensor
) -> tuple[DistMatrix, Layered | None]:
    """The whole matrix, and plans for layers that do with less. Collective."""
    assert share.adjacency is not None
    how = config.algorithm
    block, own_normalisation = share.adjacency, OWN_NORMALISATION[config.model.model]
    if config.model.model == "gcn":
        block = add_self_loops(block, share.layout.range(mesh.rank)[0])
    edge_labels = _edge_labels(share, block, mesh.rank)
    asked = config.data.normalisation
    row_scale, own_scale = degree_scales(block, own_normalisation if asked == "auto" else asked)
    block = block.with_scales(row_scale, None)
    A = DistMatrix.build(
        block,
        share.layout,
        mesh,
        algorithm=how.distribution,
        column_scale=own_scale,
        edge_labels=edge_labels,
        overlap=how.overlap,
    )
    return A, layer_plans(
        config,
        block,
        A,
        column_scale=own_scale,
        edge_labels=edge_labels,
        wanted=labelled.nonzero()[:, 0],
        propagated=_propagates(config, isinstance(share.data.x, CSR)),
    )


def _edge_labels(share: RankShare, block: CSR, rank: int) -> Tensor | None:
    """The rank of each nonzero of a block that may have got self-loops, which stay here."""
    if share.edge_labels is None:
        return None
    assert share.adjacency is not None
    first = share.layout.range(rank)[0]
    marked = share.adjacency.with_values(share.edge_labels.float())
    if block.nnz > marked.nnz:
        marked = add_self_loops(marked, first)
    assert marked.values is not None
    row = torch.arange(first, first + block.shape[0]).repeat_interleave(block.row_lengths)
    return torch.where(block.indices == row, rank, marked.values.int())


def _features(config: TrainConfig, share: RankShare) -> Tensor | CSR:
    X, norm = share.data.x, config.data.feature_norm
    if X is None:
        width = config.data.random_features
        if not width:
            raise InputError(
                f"{share.meta.name} has no features; --random-features F makes some up"
            )
        return _random_features(share.vertex_ids, width, config.training.seed)
    if norm == "row" or (norm == "auto" and share.meta.bag_of_words):
        return row_normalise_features(X, in_place=True)
    return X


def _random_features(vertex_ids: Tensor, features: int, seed: int) -> Tensor:
    check_memory(f"--random-features {features}", 4 * len(vertex_ids) * features)
    X = torch.empty(len(vertex_ids), features)
    # A few columns at a time: the draws are made in 64 bits.
    for first in range(0, features, 8):
        width = min(8, features - first)
        draws = uniform(vertex_ids.numpy(), seed, f"x{first}", width)
        X[:, first : first + width] = torch.from_numpy(draws)
    return X


def _propagates(config: TrainConfig, sparse: bool) -> bool:
    """Whether A·X is made once. Sparse features would fill in; for ghosts they have to."""
    how = config.algorithm
    if how.order != "auto" or config.model.drops_features:
        return False
    return bool(how.ghosts) or not sparse


def _ready(
    config: TrainConfig, A: DistMatrix, X: Tensor | CSR, device: torch.device
) -> Tensor | CSR | Propagated:
    """Features as the first layer takes them."""
    how = config.algorithm
    propagates = _propagates(config, isinstance(X, CSR))
    if isinstance(X, CSR) and (how.order == "paper" or propagates):
        why = "--order paper" if how.order == "paper" else "--ghosts 1"
        rows, width = X.shape
        check_memory(f"{why} with dense features, {rows} × {width}", 4 * rows * width)
        X = densified(X.to(device))
    X = X.to(device)
    if not propagates or not isinstance(X, Tensor):
        return X
    return propagate_(A, X, keep=config.model.model != "gcn")


def _labels(config: TrainConfig, share: RankShare) -> tuple[Tensor, int]:
    """Classes of this rank's vertices, and how many classes there are."""
    if share.data.y is not None:
        return share.data.y, share.meta.classes
    classes = config.data.random_classes
    if not classes:
        raise InputError(f"{share.meta.name} has no labels; --random-classes C makes some up")
    draws = uniform(share.vertex_ids.numpy(), config.training.seed, "y")
    return torch.from_numpy((draws * classes).astype(np.int64)), classes


def _masks(config: TrainConfig, share: RankShare, y: Tensor) -> list[Tensor]:
    data = share.data
    masks = [data.train_mask, data.val_mask, data.test_mask]
    if masks[0] is None:
        return list(seeded_split(share.vertex_ids, y, config.training.seed))
    return [torch.zeros_like(masks[0]) if mask is None else mask for mask in masks]
