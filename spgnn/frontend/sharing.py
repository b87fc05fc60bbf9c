"""From a graph that rank 0 can read, or a directory of parts, to every rank's share of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from spgnn.comm import Communicator, on_every_rank, on_rank_zero
from spgnn.data import GraphSource, open_shards
from spgnn.data.distribute import RankShare, from_shards, scatter
from spgnn.data.graph import VertexData
from spgnn.data.normalise import add_self_loops
from spgnn.data.shards import is_graph_directory
from spgnn.data.source import MemorySource
from spgnn.data.splits import seeded_split
from spgnn.errors import InputError, memory_for, suggestion
from spgnn.exchange import Algorithm
from spgnn.partition import METHODS, partition, read_labels
from spgnn.partition.adjacency import Int32Array
from spgnn.partition.gvb import Objective
from spgnn.partition.labels import check_labels, read_edge_labels
from spgnn.progress import ProgressBar
from spgnn.sparse import CSR

Data = TypeVar("Data", bound=VertexData)


@dataclass(frozen=True, eq=False)
class Placement:
    """Which rank gets which vertices.

    Attributes
    ----------
    algorithm : Algorithm
    partition : str or int [n]
        A method, a file of labels, or on rank 0 the labels themselves.
    edges : str, optional
        A file with the part of each nonzero, for a vertex cut.
    imbalance : float
    balance : tuple of {"nnz", "vertices", "train"}
        What every part gets an equal share of.
    seed : int
    symmetrise : bool
        Make a directed graph undirected before it is partitioned.
    split : int, optional
        Keep only this column of masks with several.
    """

    algorithm: Algorithm
    partition: str | npt.ArrayLike = "gvb"
    edges: str | None = None
    imbalance: float = 0.05
    balance: tuple[str, ...] = ("nnz",)
    seed: int = 0
    symmetrise: bool = False
    split: int | None = 0


def is_cut(name: str, parts: int) -> bool:
    """Whether this is a directory of parts; one that is not cut yet is like any other data set."""
    return is_graph_directory(name) and (parts == 1 or open_shards(name).meta.parts > 1)


def opened_share(name: str, how: Placement, comm: Communicator) -> RankShare:
    """Open the part of this rank of a graph that is cut already. Collective.

    Raises
    ------
    InputError
        On all ranks, if anything about the directory is wrong.
    """
    if how.symmetrise:
        raise InputError("--symmetrise: shards are ready-made; symmetrise before sharding")
    if how.edges is not None:
        raise InputError("--edges: shards hold vertices by part; give the graph as one file")
    parts, (_, shares) = how.algorithm.parts(comm.size), how.algorithm.copies(comm.size)
    shards = on_every_rank(comm, lambda: open_shards(name))
    comm.check_agreement(f"{name}/meta.json", **asdict(shards.meta))
    _check_vertices(shards.meta.vertices, name)
    share = from_shards(shards, comm, parts, shares=shares)
    return replace(share, data=_one_split(share.data, how.split, name))


def scattered_share(
    name: str, open_graph: Callable[[], GraphSource], how: Placement, comm: Communicator
) -> tuple[RankShare, dict[str, Any] | None]:
    """Receive the part of this rank of a graph that rank 0 opens and partitions. Collective.

    Parameters
    ----------
    name : str
        What messages call the graph.
    open_graph : callable
        Called on rank 0.
    how : Placement
    comm : Communicator
        All ranks.

    Returns
    -------
    share : RankShare
    report : dict or None
        What the partitioner predicted, where it was asked (rank 0).

    Raises
    ------
    InputError
        On all ranks, if anything about the graph or the partition is wrong.
    """
    parts, (_, shares) = how.algorithm.parts(comm.size), how.algorithm.copies(comm.size)
    opened = on_rank_zero(comm, lambda: _opened(name, open_graph, how, parts))
    source, labels, edges, report = (None,) * 4 if opened is None else opened
    share = scatter(source, labels, comm, parts, how.split, shares=shares, edge_labels=edges)
    return share, report


def _opened(
    name: str, open_graph: Callable[[], GraphSource], how: Placement, parts: int
) -> tuple[GraphSource, Int32Array, Int32Array | None, dict[str, Any] | None]:
    """The graph, of which features are still to be read, and its partitions, for rank 0."""
    with memory_for(name):
        source = open_graph()
        _check_vertices(source.meta.vertices, name)
        _one_split(source.rows(slice(0, 0)), how.split, name)
        if how.symmetrise:
            source = MemorySource(source.graph().symmetrised())
        structure = source.structure()
        edges = None if how.edges is None else read_edge_labels(how.edges, structure.nnz, parts)
        mask = _training_mask(source, how) if "train" in how.balance else None
        labels, report = _labels(how, structure, parts, mask)
        return source, labels, edges, report


def _training_mask(source: GraphSource, how: Placement) -> npt.NDArray[np.bool_]:
    """Training vertices of the whole graph, those of the seeded split if it names none."""
    masks, labels = [], []
    for _, piece in source.pieces():
        one = _one_split(piece, how.split or 0, source.meta.name)
        masks.append(one.train_mask)
        labels.append(one.y)
    if masks[0] is not None:
        return torch.cat([mask for mask in masks if mask is not None]).numpy()
    ids = source.meta.vertices if source.vertex_ids is None else source.vertex_ids
    y = None if labels[0] is None else torch.cat([part for part in labels if part is not None])
    return seeded_split(ids, y, how.seed)[0].numpy()


def _labels(
    how: Placement, A: CSR, parts: int, mask: npt.NDArray[np.bool_] | None
) -> tuple[Int32Array, dict[str, Any] | None]:
    method = how.partition
    if not isinstance(method, str):
        return check_labels(method, A.shape[0], parts)[0], None
    if method not in METHODS:
        if os.path.exists(method):
            return read_labels(method, A.shape[0], parts), None
        known = ", ".join(METHODS)
        raise InputError(
            f"--partition {method}: neither a file nor one of {known}{suggestion(method, METHODS)}"
        )
    # Only gvb knows what is sent where the cheaper of rows and columns is.
    minimum = how.algorithm.cover == "minimum" and method == "gvb"
    objective: Objective = "cover" if minimum else "column"
    with ProgressBar() as progress:
        labels, report = partition(
            add_self_loops(A),
            parts,
            method=method,
            objective=objective,
            imbalance=how.imbalance,
            balance=how.balance,
            train_mask=mask,
            seed=how.seed,
            # Nobody else can make a partition of two levels.
            nodes=how.algorithm.nodes(parts) if method == "gvb" else None,
            progress=progress,
        )
    return labels, {**report, "objective": objective}


def _check_vertices(vertices: int, name: str) -> None:
    if not vertices:
        raise InputError(f"{name}: a graph without vertices")


def _one_split(data: Data, split: int | None, name: str) -> Data:
    """The same with masks that are vectors."""
    if split is None:
        return data
    for mask in (data.train_mask, data.val_mask, data.test_mask):
        if mask is not None and mask.dim() == 2 and not mask.shape[1]:
            raise InputError(f"{name}: masks without columns; there is no split to train on")
    return data.select_split(split)
