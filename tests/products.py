"""Oracles 1 and 2: distributed products against a dense reference, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice, product

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import maximum_bipartite_matching

from spgnn import RowLayout
from spgnn.comm import Communicator, Ledger
from spgnn.exchange import COVERS, Volume
from spgnn.spmm import DistMatrix, GridComm
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
        grid = GridComm.build(comm, c)
        for case in islice(cases(comm.size), 0, None, every):
            check(case, grid)
            checked += 1
    return checked


def check(case: Case, grid: GridComm) -> None:
    """Forward, adjoint and gradient of one case, and the bytes of both directions.

    The bytes counted are those the plan says, and those are what the matrix demands.
    """
    comm, rank = grid.everyone, grid.everyone.rank
    rng = np.random.default_rng(case.n)
    A = random_matrix(case.n, 0.15, case.n, weighted=case.weighted)
    dense = A.toarray().astype(np.float64)
    r, s = (rng.random(case.n), rng.random(case.n)) if case.scaled else (None, None)
    if r is not None and s is not None:
        dense = r[:, None] * dense * s
    first, last = case.layout.grouped(grid.grid.c).range(rank // grid.grid.c)
    own = slice(*case.layout.range(rank))
    block = block_row(A, first, last)
    matrix = DistMatrix.build(
        block if r is None else block.with_scales(torch.from_numpy(r[first:last]), None),
        case.layout,
        grid,
        exchange=case.exchange,
        cover=case.cover,
        column_scale=None if s is None else torch.from_numpy(s[own].copy()),
    )
    H = rng.standard_normal((case.n, case.width))
    G = rng.standard_normal((case.n, case.width))
    H_local = torch.from_numpy(H[own].copy()).requires_grad_()
    G_local = torch.from_numpy(G[own].copy())

    before = comm.ledger.copy()
    Z_local = matrix @ H_local
    forward = comm.ledger.since(before)
    before = comm.ledger.copy()
    Z_local.backward(G_local)
    backward = comm.ledger.since(before)

    np.testing.assert_allclose(Z_local.detach().numpy(), (dense @ H)[own], rtol=1e-11, atol=1e-11)
    assert H_local.grad is not None
    np.testing.assert_allclose(H_local.grad.numpy(), (dense.T @ G)[own], rtol=1e-11, atol=1e-11)
    row = case.width * FLOAT64_BYTES
    planned = matrix.volume
    assert planned == predicted_volume(case, dense, grid), case
    assert moved(forward) == (planned.send * row, planned.receive * row), case
    assert moved(backward) == (planned.receive * row, planned.send * row), case


def predicted_volume(case: Case, dense: np.ndarray, grid: GridComm) -> Volume:
    """Rows this rank must send and receive, from the whole matrix and the definition of a cover."""
    c = grid.grid.c
    i, j = grid.coordinates
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

    peers = range(grid.grid.block_rows)
    own = case.layout.sizes[grid.everyone.rank]
    fold = Volume(int(groups.sizes[i] - own), int((c - 1) * own))
    exchanged = Volume(
        sum(rows_moved(peer, i) for peer in peers), sum(rows_moved(i, peer) for peer in peers)
    )
    return exchanged + fold


def moved(ledger: Ledger) -> tuple[int, int]:
    """Bytes sent and received, all operations together."""
    traffic = ledger.operations.values()
    return sum(t.sent_bytes for t in traffic), sum(t.received_bytes for t in traffic)
