"""gvb: multilevel partitioning that lowers total and maximum communication volume together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn.errors import InputError
from spgnn.partition import _gvb

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Objective = Literal["column", "cover"]
Preset = Literal["fast", "default", "strong"]

MAX_PARTS = 1 << 16

# What is not named has the default of Options in options.hpp.
PRESETS: Mapping[str, Mapping[str, int]] = {
    "fast": {"starts": 1, "cycles": 0, "peak_rounds": 1},
    "default": {},
    "strong": {
        "starts": 8,
        "cycles": 2,
        "search_passes": 5,
        "search_budget": 40,
        "patience": 200,
        "greedy_rounds": 6,
    },
}


def gvb(
    indptr: npt.ArrayLike,
    indices: npt.ArrayLike,
    parts: int,
    *,
    weights: npt.ArrayLike,
    imbalance: npt.ArrayLike,
    seed: int = 0,
    preset: Preset = "default",
    objective: Objective = "column",
    receive: bool = False,
    initial: npt.ArrayLike | None = None,
    threads: int = 1,
    progress: Callable[[str, float], None] | None = None,
) -> Int32Array:
    """Partition the vertices of a square sparse pattern.

    The model has a net per column v: v and the rows with a nonzero there. With λ_v the number of
    parts among them, the part of v sends λ_v − 1 rows. Several first partitions minimise the cut of
    a weighted graph that approximates this (multilevel k-way, Karypis & Kumar 1998), one bisects
    the nets themselves; refined for volume, they are combined two by two in V-cycles (Andre, Schlag
    & Schulz 2018). Refinement prices each part's sends by how far they lie above the average (after
    Acer, Selvitopi, Aykanat 2016, section 4), in the end by how close they are to the maximum.

    Parameters
    ----------
    indptr : int64 [n + 1]
        CSR row starts; row = destination.
    indices : int32 or int64 [nnz]
        Columns, in [0, n), in any order; duplicates count once, the diagonal may be missing.
    parts : int
        k, in [1, min(n, 65536)].
    weights : int64 [n] or [n, m]
        Non-negative vertex weights, one column per balance constraint.
    imbalance : float or float [m]
        A part may weigh (1 + imbalance) · total / k in each constraint; see `part_bounds`.
    seed : int
        The labels are a function of the arguments, on any number of threads.
    preset : {"fast", "default", "strong"}
    objective : {"column", "cover"}
        What the exchange moves: whole columns, or a minimum vertex cover of every block.
    receive : bool
        Balance received rows as well as sent rows.
    initial : int [n], optional
        Labels to refine; the result is never worse than these where they keep the bounds.
    threads : int
        At most as many as the preset has starts are used.
    progress : callable (stage, fraction), optional

    Returns
    -------
    int32 [n]
        Labels in [0, k).

    Raises
    ------
    InputError
        If an argument is out of range or the arrays contradict each other.
    """
    begin, columns = _pattern(indptr, indices)
    n = len(begin) - 1
    parts = _parts(parts, n)
    vertex_weights = _weights(weights, n)
    limits = part_bounds(vertex_weights, parts, imbalance)
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    if objective not in ("column", "cover"):
        raise InputError(f"objective must be column or cover, got {objective!r}")
    options = _gvb.Options()
    options.parts = parts
    options.max_weight = limits.tolist()
    options.seed = int(seed) % 2**64
    options.receive = bool(receive)
    options.threads = threads
    for name, value in PRESETS[preset].items():
        setattr(options, name, value)
    # A row heavier than a part may be fills one alone; the others keep the bound.
    capped = np.minimum(vertex_weights, limits)
    start = None if initial is None else _initial(initial, n, parts)
    return np.asarray(
        _gvb.partition(
            begin, columns, capped.ravel(), options, objective == "cover", start, progress
        )
    )


def part_bounds(weights: npt.ArrayLike, parts: int, imbalance: npt.ArrayLike) -> Int64Array:
    """The largest weight a part may have, int64 [m]: (1 + imbalance) · total / k, rounded down.

    Never below total / k rounded up. A single row above a bound makes it impossible for the part
    that holds this row, and for no other.

    Parameters
    ----------
    weights : int64 [n, m]
    parts : int
    imbalance : float or float [m], at least 0

    Raises
    ------
    InputError
        If `imbalance` has the wrong length or is negative.
    """
    totals = np.atleast_2d(np.asarray(weights).T).sum(axis=1, dtype=np.int64)
    slack = np.asarray(imbalance, dtype=np.float64)
    if slack.ndim > 1 or (slack.ndim == 1 and len(slack) != len(totals)):
        raise InputError(f"imbalance must be one number or {len(totals)}, one per constraint")
    if not np.isfinite(slack).all() or (slack < 0).any():
        raise InputError(f"imbalance must be at least 0, got {imbalance!r}")
    share = np.floor(totals * (1 + slack) / parts)
    bounds: Int64Array = np.maximum(share.astype(np.int64), -(-totals // parts))
    return bounds


def _pattern(indptr: npt.ArrayLike, indices: npt.ArrayLike) -> tuple[Int64Array, npt.NDArray[Any]]:
    begin = np.ascontiguousarray(indptr, dtype=np.int64)
    columns = np.ascontiguousarray(indices)
    if columns.dtype not in (np.int32, np.int64):
        columns = columns.astype(np.int64)
    if begin.ndim != 1 or len(begin) < 2:
        raise InputError("the graph has no vertices: indptr must hold n + 1 > 1 entries")
    n = len(begin) - 1
    if n >= 2**31 - 1:
        raise InputError(f"gvb takes fewer than 2^31 - 1 vertices, got {n}; use method stream")
    if begin[0] != 0 or begin[-1] != len(columns) or (np.diff(begin) < 0).any():
        raise InputError(f"indptr must rise from 0 to nnz = {len(columns)}")
    if len(columns) and (columns.min() < 0 or columns.max() >= n):
        worst = columns.max() if columns.max() >= n else columns.min()
        raise InputError(f"column index {worst} outside [0, {n}): the matrix must be square")
    if not _gvb.canonical(begin, columns):
        A = sp.csr_array((np.ones(len(columns), np.bool_), columns, begin), shape=(n, n), copy=True)
        A.sum_duplicates()
        begin, columns = A.indptr.astype(np.int64), A.indices
    return begin, columns


def _parts(parts: int, n: int) -> int:
    if not 1 <= parts <= min(n, MAX_PARTS):
        raise InputError(
            f"parts must lie in [1, {min(n, MAX_PARTS)}] for {n} vertices, got {parts}"
        )
    return int(parts)


def _weights(weights: npt.ArrayLike, n: int) -> Int64Array:
    array = np.ascontiguousarray(weights, dtype=np.int64)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[0] != n or array.shape[1] < 1:
        raise InputError(f"weights must have shape [{n}] or [{n}, m], got {list(array.shape)}")
    if (array < 0).any():
        raise InputError("weights must not be negative")
    return array


def _initial(initial: npt.ArrayLike, n: int, parts: int) -> Int32Array:
    labels = np.asarray(initial)
    if labels.shape != (n,) or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"initial must be integer labels [{n}], got {labels.dtype} {labels.shape}")
    if labels.min() < 0 or labels.max() >= parts:
        worst = labels.max() if labels.max() >= parts else labels.min()
        raise InputError(f"initial holds label {worst} outside [0, {parts})")
    return np.ascontiguousarray(labels, dtype=np.int32)
