"""gvb: multilevel partitioning that lowers total and maximum communication volume together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn import _native
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.partition.adjacency import (
    Int32Array,
    Int64Array,
    check_columns,
    check_threads,
    checked_arrays,
)
from spgnn.partition.labels import check_labels

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
        Columns, in [0, n), in any order; duplicates count once, the diagonal may be missing. int64
        ones are copied.
    parts : int
        k, in [1, min(n, 65536)].
    weights : int64 [n] or [n, m]
        Non-negative vertex weights, one column per balance constraint; less than 2⁶⁰ in all.
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
    begin, columns = checked_arrays(indptr, indices)
    n = len(begin) - 1
    if n < 1:
        raise InputError("the graph has no vertices: indptr must hold n + 1 > 1 entries")
    if n >= 2**31 - 1:
        raise InputError(f"gvb takes fewer than 2^31 - 1 vertices, got {n}; use method stream")
    check_columns(columns, n)
    if not _native.is_canonical(begin, columns):
        ones = np.ones(len(columns), np.bool_)
        A = sp.csr_array((ones, columns, begin), shape=(n, n), copy=True)
        A.sum_duplicates()
        begin, columns = checked_arrays(A.indptr, A.indices)
    parts = check_integer("parts", parts, 1, min(n, MAX_PARTS))
    vertex_weights = _check_weights(weights, n)
    limits = part_bounds(vertex_weights, parts, imbalance)
    check_choice("preset", preset, PRESETS)
    check_choice("objective", objective, get_args(Objective))
    options = _native.GvbOptions()
    options.parts = parts
    options.max_weight = limits.tolist()
    options.seed = check_integer("seed", seed, 0, 2**64 - 1)
    options.receive = bool(receive)
    options.threads = check_threads(threads)
    for name, value in PRESETS[preset].items():
        setattr(options, name, value)
    # A row heavier than a part may be fills one alone; the others keep the bound.
    capped = np.minimum(vertex_weights, limits).ravel()
    start = None if initial is None else check_labels(initial, n, parts)[0]
    cover = objective == "cover"
    return np.asarray(
        _native.gvb_partition(begin, columns, capped, options, cover, start, progress)
    )


def part_bounds(weights: npt.ArrayLike, parts: int, imbalance: npt.ArrayLike) -> Int64Array:
    """The largest weight a part may have, int64 [m]: (1 + imbalance) · total / k, rounded down.

    Never below total / k rounded up. A single row above a bound makes it impossible for the part
    that holds this row, and for no other.
    """
    totals = np.atleast_2d(np.asarray(weights).T).sum(axis=1, dtype=np.int64)
    try:
        slack = np.asarray(imbalance, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"imbalance must be a number, got {type(imbalance).__name__}") from None
    if slack.ndim > 1 or (slack.ndim == 1 and len(slack) != len(totals)):
        raise InputError(f"imbalance must be one number or {len(totals)}, one per constraint")
    if not np.isfinite(slack).all() or (slack < 0).any():
        raise InputError(f"imbalance must be at least 0, got {imbalance!r}")
    share = np.floor(np.minimum(totals * (1 + np.minimum(slack, 1e12)) / parts, 2.0**62))
    bounds: Int64Array = np.maximum(share.astype(np.int64), -(-totals // parts))
    return bounds


def _check_weights(weights: npt.ArrayLike, n: int) -> Int64Array:
    array = np.asarray(weights)
    table = array[:, None] if array.ndim == 1 else array
    if table.ndim != 2 or len(table) != n or not table.shape[1] or table.dtype.kind not in "iuf":
        raise InputError(
            f"weights must be integers, [{n}] or [{n}, m], got {array.dtype} {list(array.shape)}"
        )
    if not (table >= 0).all():
        raise InputError("weights must not be negative")
    if table.sum(axis=0, dtype=np.float64).max() >= 2**60:
        raise InputError("weights must be less than 2^60 in all")
    whole: Int64Array = np.ascontiguousarray(table, dtype=np.int64)
    if not (whole == table).all():
        raise InputError("weights must be integers")
    return whole
