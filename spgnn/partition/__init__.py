"""Partitioners of vertices, and exact reports of any partition."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError, check_choice, check_integer, check_number, memory_for
from spgnn.partition.adjacency import (
    LARGEST_IMBALANCE,
    LARGEST_SEED,
    Adjacency,
    Int32Array,
    check_nodes,
    check_parts,
    check_threads,
)
from spgnn.partition.gvb import Objective, Preset
from spgnn.partition.labels import (
    check_labels,
    part_sizes,
    permutation,
    read_labels,
    write_labels,
)
from spgnn.partition.methods import METHODS, OBJECTIVES, PRESETS, Problem, two_level
from spgnn.partition.vertex_cut import cut_vertices
from spgnn.partition.volume import (
    Report,
    count_volumes,
    excess_of_maximum,
    part_weights,
    report,
)
from spgnn.progress import Progress

__all__ = [
    "METHODS",
    "count_volumes",
    "cut_vertices",
    "part_sizes",
    "partition",
    "permutation",
    "read_labels",
    "report",
    "write_labels",
]

BALANCES = ("nnz", "vertices", "train")


def partition(
    A: Any,
    k: int,
    method: str = "gvb",
    *,
    objective: Objective = "column",
    imbalance: float = 0.05,
    seed: int = 0,
    preset: Preset = "default",
    receive: bool = False,
    balance: Sequence[str] = ("nnz",),
    train_mask: npt.NDArray[np.bool_] | None = None,
    initial: npt.ArrayLike | None = None,
    nodes: int | None = None,
    minimum: bool | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> tuple[Int32Array, Report]:
    """Give each vertex of a square matrix to one of k parts.

    Parameters
    ----------
    A : SciPy sparse matrix, CSR block or graph on disk, [n, n]
        Row v needs the rows of H that its columns name. Directed patterns are taken as they are;
        METIS sees A + Aᵀ.
    k : int
        Number of parts, at least 1; parts stay empty where k > n. At most 65,536, or four times as
        many as vertices.
    method : str
        One of `METHODS`; docs/partition.md says which when.
    objective : {"column", "cover"}
        What gvb minimises: rows moved when columns pay, or under minimum vertex covers.
    imbalance : float
        Allowed excess of the heaviest part over the average, 0.05 = 5 %; at most a million.
    seed : int
        Non-negative; the same seed gives the same labels.
    preset : {"fast", "default", "strong"}
        How much time to spend; used by gvb, stream and mtkahypar.
    receive : bool
        Whether gvb also minimises the maximum receive volume.
    balance : sequence of {"nnz", "vertices", "train"}
        What every part gets an equal share of. More than one with gvb only.
    train_mask : bool [n], optional
        The training vertices, for ``balance="train"``.
    initial : integers in [0, k), [n], optional
        A partition to refine (gvb and stream).
    nodes : int, optional
        Partition for as many nodes of k / nodes parts each, which are neighbours in number: first
        into nodes, then each node (gvb). The report says what moves between nodes, and inside.
    minimum : bool, optional
        Whether the report counts minimum covers; see `count_volumes`.
    threads : int, optional
        By default all cores this process may run on; at most 1024.
    progress : callable (stage, done, all), optional

    Returns
    -------
    labels : int32 [n]
    report : Report
        As `report`, with the method, its seconds, and ``imbalance_asked``/``imbalance_met``.

    Raises
    ------
    InputError
        If an argument is wrong, the method cannot do what is asked, or its package is missing.
    MemoryError
        Says for what.
    """
    check_choice("method", method, METHODS)
    check_choice("objective", objective, OBJECTIVES)
    check_choice("preset", preset, PRESETS)
    adjacency = Adjacency.of(A)
    n, parts = adjacency.vertices, check_parts(k, adjacency.vertices)
    problem = Problem(
        adjacency,
        parts=parts,
        weights=np.stack(_balanced_weights(adjacency, balance, train_mask), axis=1),
        imbalance=check_number("imbalance", imbalance, 0, LARGEST_IMBALANCE),
        seed=check_integer("seed", seed, 0, LARGEST_SEED),
        preset=preset,
        objective=objective,
        receive=receive,
        initial=None if initial is None else check_labels(initial, n, k)[0],
        threads=check_threads(threads),
        progress=progress,
    )
    nodes = check_nodes(nodes, parts)
    if method != "gvb" and (objective != "column" or receive):
        raise InputError(f"only method gvb takes objective cover or receive, not {method}")
    if initial is not None and method not in ("gvb", "stream"):
        raise InputError(f"method {method} cannot refine labels; use gvb or stream")
    if nodes is not None and (method != "gvb" or initial is not None):
        raise InputError("nodes needs method gvb, and no labels to refine")
    started = time.perf_counter()
    if parts == 1 or parts >= n or adjacency.edges == 0:
        # Nothing can be chosen, so that no library has to cope with it.
        labels = METHODS["random" if method == "random" else "block"](problem)
    else:
        with memory_for(f"method {method} for {adjacency.describe(parts)}"):
            if nodes is not None and 1 < nodes < parts:
                labels = two_level(problem, nodes)
            else:
                labels = METHODS[method](problem)
    seconds = time.perf_counter() - started
    result = report(
        adjacency, labels, k, nodes=nodes, minimum=minimum, threads=threads, progress=progress
    )
    heaviest = max(
        excess_of_maximum(part_weights(weights, labels, parts)) for weights in problem.weights.T
    )
    result["method"] = method
    result["seconds"] = seconds
    result["imbalance_asked"] = problem.imbalance
    result["imbalance_met"] = heaviest <= problem.imbalance + 1e-9
    return labels, result


def _balanced_weights(
    adjacency: Adjacency, balance: Sequence[str], train_mask: npt.NDArray[np.bool_] | None
) -> list[npt.NDArray[np.int64]]:
    """One vector per balanced quantity, int64 [vertices]."""
    names = balance.split(",") if isinstance(balance, str) else balance
    if not isinstance(names, Sequence) or not names:
        raise InputError(f"balance must name one or more of {', '.join(BALANCES)}")
    columns = []
    for name in names:
        check_choice("balance", name, BALANCES)
        if name == "nnz":
            columns.append(adjacency.row_lengths)
        elif name == "vertices":
            columns.append(np.ones(adjacency.vertices, np.int64))
        else:
            wanted = f"balance train needs a train mask, bool [{adjacency.vertices}]; the graph has"
            if train_mask is None:
                raise InputError(f"{wanted} none")
            mask = np.asarray(train_mask)
            if mask.shape != (adjacency.vertices,) or mask.dtype != np.bool_:
                raise InputError(f"{wanted} {mask.dtype} {list(mask.shape)}")
            columns.append(mask.astype(np.int64))
    if len(set(names)) != len(names):
        raise InputError(f"balance names a quantity twice: {', '.join(names)}")
    return columns
