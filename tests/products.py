"""Oracles 1 and 2: distributed products against a dense reference, and their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice, product

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import maximum_bipartite_matching

from spgnn import CSR, Axes, DistMatrix, Mesh, RowLayout
from spgnn.comm import Communicator, Ledger
from spgnn.exchange import Algorithm, Plan
from spgnn.exchange.needs import COVERS
from spgnn.exchange.plan import Traffic, Volume, carried_by_level
from spgnn.sparse import SUM_DTYPE
from tests.matrices import LAYOUTS, block_row, random_matrix, unchanged, uneven_layout

WIDTHS = (1, 3, 16, 17, 64, 129)
WAYS = [("oblivious", "column"), *(("sparsity-aware", cover) for cover in COVERS)]


# Relative to the sum of absolute products: how far rounding may carry a result.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 0.03}


def by_level(
    plan: Plan,
    axes: Axes,
    rank: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    *,
    node_size: int,
    groups: tuple[int, ...] = (),
    adjoint: bool = False,
) -> dict[str, Traffic]:
    """What one exact product moves inside nodes, and between them."""
    carried = plan.carried(width, dtype, adjoint=adjoint)
    return carried_by_level(carried, axes, rank, group_sizes=(*groups, node_size))


@dataclass(frozen=True)
class Case:
    """One matrix in one layout, multiplied in one way."""

    n: int
    weighted: bool
    scaled: bool
    layout: RowLayout
    exchange: str
    cover: str
    width: int
    dtype: torch.dtype = torch.float64
    density: float = 0.15
    # Rows in each of two buffers, under the schedule "peers"; 0: all at once.
    room: int = 0
    relays: bool = False

    @property
    def schedule(self) -> dict[str, object]:
        """How the matrix is built for it."""
        row = self.width * self.dtype.itemsize
        return {"schedule": "peers", "buffer": 2 * self.room * row} if self.room else {}


def cases(ranks: int) -> Iterator[Case]:
    """Few vertices and many, even and uneven layouts with empty parts, every way to multiply."""
    widths, dtypes = cycle(WIDTHS), cycle((torch.float64, torch.float32, torch.bfloat16))
    relays = cycle((True, False, True, True, False))
    for n, weighted, (exchange, cover) in product((1, 5, 17, 60), (False, True), WAYS):
        for layout in (RowLayout.even(n, ranks), uneven_layout(n, ranks, seed=n)):
            scaled = n % 2 == 1
            case = Case(n, weighted, scaled, layout, exchange, cover, next(widths), next(dtypes))
            yield replace(case, relays=next(relays) and exchange == "sparsity-aware")


def random_case(ranks: int, seed: int) -> tuple[Case, str, int]:
    """Any case, any scheme, and a number of copies that fits the ranks."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice((0, 1, 2, ranks, rng.integers(1, 30), rng.integers(30, 120))))
    way = WAYS[rng.integers(len(WAYS))]
    case = Case(
        n,
        bool(rng.integers(2)),
        bool(rng.integers(2)),
        uneven_layout(n, ranks, seed) if rng.integers(2) else RowLayout.even(n, ranks),
        *way,
        int(rng.choice(WIDTHS)),
        list(TOLERANCE)[rng.integers(3)],
        float(rng.choice((0.0, 0.02, 0.15, 0.6))),
        relays=way[0] == "sparsity-aware" and bool(rng.integers(2)),
    )
    divisors = [c for c in range(1, ranks + 1) if ranks % c == 0]
    algo = str(rng.choice(("1.5d", "feature", "2d", "3d")))
    return case, algo, int(rng.choice(divisors))


def check_all(comm: Communicator, replications: list[int] | None = None, every: int = 1) -> int:
    """Check each `every`-th case for every c on the ranks of `comm`; returns how many."""
    divisors = [c for c in range(1, comm.size + 1) if comm.size % c == 0]
    grids = [("1.5d", c) for c in replications or divisors]
    return check_algorithms(comm, grids, every)


def check_algorithms(comm: Communicator, algorithms: list[tuple[str, int]], every: int = 1) -> int:
    """Check each `every`-th case for every algorithm and c; returns how many."""
    checked = 0
    for number, (algo, c) in enumerate(algorithms):
        for case in islice(cases(comm.size), number % every, None, every):
            if algo != "vertex-cut" or case.exchange != "oblivious":
                check(case, comm, algo, c)
                checked += 1
    return checked


def check_random(comm: Communicator, seeds: Iterable[int]) -> int:
    """Check random cases; returns how many."""
    checked = 0
    for seed in seeds:
        case, algo, c = random_case(comm.size, seed)
        check(case, comm, algo, c)
        checked += 1
    return checked


def check_nodes(comm: Communicator, size: int, every: int = 1, c: int = 1) -> int:
    """Check each `every`-th case in two levels, `size` ranks a node; returns how many."""
    algo = "1d" if c == 1 else "1.5d"
    chosen = islice(
        (c for c in cases(comm.size) if c.exchange == "sparsity-aware"), size, None, every
    )
    checked = 0
    for case in chosen:
        check(case, comm, algo, c, size)
        checked += 1
    return checked


@dataclass(frozen=True)
class Problem:
    """The whole matrix, dense, and what this rank has of it."""

    dense: np.ndarray
    block: CSR
    column_scale: torch.Tensor | None
    own: slice


def problem(case: Case, rank: int) -> Problem:
    """What one rank of a case starts from."""
    rng = np.random.default_rng(case.n)
    A = random_matrix(case.n, case.density, case.n, weighted=case.weighted)
    first, last = case.layout.range(rank)
    block = block_row(A, first, last).to(case.dtype)
    kept = SUM_DTYPE[case.dtype]
    dense = A.toarray().astype(np.float64)
    if case.weighted:
        dense = torch.from_numpy(dense).to(kept).double().numpy()
    if not case.scaled:
        return Problem(dense, block, None, slice(first, last))
    r, s = (torch.from_numpy(rng.random(case.n)).to(kept) for _ in range(2))
    return Problem(
        r.double().numpy()[:, None] * dense * s.double().numpy(),
        block.with_scales(r[first:last].clone(), None),
        s[first:last].clone(),
        slice(first, last),
    )


def check(case: Case, comm: Communicator, algo: str, c: int, node_size: int = 1) -> None:
    """Forward, adjoint, gradients of two orders and the bytes of both directions; operands stay.

    The bytes counted are those the plan says, and those are what the matrix demands.
    """
    how = case.exchange, case.cover, node_size
    algorithm = Algorithm(algo, c, *how, relays=case.relays, **case.schedule)
    mesh = Mesh.build(comm, algorithm.axes(comm.size))
    given = problem(case, mesh.rank)
    dense, own = given.dense, given.own
    matrix = DistMatrix.build(
        given.block, case.layout, mesh, algorithm=algorithm, column_scale=given.column_scale
    )
    rng = np.random.default_rng(case.n + 1)
    # Numbers that every dtype holds exactly.
    H, G, V = np.round(rng.standard_normal((3, case.n, case.width)) * 8) / 8
    # Memory of all kinds, leaves and results: all of it belongs to the caller.
    laid = islice(cycle(LAYOUTS.values()), case.n + case.width, None)
    H_local, G_local, V_local = (
        layout(torch.from_numpy(X[own].copy()).to(case.dtype))
        for layout, X in zip(laid, (H, G, V), strict=False)
    )
    H_local, G_local = (
        X.requires_grad_() if case.weighted else X.clone().requires_grad_() * 1
        for X in (H_local, G_local)
    )
    with unchanged(H_local, G_local, V_local):
        before = comm.ledger.copy()
        Z_local = matrix @ H_local
        forward = comm.ledger.since(before)
        before = comm.ledger.copy()
        (dH_local,) = torch.autograd.grad(Z_local, H_local, G_local, create_graph=True)
        backward = comm.ledger.since(before)
        # The derivative of the adjoint by what it is applied to is the product again.
        (ddG_local,) = torch.autograd.grad(dH_local, G_local, V_local)

    def close(found: torch.Tensor, matrix: np.ndarray, operand: np.ndarray) -> None:
        error = np.abs(found.detach().double().numpy() - (matrix @ operand)[own])
        scale = (np.abs(matrix) @ np.abs(operand))[own]
        assert found.dtype == case.dtype
        # Each partial sum of a vertex cut is rounded once more.
        tolerance = TOLERANCE[case.dtype] * (2 if algo == "vertex-cut" else 1)
        assert (error <= tolerance * scale).all(), case

    close(Z_local, dense, H)
    close(dH_local, dense.T, G)
    close(ddG_local, dense, V)
    if algorithm.node_size == 1 and algo != "vertex-cut":
        check_volume(case, matrix, predicted_volume(case, dense, mesh, algo), comm)
    sent, received = predicted_elements(case, matrix.volume, mesh)
    size = case.dtype.itemsize
    assert moved(forward) == (sent * size, received * size), case
    assert moved(backward) == (received * size, sent * size), case
    for ledger, adjoint in ((forward, False), (backward, True)):
        traffic = matrix.plan.traffic(case.width, case.dtype, adjoint=adjoint).values()
        sent = sum(t.sent_bytes for t in traffic)
        received = sum(t.received_bytes for t in traffic)
        assert moved(ledger) == (sent, received), case
        if comm.ledger.node_size:
            check_levels(case, matrix, ledger, comm.ledger.node_size, adjoint=adjoint)
    workspace = matrix.executor.workspace
    if case.room:
        row = case.width * case.dtype.itemsize
        # Rows that are received, forward and in the adjoint; no other memory takes any.
        assert workspace.held("receive") <= 2 * case.room * row, case
        assert workspace.held("send") <= 2 * case.room * row, case


def check_volume(case: Case, matrix: DistMatrix, predicted: Volume, comm: Communicator) -> None:
    """The rows that travel are as few as can be; relays change whose they are, and nothing else."""
    volume = matrix.volume
    if not case.relays:
        assert volume == predicted, case
        return
    rows = torch.tensor([volume.send, volume.receive, predicted.send, predicted.receive])
    most = rows.clone()
    comm.all_reduce(rows).wait()
    comm.all_reduce(most, "max").wait()
    assert rows[:2].tolist() == rows[2:].tolist(), case
    if "feature" not in matrix.mesh.axes.names and len(matrix.plan.stages) == 1:
        assert most[:2].max() <= most[2:].max(), case


def check_levels(
    case: Case, matrix: DistMatrix, ledger: Ledger, size: int, *, adjoint: bool
) -> None:
    """The bytes that were counted between nodes are those of the plan."""
    plan, axes, rank = matrix.plan, matrix.mesh.axes, matrix.mesh.rank
    levels = by_level(plan, axes, rank, case.width, case.dtype, node_size=size, adjoint=adjoint)
    traffic, planned = ledger.operations.values(), levels["between"]
    assert sum(int(np.atleast_1d(t.sent_out)[-1]) for t in traffic) == planned.sent_bytes, case
    assert sum(t.received_between for t in traffic) == planned.received_bytes, case


def predicted_elements(case: Case, rows: Volume, mesh: Mesh) -> tuple[int, int]:
    """Elements this rank sends and receives: rows at its share of the width, and two turns."""
    if "feature" not in mesh.axes.names:
        return rows.send * case.width, rows.receive * case.width
    group = mesh.axes.group("feature", mesh.rank)
    sizes, own = case.layout.sizes[group], case.layout.sizes[mesh.rank]
    columns = np.array_split(np.arange(case.width), len(group))[mesh.coordinate("feature")]
    share = len(columns)
    # Of H, own rows but the own share of them; of Z, the own share of the others' rows.
    turns = int(own * (case.width - share) + (sizes.sum() - own) * share)
    return turns + rows.send * share, turns + rows.receive * share


def predicted_volume(case: Case, dense: np.ndarray, mesh: Mesh, algo: str) -> Volume:
    """Rows this rank must send and receive, from the whole matrix and the definition of a cover."""
    c = mesh.axes.size("replica")
    i, j = mesh.coordinate("row"), mesh.coordinate("replica")
    # Ranks that differ in nothing but their share of the columns have the same rows.
    layout = case.layout.grouped(case.layout.parts // (c * mesh.axes.size("row")))
    groups = layout.grouped(c)
    whole = algo == "1.5d-replicated"

    def rows_moved(to: int, source: int) -> int:
        owned = slice(*layout.range(source * c + j))
        if whole:  # block columns, of which replica j has P/c²
            columns = groups.range(source) if source // (groups.parts // c) == j else (0, 0)
            owned = slice(*columns)
        block = dense[slice(*groups.range(to)), owned] != 0
        if to == source:
            return 0
        if case.exchange == "oblivious":
            return block.shape[1]
        if case.cover == "column":
            return int(block.any(axis=0).sum())
        if case.cover == "row":
            return int(block.any(axis=1).sum())
        # König: a minimum cover is as large as a maximum matching.
        return int((maximum_bipartite_matching(sp.csr_array(block)) >= 0).sum())

    peers = range(mesh.axes.size("row"))
    own = layout.sizes[i * c + j]
    fold = Volume(int(groups.sizes[i] - own), int((c - 1) * own))
    exchanged = Volume(
        sum(rows_moved(peer, i) for peer in peers), sum(rows_moved(i, peer) for peer in peers)
    )
    gathered = Volume(fold.receive, fold.send) if whole else Volume()
    return exchanged + fold + gathered


def moved(ledger: Ledger) -> tuple[int, int]:
    """Bytes sent and received, all operations together."""
    traffic = ledger.operations.values()
    return sum(t.sent_bytes for t in traffic), sum(t.received_bytes for t in traffic)
