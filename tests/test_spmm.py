"""The distributed product against a dense float64 reference, whole arrays, on real ranks."""

from __future__ import annotations

import copy
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import cg, eigsh

from spgnn import CSR, DistMatrix, InputError, Mesh, RowLayout
from spgnn.comm import Communicator, connect
from spgnn.exchange import Algorithm
from spgnn.exchange.needs import COVERS
from spgnn.exchange.schemes import STRATEGIES
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.products import cases, check, check_algorithms, check_all, check_nodes, check_random


def two_levels(comm: Communicator, sizes: list[int], every: int) -> int:
    """Hierarchies of nodes: the same oracles, and the bytes of each level."""
    checked = 0
    for size in sizes:
        comm.ledger.node_size = size
        checked += check_nodes(comm, size, every)
        if size == 4:
            checked += check_nodes(comm, size, 2 * every, c=2)
    comm.ledger.node_size = 0
    return checked


# Ranks; each how many-th case of every c; feature-parallel, 2D and 3D, and each how many-th case;
# ranks of a node, and each how many-th case.
STARTS = [
    (1, 1, [("vertex-cut", 1)], 5, [], 1),
    (2, 5, [("feature", 2)], 5, [], 1),
    (3, 5, [("feature", 3), ("2d", 1), ("3d", 1)], 11, [], 1),
    (4, 5, [("vertex-cut", 1), ("1.5d-replicated", 2)], 5, [2], 7),
    (6, 5, [("feature", 2), ("feature", 6), ("2d", 1), ("3d", 3)], 13, [2, 3], 9),
    (8, 7, [("feature", 4), ("3d", 1), ("3d", 4), ("1.5d-replicated", 2)], 13, [4], 9),
    (12, 23, [], 1, [3], 17),
    (16, 5, [("feature", 4), ("2d", 1), ("3d", 1), ("vertex-cut", 1)], 23, [4], 17),
]


def products(rank: int, every: int, shares, every_share: int, sizes, every_node: int) -> list[int]:
    comm = connect()
    return [
        check_all(comm, every=every),
        check_algorithms(comm, shares, every_share),
        two_levels(comm, sizes, every_node),
    ]


@pytest.mark.parametrize(
    ("ranks", "how"),
    [
        pytest.param(ranks, how, marks=pytest.mark.slow if ranks > 4 else ())
        for ranks, *how in STARTS
    ],
)
def test_products_adjoints_and_bytes(ranks, how):
    for plain, of_shares, in_levels in run_ranks(products, ranks, *how):
        assert plain >= 12
        assert of_shares >= len(how[1])
        assert in_levels >= 2 * bool(how[3])


def levels_of_broadcasts(rank: int) -> int:
    comm, checked = connect(), 0
    comm.ledger.node_size = 2
    for case in islice((c for c in cases(4) if c.exchange == "oblivious"), 0, None, 5):
        for c in (1, 2):
            check(case, comm, "1.5d", c)
            checked += 1
    return checked


def test_bytes_of_each_level_of_other_schemes():
    assert min(run_ranks(levels_of_broadcasts, 4)) >= 4


def every(rank: int, how: str, *rest: Any) -> int:
    """One sweep of the slow set; returns how many cases."""
    comm = connect()
    if how == "levels":
        return two_levels(comm, [rest[0]], 1)
    if how == "grids":
        return check_all(comm, *rest)
    if how == "random":  # cases that nobody chose
        return check_random(comm, range(850 * comm.size, 850 * (comm.size + 1)))
    return check_algorithms(comm, *rest)


def shares(ranks: int) -> list[tuple[str, int]]:
    divisors = [c for c in range(1, ranks + 1) if ranks % c == 0]
    return [*product(("feature", "2d", "3d"), divisors), ("vertex-cut", 1)]


SWEEPS = [
    *((ranks, "levels", size) for ranks, size in ((4, 2), (6, 2), (6, 3), (8, 2), (8, 4))),
    *((ranks, "levels", size) for ranks, size in ((12, 3), (12, 4), (16, 4))),
    *((ranks, "grids") for ranks in (2, 3, 4, 6, 8, 16)),
    *((ranks, "grids", [1, 4], number) for ranks, number in ((64, 7), (256, 21))),
    *((ranks, "random") for ranks in range(1, 13)),
    *((ranks, "algorithms", [("1.5d-replicated", 2)]) for ranks in (4, 8)),
    *((16, "algorithms", [("1.5d-replicated", c)], 7) for c in (2, 4)),
    *((32, "algorithms", [("1.5d-replicated", c)], 7) for c in (2, 4)),
    *((ranks, "algorithms", shares(ranks)) for ranks in (2, 6, 8)),
    *((ranks, "algorithms", shares(ranks), n) for ranks, n in ((12, 2), (16, 3), (64, 13))),
]


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
def test_all_products_adjoints_and_bytes(sweep):
    ranks, *how = sweep
    assert min(run_ranks(every, ranks, *how)) >= {"levels": 24, "random": 850}.get(how[0], 1)


def test_wrong_shapes_are_refused_before_any_exchange():
    mesh = Mesh.grid(connect())
    A = random_matrix(6, 0.5, 0, weighted=False)
    with pytest.raises(InputError, match=r"rows are \(3, 6\), the layout asks for \(6, 6\)"):
        DistMatrix.build(block_row(A, 0, 3), RowLayout.even(6, 1), mesh)
    with pytest.raises(InputError, match="layout has 2 parts"):
        DistMatrix.build(block_row(A, 0, 6), RowLayout.even(6, 2), mesh)
    matrix = DistMatrix.build(block_row(A, 0, 6), RowLayout.even(6, 1), mesh)
    with pytest.raises(InputError, match=r"holds 6 rows, the operand has shape \[5, 2\]"):
        matrix.forward(torch.zeros(5, 2))


def rectangular(rank: int) -> int:
    """More columns than rows, in layouts of their own, under every scheme and cover."""
    comm, (rows, columns, width) = connect(), (23, 41, 5)
    A = sp.random(rows, columns, 0.15, "csr", random_state=2, dtype=np.float64)
    of_rows, layout = uneven_layout(rows, 4, seed=1), uneven_layout(columns, 4, seed=2)
    made, own = slice(*of_rows.range(rank)), slice(*layout.range(rank))
    H, G = (np.random.default_rng(0).standard_normal((n, width)) for n in (columns, rows))
    hows = [Algorithm("1d", cover=cover, node_size=size) for cover in COVERS for size in (1, 2)]
    hows += [Algorithm(algo, 2) for algo in ("1.5d", "feature", "2d", "3d")]
    hows += [Algorithm("vertex-cut"), Algorithm(exchange="oblivious"), Algorithm("1.5d", 4)]
    hows += [Algorithm("1.5d-replicated", 2, exchange) for exchange in STRATEGIES]
    hows += [Algorithm(cover=cover, relays=True) for cover in COVERS]
    for how in hows:
        mesh = Mesh.build(comm, how.axes(4))
        block = CSR.from_scipy(A[made])
        matrix = DistMatrix.build(block, layout, mesh, row_layout=of_rows, algorithm=how)
        assert matrix.shape == copy.deepcopy(matrix).shape == (rows, columns)
        H_local = torch.from_numpy(H[own]).requires_grad_()
        G_local = torch.from_numpy(G[made]).requires_grad_()
        Z_local = matrix @ H_local
        np.testing.assert_allclose(Z_local.detach(), (A @ H)[made], atol=1e-12)
        (dH,) = torch.autograd.grad(Z_local, H_local, G_local, create_graph=True)
        np.testing.assert_allclose(dH.detach(), (A.T @ G)[own], atol=1e-12)
        (ddG,) = torch.autograd.grad(dH, G_local, torch.from_numpy(H[own]))
        np.testing.assert_allclose(ddG, (A @ H)[made], atol=1e-12)
    with pytest.raises(InputError, match=r"this rank's rows are .*, the layout asks for"):
        DistMatrix.build(block, layout, Mesh.grid(comm))
    with pytest.raises(InputError, match="layout has 3 parts, the mesh 4 ranks"):
        DistMatrix.build(block, layout, Mesh.grid(comm), row_layout=RowLayout.even(rows, 3))
    with pytest.raises(InputError, match=r"mesh must be a Mesh, got \w+: write Mesh.grid\(comm\)"):
        DistMatrix.build(block, layout, comm)
    with pytest.raises(
        InputError, match=r"got object: write Mesh.grid\(spgnn.connect\(group=…\)\)"
    ):
        Mesh.grid(object())
    with pytest.raises(InputError, match=r"got object: write connect\(group=…\)"):
        connect(object())
    return len(hows)


def test_a_matrix_need_not_be_square():
    assert min(run_ranks(rectangular, 4)) == 18  # schemes, covers and exchanges


def check_for_solvers(rank: int) -> None:
    """Matrices as SciPy and torch have them, their transposes, vectors, and SciPy's solvers."""
    comm, rng = connect(), np.random.default_rng(0)
    B = sp.random(30, 30, 0.2, random_state=1, format="csr")
    A = (B @ B.T + 2 * sp.eye(30)).tocsr()
    layout = uneven_layout(30, comm.size, seed=2)
    own, mesh = slice(*layout.range(rank)), Mesh.grid(comm)
    x, X = rng.standard_normal(30), rng.standard_normal((30, 3))
    rows = B[own].tocoo()
    given = [B[own].asformat(form) for form in ("csr", "csc", "coo", "lil", "bsr", "dok", "dia")]
    places = np.stack((rows.row, rows.col))
    given.append(
        torch.sparse_coo_tensor(
            places, torch.from_numpy(rows.data), rows.shape, check_invariants=True
        )
    )
    for block in given:
        matrix = DistMatrix.build(block, layout, mesh, cover="minimum")
        for distributed, whole in ((matrix, B), (matrix.T, B.T)):
            assert distributed.shape == whole.shape
            for operand in (x, X):
                result = distributed @ torch.from_numpy(operand[own])
                np.testing.assert_allclose(result, (whole @ operand)[own], atol=1e-12)
    assert matrix.T.T is matrix
    operator = matrix.aslinearoperator()
    np.testing.assert_allclose(operator.T @ X, B.T @ X, atol=1e-12)
    np.testing.assert_allclose(operator @ (x + 1j * X[:, 0]), B @ (x + 1j * X[:, 0]), atol=1e-12)
    symmetric = DistMatrix.build(A[own], layout, mesh).aslinearoperator()
    solution, status = cg(symmetric, x, rtol=1e-12)
    assert status == 0
    np.testing.assert_allclose(A @ solution, x, atol=1e-9)
    largest = eigsh(symmetric, k=3, v0=np.ones(30))[0]
    np.testing.assert_allclose(largest, eigsh(A, k=3, v0=np.ones(30))[0])
    learnt = CSR.from_scipy(B[own]).with_values(torch.ones(rows.nnz, requires_grad=True))
    scale = torch.ones(rows.shape[0], requires_grad=rank == 0)
    for block, algorithm, words in (
        (np.eye(3) if rank == 0 else A[own], Algorithm(), "sparse and of SciPy or torch"),
        (A[own] * (1j if rank == 0 else 1), Algorithm(), "must be real numbers"),
        (learnt, Algorithm(schedule="peers", buffer=10_000), "require a gradient need algo 1d"),
        (learnt, Algorithm("feature", comm.size), "require a gradient need algo 1d"),
        (CSR.from_scipy(A[own].astype("f4")).with_scales(scale, None), Algorithm(), "constant"),
    ):
        arranged = Mesh.build(comm, algorithm.axes(comm.size))
        with pytest.raises(InputError, match=words):
            DistMatrix.build(block, layout, arranged, algorithm=algorithm)
    if comm.size > 1:
        with pytest.raises(InputError, match=r"do not agree on vector of aslinearoperator\(\)"):
            symmetric @ np.full(30, rank)


@pytest.mark.parametrize("ranks", [1, 3])
def test_solvers_take_matrices_of_scipy(ranks):
    run_ranks(check_for_solvers, ranks)
