"""The methods: each takes a Problem and returns labels, int32 [vertices]."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from spgnn import _native
from spgnn.errors import InputError, check_choice, check_integer, check_number, memory_for
from spgnn.files import AnyPath
from spgnn.layout import Float64Array, Int32Array, Int64Array, RowLayout
from spgnn.machine import Machine, read_machine
from spgnn.partition.adjacency import (
    LARGEST_IMBALANCE,
    LARGEST_SEED,
    Adjacency,
    check_columns,
    check_nodes,
    check_parts,
    check_threads,
    part_bounds,
    without_duplicates,
)
from spgnn.partition.labels import check_fixed, check_labels, check_shares
from spgnn.partition.morton import MORTON, morton
from spgnn.partition.volume import (
    Report,
    count_volumes,
    excess_of_maximum,
    part_weights,
    report,
)
from spgnn.progress import Progress, stage

Objective = Literal["both", "send", "cover"]
Preset = Literal["fast", "default", "strong"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
BALANCES = ("nnz", "vertices", "train")
# What a row to another node counts beside one inside, where no machine file says: about what links
# of GPUs in one node are faster than those between nodes.
OUTSIDE = 8
_MOST_OUTSIDE = 64
OURS = {"gvb": get_args(Objective), "stream": ("both", "send")}  # and their objectives
# The methods that take fixed vertices.
FIXING = (*OURS, "kahypar", "mtkahypar", "mtkahypar-deterministic", "block", "random")


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
    weights: Int64Array | None = None,
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
    """Give each vertex of a square matrix to one of k parts.

    Parameters
    ----------
    A : SciPy sparse matrix, CSR block or graph on disk, [n, n]
        Row v needs the rows of H that its columns name. Directed patterns are taken as they are;
        METIS sees A + Aᵀ.
    k : int
        Parts stay empty where k > n. At most 65,536, or four times as many as vertices.
        gvb takes at most 1,048,576.
    method : str
        One of `METHODS`, or ``"morton"``; docs/partition.md says which when.
    objective : {"both", "send", "cover"}
        What gvb minimises beside the total: the maximum over parts of the larger of rows sent and
        received, or of rows sent alone; or both ways what moves under minimum vertex covers.
    imbalance : float
        Allowed excess of the heaviest part over the average, 0.05 = 5 %; at most a million.
    seed : int
        Non-negative; the same seed gives the same labels.
    preset : {"fast", "default", "strong"}
        How much time to spend; used by gvb, stream, mtkahypar and kaminpar.
    balance : sequence of {"nnz", "vertices", "train"}
        What every part gets an equal share of. More than one with gvb only.
    train_mask : bool [n], optional
        The training vertices, for ``balance="train"`` and method pagraph.
    weights : int64 [n], optional
        What every part gets an equal share of, in place of `balance`; not negative.
    shares : positive numbers [k], optional
        A part's share of the work, beside those of the others: METIS's target weights. Equal by
        default. Not with pagraph.
    fixed : integers in [−1, k), [n], optional
        The part that a vertex must be in, −1 where any will do: hMETIS's fixed vertices. With gvb,
        stream, kahypar, mtkahypar, block and random. What they make too heavy stays so.
    initial : integers in [0, k), [n], optional
        A partition to refine (gvb and stream). Its parts keep their numbers, without `nodes`.
    nodes : int, optional
        Partition for as many nodes of k / nodes parts each, which are neighbours in number. gvb
        minimises what the busiest part moves, a row to another node counted as eight, and what the
        busiest node does; parts of other methods are put on nodes by `place`. The report says what
        moves between nodes, and inside.
    machine : machine file of ``spgnn machine``, optional
        Its bandwidths say what a row to another node counts beside one inside, and its ranks a
        node how many nodes there are, unless `nodes` does.
    minimum : bool, optional
        Whether the report counts minimum covers; see `spgnn.partition.volume.count_volumes`.
    threads : int, optional
        By default all cores this process may run on; at most 1024.
    positions : real numbers [n, 2] or [n, 3], optional
        Where the vertices are, for method morton.
    hops : int
        Of the neighbourhoods that method pagraph looks at: layers of the model.
    progress : callable (stage, done, all), optional

    Returns
    -------
    labels : int32 [n]
    report : dict
        As `report`, with the method, its seconds, and ``imbalance_asked``/``imbalance_met``.

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
    problem = Problem(
        adjacency,
        parts=parts,
        weights=_balanced_weights(adjacency, balance, train_mask)
        if weights is None
        else np.asarray(weights, np.int64)[:, None],
        imbalance=check_number("imbalance", imbalance, 0, LARGEST_IMBALANCE),
        seed=check_integer("seed", seed, 0, LARGEST_SEED),
        preset=preset,
        objective=objective,
        targets=np.flatnonzero(_checked_mask(adjacency, train_mask, "method pagraph"))
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
    if objective not in OURS.get(method, ("both",)):
        raise InputError(f"method {method} takes no objective {objective}; use gvb")
    if problem.shares is not None and method == "pagraph":
        raise InputError("method pagraph makes parts equal and takes no shares; use gvb")
    if pinned is not None and method not in FIXING:
        raise InputError(f"method {method} takes no fixed vertices; use one of {', '.join(FIXING)}")
    if initial is not None and method not in OURS:
        raise InputError(f"method {method} cannot refine labels; use gvb or stream")
    if (positions is None) == (method == MORTON):
        raise InputError("method morton needs positions, [vertices, 2] or [vertices, 3]; no other")
    if positions is not None and len(np.asarray(positions)) != n:
        raise InputError(f"positions of {len(np.asarray(positions))} vertices for a graph of {n}")
    kinds = _kinds(parts, problem.shares, pinned)
    started = time.perf_counter()
    if start is not None and nodes is not None:
        start = _in_places(adjacency, start, parts, nodes, problem.threads, kinds=kinds)
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
                labels = _in_places(adjacency, labels, parts, nodes, problem.threads, kinds=kinds)
    seconds = time.perf_counter() - started
    counting: dict[str, Any] = {"minimum": minimum, "threads": threads, "progress": progress}
    result = report(adjacency, labels, k, shares=problem.shares, nodes=nodes, **counting)
    loads = [part_weights(weights, labels, parts) for weights in problem.weights.T]
    excess = max(excess_of_maximum(load, problem.shares) for load in loads)
    met = excess <= problem.imbalance + 1e-9
    result |= {"method": method, "seconds": seconds}
    result |= {"imbalance_asked": problem.imbalance, "imbalance_met": met}
    return labels, result


def place(
    A: Any,
    labels: npt.ArrayLike,
    k: int | None = None,
    *,
    nodes: int | None = None,
    shares: npt.ArrayLike | None = None,
    fixed: npt.ArrayLike | None = None,
) -> Int32Array:
    """Number parts by place: those that exchange many rows become neighbours in number.

    With `nodes` every node gets k / nodes of them, so that few rows leave the busiest part's node
    and the busiest node.

    Parameters
    ----------
    A : as of `partition`
    labels : integers in [0, k), [n]
        From anywhere.
    k : int, optional
        By default 1 + the largest label.
    nodes : int, optional
    shares : positive numbers [k], optional
        A part's share of the work: only parts of equal shares change numbers.
    fixed : integers in [-1, k), [n], optional
        The part that each vertex must be in, or −1: parts with fixed vertices keep their numbers.

    Returns
    -------
    int32 [n]
        The same parts under other numbers.

    Raises
    ------
    InputError
        If an argument is wrong, or a label differs from the part that its vertex is fixed to.
    """
    adjacency = Adjacency.of(A)
    checked, parts = check_labels(labels, adjacency.vertices, k)
    relative = None if shares is None else check_shares(shares, parts)
    stay = None if fixed is None else check_fixed(fixed, adjacency.vertices, parts)
    if stay is not None and ((stay >= 0) & (stay != checked)).any():
        v = int(np.argmax((stay >= 0) & (stay != checked)))
        raise InputError(f"vertex {v} is fixed to part {stay[v]}, and its label is {checked[v]}")
    nodes = check_nodes(nodes, parts)
    return _in_places(adjacency, checked, parts, nodes, kinds=_kinds(parts, relative, stay))


def levels_of(
    machine: Machine | AnyPath | None, parts: int, nodes: int | None = None
) -> tuple[int | None, int]:
    """The number of nodes, and what a row to another counts beside one inside.

    Raises
    ------
    InputError
        If the machine's nodes do not fit the parts, or it does not know links between nodes.
    """
    nodes = check_nodes(nodes, parts)
    if machine is None:
        return nodes, OUTSIDE
    if not isinstance(machine, Machine):
        machine = read_machine(machine)
    size, links = machine.ranks_a_node, machine.levels
    if links.between is None:
        if nodes is not None and nodes > 1:
            raise InputError(f"machine {machine.name}: knows no links between nodes; leave it out")
        return nodes, OUTSIDE
    if nodes is None:
        if parts > size and parts % size:
            raise InputError(
                f"machine {machine.name}: its {size} ranks a node do not divide the number of "
                f"parts, which is {parts}; give nodes"
            )
        nodes = max(1, parts // size)
    ratio = links.inside.alltoallv.bandwidth / links.between.alltoallv.bandwidth
    return nodes, int(np.clip(round(ratio), 1, _MOST_OUTSIDE))


# Methods whose parts keep their numbers: runs of vertices, and parts that share what they need.
_NUMBERED = ("block", "random", "pagraph")


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to be partitioned, and the options; checked by `partition`.

    `weights` is int64 [vertices, constraints]: what each part's share of must be balanced;
    `targets` are the training vertices, or all. `shares` and `fixed` are None where parts are equal
    and vertices free.
    """

    adjacency: Adjacency
    parts: int
    weights: Int64Array
    imbalance: float
    seed: int
    preset: Preset
    objective: Objective
    targets: Int64Array
    hops: int
    shares: Float64Array | None
    fixed: Int32Array | None
    initial: Int32Array | None
    threads: int
    progress: Progress | None
    nodes: int | None = None
    outside: int = OUTSIDE

    @property
    def node_size(self) -> int:
        """Parts of a node; 1 where all are on one, as where each is on its own."""
        return 1 if self.nodes is None or self.nodes == 1 else self.parts // self.nodes

    @property
    def weight(self) -> Int64Array:
        """The only balanced weight, int64 [vertices]."""
        if self.weights.shape[1] != 1:
            raise InputError("this method balances one weight only; use method gvb for more")
        return self.weights[:, 0]

    @property
    def portions(self) -> Float64Array:
        """One over the share of the work of each part, float64 [parts]: 3 for a third."""
        shares = np.ones(self.parts) if self.shares is None else self.shares
        portions: Float64Array = shares.sum() / shares
        return portions

    def bounds(self, weight: Int64Array) -> list[int]:
        """The most that each part may have of a weight of the vertices."""
        bounds: list[int] = part_bounds(weight.sum(), self.portions, self.imbalance).tolist()
        return bounds


def _balanced_weights(
    adjacency: Adjacency, balance: Sequence[str], train_mask: npt.NDArray[np.bool_] | None
) -> Int64Array:
    names = balance.split(",") if isinstance(balance, str) else balance
    if not isinstance(names, Sequence) or not names:
        raise InputError(f"balance must name one or more of {', '.join(BALANCES)}")
    columns: list[npt.NDArray[Any]] = []
    for name in names:
        check_choice("balance", name, BALANCES)
        if name == "nnz":
            columns.append(adjacency.row_lengths)
        elif name == "vertices":
            columns.append(np.ones(adjacency.vertices, np.int64))
        else:
            columns.append(_checked_mask(adjacency, train_mask, "balance train"))
    if len(set(names)) != len(names):
        raise InputError(f"balance names a quantity twice: {', '.join(names)}")
    return np.stack(columns, axis=1).astype(np.int64, copy=False)


def _checked_mask(
    adjacency: Adjacency, train_mask: npt.NDArray[np.bool_] | None, what: str
) -> npt.NDArray[np.bool_]:
    wanted = f"{what} needs a train mask, bool [{adjacency.vertices}]; the graph has"
    if train_mask is None:
        raise InputError(f"{wanted} none")
    mask = np.asarray(train_mask)
    if mask.shape != (adjacency.vertices,) or mask.dtype != np.bool_:
        raise InputError(f"{wanted} {mask.dtype} {list(mask.shape)}")
    return mask


def block(problem: Problem) -> Int32Array:
    """Runs of equally many consecutive vertices, or as many as the shares say."""
    return _with_fixed(problem, _runs(problem))


def random(problem: Problem) -> Int32Array:
    """Equally many vertices each, drawn at random, or as many as the shares say."""
    return _with_fixed(problem, np.random.default_rng(problem.seed).permutation(_runs(problem)))


def _even(vertices: int, parts: int) -> Int32Array:
    return np.repeat(np.arange(parts, dtype=np.int32), RowLayout.even(vertices, parts).sizes)


def _runs(problem: Problem) -> Int32Array:
    """Labels of the free vertices, rising: what fixed ones leave of each part's share."""
    n, parts, shares, fixed = (
        problem.adjacency.vertices,
        problem.parts,
        problem.shares,
        problem.fixed,
    )
    if fixed is not None:
        taken = np.bincount(fixed[fixed >= 0], minlength=parts)
        shares = np.maximum(n / problem.portions - taken, 0)
        n -= int(taken.sum())
    if shares is None:
        return _even(n, parts)
    sizes = RowLayout(np.array([0, n])).split(parts, shares=shares).sizes if n else 0
    return np.repeat(np.arange(parts, dtype=np.int32), sizes)


def _with_fixed(problem: Problem, free: Int32Array) -> Int32Array:
    if problem.fixed is None:
        return free
    labels = problem.fixed.copy()
    labels[labels < 0] = free
    return labels


def metis(problem: Problem, *, volume: bool = False) -> Int32Array:
    """METIS: least edge cut, or least total volume (k-way only, as METIS has it)."""
    pymetis = _require("pymetis")
    indptr, indices = problem.adjacency.undirected
    # METIS counts the allowed imbalance in thousandths and takes 1 at least.
    options = pymetis.Options(ufactor=max(1, round(problem.imbalance * 1000)), seed=problem.seed)
    if volume:
        options.objtype = int(pymetis.ObjType.VOL)
    index = pymetis.zero_copy_dtype()
    most = max(len(indices), int(problem.weight.sum()))
    if most > np.iinfo(index).max:
        raise InputError(f"this METIS counts in {index} and cannot take {most:,} nonzeros")
    _, labels = pymetis.part_graph(
        problem.parts,
        adjacency=pymetis.CSRAdjacency(indptr.astype(index), indices.astype(index)),
        vweights=problem.weight.astype(index),
        # METIS reads float32, and refuses a share of 0.
        tpwgts=None if problem.shares is None else (1 / problem.portions).clip(1e-30).tolist(),
        recursive=False if volume else None,
        options=options,
    )
    return np.asarray(labels, dtype=np.int32)


def kahypar(problem: Problem) -> Int32Array:
    """KaHyPar, least total volume (km1) of the column-net hypergraph; sequential."""
    library = _require("kahypar")
    nets, pins = _cut_nets(problem.adjacency)
    if len(pins) == 0:  # KaHyPar crashes without nets
        return block(problem)
    # Rows without nonzeros weigh 0, and KaHyPar wants weights of at least 1, as does Mt-KaHyPar.
    weight = np.maximum(problem.weight, 1)
    hypergraph = library.Hypergraph(
        problem.adjacency.vertices,
        len(nets) - 1,
        nets.tolist(),
        pins.tolist(),
        problem.parts,
        [1] * (len(nets) - 1),
        weight.tolist(),
    )
    context = library.Context()
    context.loadINIconfiguration(str(Path(__file__).with_name("kahypar_km1.ini")))
    context.setK(problem.parts)
    context.setEpsilon(problem.imbalance)
    context.setSeed(problem.seed)
    if problem.shares is not None:
        context.setCustomTargetBlockWeights(problem.bounds(weight))
    for v, part in enumerate([] if problem.fixed is None else problem.fixed.tolist()):
        if part >= 0:
            hypergraph.fixNodeToBlock(v, part)
    context.suppressOutput(True)
    library.partition(hypergraph, context)
    blocks = (hypergraph.blockID(v) for v in range(problem.adjacency.vertices))
    return np.fromiter(blocks, np.int32, problem.adjacency.vertices)


def mtkahypar(problem: Problem, *, deterministic: bool = False) -> Int32Array:
    """Mt-KaHyPar, least total volume (km1); `strong` is its quality preset, with flows."""
    library = _require("mtkahypar")
    nets, pins = _cut_nets(problem.adjacency)
    if len(pins) == 0:
        return block(problem)
    initializer = _mtkahypar_threads(problem.threads)
    name = "QUALITY" if problem.preset == "strong" else "" if deterministic else "DEFAULT"
    name = "_".join(filter(None, ("DETERMINISTIC" if deterministic else "", name)))
    context = initializer.context_from_preset(getattr(library.PresetType, name))
    weight = np.maximum(problem.weight, 1)
    context.set_partitioning_parameters(problem.parts, problem.imbalance, library.Objective.KM1)
    if problem.shares is not None:
        context.set_individual_target_block_weights(problem.bounds(weight))
    context.logging = False
    library.set_seed(problem.seed)
    hypergraph = initializer.create_hypergraph(
        context,
        problem.adjacency.vertices,
        len(nets) - 1,
        [net.tolist() for net in np.split(pins, nets[1:-1])],
        weight.tolist(),
        [1] * (len(nets) - 1),
    )
    if problem.fixed is not None:
        hypergraph.add_fixed_vertices(problem.fixed.tolist(), problem.parts)
    return np.asarray(hypergraph.partition(context).get_partition(), dtype=np.int32)


def kaminpar(problem: Problem) -> Int32Array:
    """KaMinPar: least edge cut, in parallel, in little memory."""
    library = _require("kaminpar")
    indptr, indices = problem.adjacency.undirected
    # It takes graphs from files: ParHIP's, all numbers of 64 bits, with weights of vertices alone.
    head = np.array([1, len(indptr) - 1, len(indices)], np.uint64)
    begins = 8 * (len(head) + len(indptr) + indptr.astype(np.uint64))
    with tempfile.NamedTemporaryFile(suffix=".parhip") as file:
        weight = np.maximum(problem.weight, 1)
        for array in (head, begins, indices.astype(np.uint64), weight):
            file.write(array.data)
        file.flush()
        graph = library.load_graph(file.name, library.GraphFileFormat.PARHIP)
    library.reseed(problem.seed % 2**31)
    context = library.context_by_name(problem.preset)
    solver = library.KaMinPar(problem.threads, context)
    # An imbalance of 0 would mean none given to it.
    labels = solver.compute_partition(graph, problem.bounds(weight))
    return np.asarray(labels, dtype=np.int32)


@cache
def _mtkahypar_threads(threads: int) -> Any:
    return _require("mtkahypar").initialize(threads, False)


def _cut_nets(adjacency: Adjacency) -> tuple[Int64Array, Int32Array]:
    """The column nets that can be cut: those with two pins or more."""
    begin, pins = adjacency.column_nets
    sizes = np.diff(begin)
    keep = sizes > 1
    return np.concatenate(([0], np.cumsum(sizes[keep]))), pins[np.repeat(keep, sizes)]


def stream(problem: Problem) -> Int32Array:
    """Our semi-external partitioner, for graphs that do not fit in memory."""
    adjacency = problem.adjacency
    rows = columns = (adjacency.indptr, adjacency.indices)
    # On disk only rows can be read in order: there the matrix is taken to be symmetric.
    if not adjacency.on_disk:
        undirected = _native.symmetrize(*rows)
        row_of = np.repeat(np.arange(adjacency.vertices, dtype=np.int32), adjacency.row_lengths)
        symmetric = len(undirected[1]) == np.count_nonzero(adjacency.indices != row_of)
        del row_of
        if symmetric:
            rows = columns = undirected
        else:
            del undirected
            columns = _native.column_nets(*rows)
    # Passes that cluster, passes that refine.
    effort = {"fast": (3, 2), "default": (5, 5), "strong": (10, 15)}[problem.preset]
    return _native.stream_partition(
        *rows,
        *columns,
        np.ascontiguousarray(problem.weight),
        problem.bounds(problem.weight),
        problem.fixed,
        problem.objective != "send",
        problem.seed,
        *effort,
        problem.initial,
        problem.threads,
        stage(problem.progress, "streaming"),
    )


# gvb --------------------------------------------------------------------------------------------

MAX_PARTS = 1 << 20
# What is not named has the default of Options in cut_partition.hpp.
_EFFORT: dict[Preset, dict[str, float | list[int]]] = {
    "fast": {
        "starts": 1,
        "cycles": 0,
        "peak_rounds": 3,
        "search_passes": 0,
        "search_budget": 1,
        "greedy_rounds": 2,
        "cut_rounds": 3,
        "bisection": [2, 2, 40],  # tries, passes, patience
        "alpha_fine": 0.9,  # no V-cycle for the maximum follows
    },
    "default": {},
    "strong": {
        "starts": 8,
        "cycles": 2,
        "search_passes": 5,
        "coarse_search_passes": 5,
        "search_budget": 40,
        "patience": 200,
        "greedy_rounds": 6,
    },
}


def gvb(problem: Problem) -> Int32Array:
    """Our multilevel partitioner: least total and maximum volume together.

    The model has a net per column v: v and the rows with a nonzero there. With λ_v the number of
    parts among them, the part of v sends λ_v − 1 rows. Several first partitions minimise the cut of
    a weighted graph that approximates this (multilevel k-way, Karypis & Kumar 1998), every second
    of them coarsened inside communities, and one bisects the nets themselves; refined for volume,
    they are combined in V-cycles (Andre, Schlag & Schulz 2018). Refinement prices what
    each part sends and receives by how far that lies above the average (after Acer, Selvitopi,
    Aykanat 2016, section 4), in the end by how close it is to the maximum; and weight close to the
    bounds, or else the parts that move least would be full, and all room where volume is to leave.
    """
    indptr, indices = problem.adjacency.indptr, problem.adjacency.indices
    n = len(indptr) - 1
    if n >= 2**31 - 1:
        raise InputError(f"gvb takes fewer than 2^31 - 1 vertices, got {n}; use method stream")
    check_columns(indices, n)
    if not _native.is_canonical(indptr, indices):
        begin, columns = without_duplicates(indptr, indices)
        indptr, indices = begin.astype(np.int64), columns.astype(np.int32, copy=False)
    limits = part_bounds(problem.weights.sum(axis=0), problem.portions[:, None], problem.imbalance)
    options = _native.GvbOptions()
    options.parts = check_integer("parts of gvb", problem.parts, 1, MAX_PARTS)
    options.max_weight, options.kinds = (
        limits.ravel().tolist(),
        _kinds(problem.parts, problem.shares, problem.fixed).tolist(),
    )
    options.seed, options.receive = problem.seed, problem.objective != "send"
    options.threads = problem.threads
    options.node_size, options.outside = problem.node_size, problem.outside
    for name, value in _EFFORT[problem.preset].items():
        setattr(options, name, value)
    # A row heavier than any part may be fills one alone; the others keep the bound.
    capped = np.minimum(problem.weights, limits.max(axis=0)).ravel()
    progress = problem.progress

    def in_thousandths(what: str, share: float) -> None:
        assert progress is not None
        progress(what, round(1000 * share), 1000)

    return np.asarray(
        _native.gvb_partition(
            indptr,
            indices,
            capped,
            options,
            problem.objective == "cover",
            problem.fixed,
            problem.initial,
            None if progress is None else in_thousandths,
        )
    )


def _kinds(parts: int, shares: Float64Array | None, fixed: Int32Array | None = None) -> Int32Array:
    """Parts of one kind may change numbers: of equal shares, with no vertex fixed."""
    kinds = np.zeros(parts, np.int32)
    if shares is not None:
        kinds[:] = np.unique(shares, return_inverse=True)[1]
    if fixed is not None:
        kinds[np.unique(fixed[fixed >= 0])] = parts + np.arange(len(np.unique(fixed[fixed >= 0])))
    return kinds


def _in_places(
    adjacency: Adjacency,
    labels: Int32Array,
    parts: int,
    nodes: int | None,
    threads: int | None = None,
    *,
    kinds: Int32Array,
) -> Int32Array:
    """The same parts by place; as they are where a graph on disk has more than 1024."""
    size = 1 if nodes is None else parts // nodes
    if adjacency.on_disk:
        blocks = count_volumes(adjacency, labels, parts, threads=threads).column.blocks
        if blocks is None:
            return labels
        places = _native.place_blocks(blocks.ravel(), size, kinds)
    else:
        places = _native.place_parts(adjacency.indptr, adjacency.indices, labels, size, kinds)
    placed: Int32Array = places[labels]
    return placed


def pagraph(problem: Problem) -> Int32Array:
    """PaGraph's: training vertices one by one, each where most of its neighbours already are.

    The score of part i for vertex v (Lin et al., SoCC 2020) is |T_i ∩ IN(v)| · (T/k − |T_i|) /
    |V_i|. T_i are its training vertices so far, IN(v) all that v reaches within `hops`, and V_i
    what all of T_i reach: the vertices that a rank holds under ``--distributed replicated``. Among
    equal scores, the part with fewest training vertices wins. Any other vertex goes to one of the
    parts that hold it, drawn at random; those that none holds make the number of vertices even.
    """
    adjacency, k, targets = problem.adjacency, problem.parts, problem.targets
    indptr, indices, n = adjacency.indptr, adjacency.indices, adjacency.vertices
    labels = np.full(n, -1, np.int32)
    held = np.zeros((k, n), np.bool_)
    trained, sizes = np.zeros(k, np.int64), np.zeros(k, np.int64)
    for turn, v in enumerate(targets):
        if problem.progress is not None and turn % 256 == 0:
            problem.progress("placing training vertices", turn, len(targets))
        reached = frontier = np.array([v])
        for _ in range(problem.hops):
            lengths = indptr[frontier + 1] - indptr[frontier]
            first = indptr[frontier] - np.cumsum(lengths) + lengths
            columns = indices[np.repeat(first, lengths) + np.arange(lengths.sum())]
            frontier = np.setdiff1d(columns.astype(np.int64), reached)
            reached = np.concatenate((reached, frontier))
        near = labels[reached]
        common = np.bincount(near[near >= 0], minlength=k)
        score = common * (len(targets) / k - trained) / np.maximum(sizes, 1)
        best = np.flatnonzero(score == score.max())
        part = best[trained[best].argmin()]
        labels[v] = part
        trained[part] += 1
        sizes[part] += np.count_nonzero(~held[part, reached])
        held[part, reached] = True
    rng, rest = np.random.default_rng(problem.seed), np.flatnonzero(labels < 0)
    largest = np.zeros(len(rest))
    for part in range(k):
        draw = rng.random(len(rest)) * held[part, rest]
        labels[rest[draw > largest]] = part
        largest = np.maximum(largest, draw)
    rest = np.flatnonzero(labels < 0)
    missing = np.maximum(-(-n // k) - np.bincount(labels[labels >= 0], minlength=k), 0)
    labels[rest] = np.repeat(np.arange(k, dtype=np.int32), missing)[: len(rest)]
    return labels


def _require(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"this method needs the package {package}: pip install 'spgnn[partition]'"
        ) from None


METHODS: dict[str, Callable[[Problem], Int32Array]] = {
    "block": block,
    "random": random,
    "metis": metis,
    "metis-volume": partial(metis, volume=True),
    "kahypar": kahypar,
    "mtkahypar": mtkahypar,
    "mtkahypar-deterministic": partial(mtkahypar, deterministic=True),
    "kaminpar": kaminpar,
    "gvb": gvb,
    "stream": stream,
    "pagraph": pagraph,
}
