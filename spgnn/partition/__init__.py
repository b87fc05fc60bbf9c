"""Who owns which vertex: partitioners, and the truth about any partition."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError
from spgnn.partition.labels import (
    check_labels,
    part_sizes,
    permutation,
    read_labels,
    write_labels,
)
from spgnn.partition.methods import (
    METHODS,
    OBJECTIVES,
    PRESETS,
    Objective,
    Preset,
    Problem,
)
from spgnn.partition.pattern import Int32Array, Int64Array, Pattern, Progress, available_threads
from spgnn.partition.volume import (
    Report,
    Volume,
    Volumes,
    count_volumes,
    excess_of_maximum,
    part_weights,
    report,
)

__all__ = [
    "METHODS",
    "OBJECTIVES",
    "PRESETS",
    "Report",
    "Volume",
    "Volumes",
    "count_volumes",
    "part_sizes",
    "partition",
    "permutation",
    "read_labels",
    "report",
    "write_labels",
]

BALANCES = ("nnz", "vertices", "train")
_METHODS_WITH_INITIAL = ("gvb", "stream")


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
        Number of parts, at least 1; parts stay empty where k > n.
    method : str
        One of `METHODS`; docs/partition.md says which when.
    objective : {"column", "cover"}
        What gvb minimises: rows moved when columns pay, or under minimum vertex covers.
    imbalance : float
        Allowed excess of the heaviest part over the average, 0.05 = 5 %.
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
    minimum : bool, optional
        Whether the report counts minimum covers; see `count_volumes`.
    threads : int, optional
        By default all cores this process may run on.
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
    """
    _check_choice("method", method, METHODS)
    _check_choice("objective", objective, OBJECTIVES)
    _check_choice("preset", preset, PRESETS)
    pattern = Pattern.of(A)
    if k < 1 or k >= 2**31:
        raise InputError(f"the number of parts k must be in [1, 2³¹), got {k}")
    if not (math.isfinite(imbalance) and imbalance >= 0):
        raise InputError(f"imbalance must be a number of at least 0, got {imbalance}")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed must be in [0, 2³¹), got {seed}")
    if method != "gvb" and (objective != "column" or receive):
        raise InputError(f"only method gvb takes objective cover or receive, not {method}")
    if initial is not None:
        if method not in _METHODS_WITH_INITIAL:
            raise InputError(f"method {method} cannot refine labels; use gvb or stream")
        initial, _ = check_labels(initial, pattern.vertices, k)
    problem = Problem(
        pattern,
        k,
        _balanced_weights(pattern, balance, train_mask),
        imbalance,
        seed,
        preset,
        objective,
        receive,
        initial,
        threads or available_threads(),
        progress,
    )
    started = time.perf_counter()
    labels = _trivial(problem, method) if _is_trivial(problem) else METHODS[method](problem)
    seconds = time.perf_counter() - started
    result = report(pattern, labels, k, minimum=minimum, threads=threads, progress=progress)
    heaviest = max(
        excess_of_maximum(part_weights(weights, labels, k)) for weights in problem.weights.T
    )
    result["method"] = method
    result["seconds"] = seconds
    result["imbalance_asked"] = imbalance
    result["imbalance_met"] = heaviest <= imbalance + 1e-9
    return labels, result


def _check_choice(name: str, value: str, choices: Any) -> None:
    if value not in choices:
        raise InputError(f"unknown {name} '{value}'; choose from {', '.join(choices)}")


def _balanced_weights(
    pattern: Pattern, balance: Sequence[str], train_mask: npt.NDArray[np.bool_] | None
) -> Int64Array:
    """One column per balanced quantity, int64 [vertices, len(balance)]."""
    if isinstance(balance, str):
        balance = balance.split(",")
    if not balance or len(set(balance)) != len(balance):
        raise InputError("balance must name one or more different quantities")
    columns = []
    for name in balance:
        _check_choice("balance", name, BALANCES)
        if name == "nnz":
            columns.append(pattern.row_lengths)
        elif name == "vertices":
            columns.append(np.ones(pattern.vertices, np.int64))
        else:
            if train_mask is None or np.shape(train_mask) != (pattern.vertices,):
                raise InputError(
                    f"balance train needs a train mask, bool [{pattern.vertices}]; the graph has "
                    + ("none" if train_mask is None else f"one of shape {np.shape(train_mask)}")
                )
            columns.append(np.asarray(train_mask, dtype=np.int64))
    return columns[0][:, None] if len(columns) == 1 else np.stack(columns, axis=1)


def _is_trivial(problem: Problem) -> bool:
    """Where nothing can be chosen or nothing moves, so that no library has to cope with it."""
    parts, pattern = problem.parts, problem.pattern
    return parts == 1 or parts >= pattern.vertices or pattern.edges == 0


def _trivial(problem: Problem, method: str) -> Int32Array:
    return METHODS["random" if method == "random" else "block"](problem)
