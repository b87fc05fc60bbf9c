"""`partition`, and its methods: each takes a Problem and returns labels, int32 [vertices]."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError, check_choice, check_integer, check_number, memory_for
from spgnn.files import AnyPath
from spgnn.layout import Int32Array
from spgnn.machine import Machine
from spgnn.partition.labels import check_fixed, check_labels, check_shares
from spgnn.partition.morton import morton
from spgnn.partition.ours import block, random
from spgnn.partition.packages import PACKAGES, imported
from spgnn.partition.places import in_places, kinds_of, levels_of
from spgnn.partition.problem import (
    LARGEST_SEED,
    PRESETS,
    Adjacency,
    Problem,
    balanced_weights,
    check_parts,
    check_threads,
    check_weights,
    checked_mask,
)
from spgnn.partition.volume import Report, excess_of_maximum, part_weights, report
from spgnn.progress import Progress
from spgnn.registry import LARGEST_IMBALANCE, MORTON, Objective, Preset
from spgnn.registry import METHODS as REGISTERED

METHODS = REGISTERED
OURS = {"gvb": get_args(Objective), "stream": ("both", "send")}  # and their objectives
# The methods that take fixed vertices.
FIXING = (*OURS, "kahypar", "mtkahypar", "mtkahypar-deterministic", "block", "random")
# Methods whose parts keep their numbers: runs of vertices, and parts that share what they need.
_NUMBERED = ("block", "random", "pagraph")


def partition(
    A: Any,
    k: int,
    method: str = "gvb",
    *,
    objective: Objective = "both",
    imbalance: float = 0.05,
    seed: int = 0,
    preset: Preset = "default",
    balance: Sequence[str] = ("nnz",),
    train_mask: npt.NDArray[np.bool_] | None = None,
    weights: npt.ArrayLike | None = None,
    shares: npt.ArrayLike | None = None,
    fixed: npt.ArrayLike | None = None,
    initial: npt.ArrayLike | None = None,
    nodes: int | None = None,
    machine: Machine | AnyPath | None = None,
    minimum: bool | None = None,
    threads: int | None = None,
    positions: npt.ArrayLike | None = None,
    hops: int = 2,
    progress: Progress | None = None,
) -> tuple[Int32Array, Report]:
    """Give each vertex of a square matrix to one of k parts; docs/partition.md has the methods.

    Parameters
    ----------
    A : SciPy sparse matrix, CSR block or graph on disk, [n, n]
        Row v needs the rows of H that its columns name. Directed patterns are taken as they are.
    k : int
        At most 65,536, or four times as many as vertices; parts stay empty where k > n.
    method : str
        One of `METHODS`, or ``"morton"``, which takes `positions`, real numbers [n, 2] or [n, 3].
    objective, preset, nodes, machine
        As of the command; `machine` may be a file of ``spgnn machine``.
    imbalance : float
        Allowed excess of the heaviest part over the average, 0.05 = 5 %; at most 1.
    seed : int
        Not negative; the same seed gives the same labels.
    balance : sequence of {"nnz", "vertices", "train"}
        What every part gets an equal share of. More than one with gvb only.
    train_mask : bool [n], optional
        For ``balance="train"``, and for pagraph, which looks at neighbourhoods of so many `hops`.
    weights : real numbers [n], optional
        What every part gets an equal share of, in place of `balance`; not negative. Fractions, and
        integers whose sum passes 2**53, are rounded to parts of 2**50 of the sum.
    shares : positive numbers [k], optional
        A part's share of the work, beside those of the others. Equal by default.
    fixed : integers in [−1, k), [n], optional
        The part that a vertex must be in, −1 where any will do. What they make too heavy stays so.
    initial : integers in [0, k), [n], optional
        A partition to refine (gvb and stream). Its parts keep their numbers, without `nodes`.
    minimum : bool, optional
        Whether the report counts minimum covers. By default only where A is in memory.
    threads : int, optional
        By default all cores this process may run on; at most 1024.
    progress : callable (stage, done, all), optional

    Returns
    -------
    labels : int32 [n]
    report : dict
        As `report`, with the method, its seconds, ``weight_imbalance`` (of what was balanced), and
        ``imbalance_asked``/``imbalance_met``.

    Raises
    ------
    InputError
        If an argument is wrong, the method cannot do what is asked, or its package is missing.
    MemoryError
        Says for what.
    """
    check_choice("method", method, (*METHODS, MORTON))
    if str(objective) == "column":
        raise InputError("objective column is now both (the default), or send for sent rows alone")
    check_choice("objective", objective, get_args(Objective))
    check_choice("preset", preset, PRESETS)
    adjacency = Adjacency.of(A)
    n, parts = adjacency.vertices, check_parts(k, adjacency.vertices)
    nodes, outside = levels_of(machine, parts, nodes)
    start = None if initial is None else check_labels(initial, n, k)[0]
    pinned = None if fixed is None else check_fixed(fixed, n, parts)
    if start is not None and pinned is not None:
        start = np.where(pinned >= 0, pinned, start)
    exact: npt.NDArray[Any]
    if weights is None:
        exact = whole = balanced_weights(adjacency, balance, train_mask)
    else:
        relative, counts = check_weights(weights, n)
        exact, whole = relative[:, None], counts[:, None]
        if n and not exact.any():
            raise InputError("weights are all 0; leave them out, or weigh a vertex")
    problem = Problem(
        adjacency,
        parts=parts,
        weights=whole,
        weighted=weights is not None,
        imbalance=check_number("imbalance", imbalance, 0, LARGEST_IMBALANCE),
        seed=check_integer("seed", seed, 0, LARGEST_SEED),
        preset=preset,
        objective=objective,
        targets=np.flatnonzero(checked_mask(adjacency, train_mask, "method pagraph"))
        if method == "pagraph" and train_mask is not None
        else np.arange(n),
        hops=check_integer("hops", hops, 1, 100),
        shares=None if shares is None else check_shares(shares, parts),
        fixed=pinned,
        initial=start,
        threads=check_threads(threads),
        progress=progress,
        nodes=nodes,
        outside=outside,
    )
    options = {"shares": shares, "fixed": fixed, "initial": initial, "positions": positions}
    options["weights"] = weights
    present = {name for name, value in options.items() if value is not None}
    check_method(method, objective, present, whole.shape[1])
    if positions is not None and len(np.asarray(positions)) != n:
        raise InputError(f"positions of {len(np.asarray(positions))} vertices for a graph of {n}")
    kinds = kinds_of(parts, problem.shares, pinned)
    started = time.perf_counter()
    if start is not None and nodes is not None:
        start = in_places(adjacency, start, parts, nodes, problem.threads, kinds=kinds)
        problem = replace(problem, initial=start)
    if positions is not None:
        labels = morton(positions, parts, problem.weight, problem.shares)
    elif parts == 1 or parts >= n or (adjacency.edges == 0 and method not in OURS):
        # Nothing can be chosen but balance, so that no library has to cope with it.
        labels = random(problem) if method == "random" else block(problem)
    else:
        with memory_for(f"method {method} for {adjacency.describe(parts)}"):
            labels = METHODS[method](problem)
            # gvb puts parts on nodes itself, and refined labels keep their numbers.
            stays = problem.node_size > 1 if method == "gvb" else method in _NUMBERED
            if not stays and (nodes is not None or initial is None):
                labels = in_places(adjacency, labels, parts, nodes, problem.threads, kinds=kinds)
    seconds = time.perf_counter() - started
    counting: dict[str, Any] = {"minimum": minimum, "threads": threads, "progress": progress}
    result = report(adjacency, labels, k, shares=problem.shares, nodes=nodes, **counting)
    loads = [part_weights(each, labels, parts) for each in exact.T]
    excess = max(excess_of_maximum(load, problem.shares) for load in loads)
    met = excess <= problem.imbalance + 1e-9
    result |= {"method": method, "seconds": seconds, "weight_imbalance": excess}
    result |= {"objective": objective if method in OURS else None}
    result |= {"imbalance_asked": problem.imbalance, "imbalance_met": met}
    return labels, result


def check_method(
    method: str, objective: Objective, options: Collection[str], balanced: int = 1
) -> None:
    """InputError if a method lacks an option of `partition`, or its package is missing."""
    if objective not in OURS.get(method, ("both",)):
        raise InputError(f"method {method} takes no objective {objective}; use gvb")
    if method == "pagraph" and ("shares" in options or "weights" in options):
        raise InputError("method pagraph makes parts equal and takes no shares or weights; use gvb")
    if "fixed" in options and method not in FIXING:
        raise InputError(f"method {method} takes no fixed vertices; use one of {', '.join(FIXING)}")
    if "initial" in options and method not in OURS:
        raise InputError(f"method {method} cannot refine labels; use gvb or stream")
    if ("positions" in options) != (method == MORTON):
        raise InputError("method morton needs positions, [vertices, 2] or [vertices, 3]; no other")
    if balanced > 1 and method != "gvb":
        raise InputError(f"method {method} balances one weight only; use gvb for more")
    if method in PACKAGES:
        imported(PACKAGES[method])
