"""Oracles 1 and 2: distributed products against a dense reference, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, product

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import maximum_bipartite_matching

from spgnn import CSR, DistMatrix, Mesh, RowLayout
from spgnn.comm import Communicator, Ledger
from spgnn.exchange import COVERS, Volume
from tests.matrices import block_row, random_matrix, uneven_layout

WIDTHS = (1, 3, 16, 17, 64, 129)
WAYS = [("oblivious", "column"), *(("sparsity-aware", cover) for cover in COVERS)]
FLOAT64_BYTES = 8


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


def cases(ranks: int) -> Iterator[Case]:
    """Few vertices and many, even and uneven layouts with empty parts, every way to multiply."""
    widths = cycle(WIDTHS)
    for n, weighted, (exchange, cover) in product((1, 5, 17, 60), (False, True), WAYS):
        for layout in (RowLayout.even(n, ranks), uneven_layout(n, ranks, seed=n)):
            yield Case(n, weighted, n % 2 == 1, layout, exchange, cover, next(widths))


def check_all(comm: Communicator, replications: list[int] | None = None, every: int = 1) -> int:
    """Check each `every`-th case for every c on the ranks of `comm`; returns how many."""
    divisors = [c for c in range(1, comm.size + 1) if comm.size % c == 0]
    checked = 0
    for c in replications or divisors:
        mesh = Mesh.grid(comm, c)
        for case in islice(cases(comm.size), 0, None, every):
            check(case, mesh)
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
    A = random_matrix(case.n, 0.15, case.n, weighted=case.weighted)
    dense = A.toarray().astype(np.float64)
    first, last = case.layout.range(rank)
    block = block_row(A, first, last)
    if not case.scaled:
        return Problem(dense, block, None, slice(first, last))
    r, s = rng.random(case.n), rng.random(case.n)
    return Problem(
        r[:, None] * dense * s,
        block.with_scales(torch.from_numpy(r[first:last]), None),
        torch.from_numpy(s[first:last].copy()),
        slice(first, last),
    )


def check(case: Case, mesh: Mesh) -> None:
    """Forward, adjoint, gradients of two orders and the bytes of both directions.

    The bytes counted are those the plan says, those that the plan made offline says, and those
    that the matrix demands.
    """
    comm, rank = mesh.everyone, mesh.rank
    given = problem(case, rank)
    dense, own = given.dense, given.own
    matrix = DistMatrix.build(
        given.block,
        case.layout,
        mesh,
        exchange=case.exchange,
        cover=case.cover,
        column_scale=given.column_scale,
    )
    rng = np.random.default_rng(case.n + 1)
    H = rng.standard_normal((case.n, case.width))
    G = rng.standard_normal((case.n, case.width))
    H_local = torch.from_numpy(H[own].copy()).requires_grad_()
    # Gradients need not be contiguous.
    G_local = torch.from_numpy(np.asfortranarray(G[own])).requires_grad_()

    before = comm.ledger.copy()
    Z_local = matrix @ H_local
    forward = comm.ledger.since(before)
    before = comm.ledger.copy()
    (dH_local,) = torch.autograd.grad(Z_local, H_local, G_local, create_graph=True)
    backward = comm.ledger.since(before)
    (ddG_local,) = torch.autograd.grad(dH_local, G_local, H_local.detach(), create_graph=True)
    V_local = torch.from_numpy(rng.standard_normal((case.n, case.width))[own].copy())
    (dV_local,) = torch.autograd.grad((matrix @ (V_local * H_local)).square().sum(), H_local)

    def close(found: torch.Tensor, expected: np.ndarray) -> None:
        np.testing.assert_allclose(found.detach().numpy(), expected[own], rtol=1e-11, atol=1e-11)

    close(Z_local, dense @ H)
    close(dH_local, dense.T @ G)
    close(ddG_local, dense @ H)
    V = np.random.default_rng(case.n + 1).standard_normal((3, case.n, case.width))[2]
    close(dV_local, 2 * V * (dense.T @ (dense @ (V * H))))

    row = case.width * FLOAT64_BYTES
    planned = matrix.volume
    assert planned == predicted_volume(case, dense, mesh), case
    assert moved(forward) == (planned.send * row, planned.receive * row), case
    assert moved(backward) == (planned.receive * row, planned.send * row), case
    for ledger, adjoint in ((forward, False), (backward, True)):
        traffic = matrix.plan.traffic(case.width, torch.float64, adjoint=adjoint).values()
        bytes_planned = [(t.sent_bytes, t.received_bytes) for t in traffic]
        assert moved(ledger) == tuple(map(sum, zip((0, 0), *bytes_planned, strict=True))), case


def predicted_volume(case: Case, dense: np.ndarray, mesh: Mesh) -> Volume:
    """Rows this rank must send and receive, from the whole matrix and the definition of a cover."""
    c = mesh.axes.size("replica")
    i, j = mesh.coordinate("row"), mesh.coordinate("replica")
    groups = case.layout.grouped(c)

    def rows_moved(to: int, source: int) -> int:
        owned = slice(*case.layout.range(source * c + j))
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
    own = case.layout.sizes[mesh.rank]
    fold = Volume(int(groups.sizes[i] - own), int((c - 1) * own))
    exchanged = Volume(
        sum(rows_moved(peer, i) for peer in peers), sum(rows_moved(i, peer) for peer in peers)
    )
    return exchanged + fold


def moved(ledger: Ledger) -> tuple[int, int]:
    """Bytes sent and received, all operations together."""
    traffic = ledger.operations.values()
    return sum(t.sent_bytes for t in traffic), sum(t.received_bytes for t in traffic)
