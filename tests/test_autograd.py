"""The distributed product under torch's transforms, copied, pickled and compiled."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from spgnn import DistMatrix, InputError, Mesh, RowLayout
from spgnn.autograd import all_reduced, paper_layer, product, product_beside_itself
from spgnn.comm import Ledger, connect
from spgnn.exchange import Algorithm
from spgnn.exchange.needs import COVERS
from spgnn.exchange.schemes import STRATEGIES
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout

N = 20


def dense() -> np.ndarray:
    return random_matrix(N, 0.2, 0, weighted=True).toarray()


def matrix_of(c: int = 1, cover: str = "column", algo: str = "1.5d") -> tuple[DistMatrix, slice]:
    comm = connect()
    algorithm = Algorithm(algo, c, cover=cover)
    mesh = Mesh.build(comm, algorithm.axes(comm.size))
    layout = RowLayout.even(N, comm.size)
    own = slice(*layout.range(comm.rank))
    block = block_row(random_matrix(N, 0.2, 0, weighted=True), own.start, own.stop)
    return DistMatrix.build(block, layout, mesh, algorithm=algorithm), own


def numbers(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def close(found: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10, atol=1e-10)


def check_transforms(rank: int, c: int, algo: str) -> None:
    # What torch itself uses when jvp is first called.
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
    A, own = matrix_of(c, "minimum", algo)
    D, H, V = dense(), numbers(N, 3), numbers(N, 3, seed=2)
    H_local, V_local = torch.from_numpy(H[own].copy()), torch.from_numpy(V[own].copy())

    def loss(X: torch.Tensor) -> torch.Tensor:
        return (A @ X).pow(3).sum() / 3

    Z = D @ H
    close(torch.func.grad(loss)(H_local), (D.T @ Z**2)[own])
    value, tangent = torch.func.jvp(lambda X: A @ X, (H_local,), (V_local,))
    close(value, Z[own])
    close(tangent, (D @ V)[own])
    # Forward over reverse: a product with the second derivative.
    _, curved = torch.func.jvp(torch.func.grad(loss), (H_local,), (V_local,))
    close(curved, (D.T @ (2 * Z * (D @ V)))[own])
    batch = numbers(4, N, 3, seed=3)
    for in_dim in (0, 1, 2):
        stacked = torch.from_numpy(
            np.moveaxis(batch, 0, in_dim)[
                tuple(
                    own if axis == (1 if in_dim == 0 else 0) else slice(None) for axis in range(3)
                )
            ].copy()
        )
        close(torch.func.vmap(lambda X: A @ X, in_dims=in_dim)(stacked), (D @ batch)[:, own])
    gradients = torch.func.vmap(torch.func.grad(loss))(torch.from_numpy(batch[:, own].copy()))
    close(gradients, (D.T @ (D @ batch) ** 2)[:, own])


@pytest.mark.parametrize(
    ("ranks", "c", "algo"), [(1, 1, "1d"), (3, 1, "1d"), (4, 2, "1.5d"), (4, 1, "3d")]
)
def test_transforms_of_functions(ranks, c, algo):
    run_ranks(check_transforms, ranks, c, algo)


def test_one_exchange_serves_a_whole_batch():
    def calls(rank: int) -> int:
        A, own = matrix_of()
        batch = torch.zeros(5, own.stop - own.start, 2, dtype=torch.float64)
        before = connect().ledger.copy()
        torch.func.vmap(lambda X: A @ X)(batch)
        return connect().ledger.since(before).of("alltoall").calls

    assert run_ranks(calls, 2) == [1, 1]


def check_paper_layer(rank: int) -> None:
    A, own = matrix_of()
    D, H, W = dense(), numbers(N, 3), numbers(3, 2, seed=5)
    H_local = torch.from_numpy(H[own].copy()).requires_grad_()
    W_local = torch.from_numpy(W).requires_grad_()
    Z_local = paper_layer(A, H_local, W_local)
    close(Z_local, (D @ H @ W)[own])
    dH, dW = torch.autograd.grad(Z_local.square().sum(), (H_local, W_local), create_graph=True)
    whole_H, whole_W = torch.from_numpy(H).requires_grad_(), torch.from_numpy(W).requires_grad_()
    Z = torch.from_numpy(D) @ whole_H @ whole_W
    first = torch.autograd.grad(Z.square().sum(), (whole_H, whole_W), create_graph=True)
    close(dH, first[0].detach().numpy()[own])
    second = torch.autograd.grad(first[0].square().sum(), (whole_H, whole_W))
    found = torch.autograd.grad(dH.square().sum(), (H_local, W_local))
    close(found[0], second[0].numpy()[own])
    for share, expected in ((dW.detach(), first[1].detach()), (found[1], second[1])):
        total = share.clone()
        connect().all_reduce(total).wait()
        close(total, expected.numpy())


def test_the_papers_layer_has_derivatives_of_two_orders():
    run_ranks(check_paper_layer, 3)


def check_copies(rank: int, algo: str) -> None:
    A, own = matrix_of(2, "row", algo)
    H_local = torch.from_numpy(numbers(N, 3)[own].copy())
    expected = A @ H_local
    for other in (copy.deepcopy(A), pickle.loads(pickle.dumps(A))):
        assert torch.equal(other @ H_local, expected)
        assert torch.equal(other.adjoint(expected), A.adjoint(expected))
        assert other.volume == A.volume
        assert other.mesh is A.mesh
        assert other.handle != A.handle


@pytest.mark.parametrize("algo", ["1.5d", "3d"])
def test_copies_and_pickles_are_the_same_matrix(algo):
    run_ranks(check_copies, 4, algo)


def test_a_pickle_needs_ranks_that_are_arranged_alike():
    def elsewhere(rank: int) -> str:
        A, _ = matrix_of()
        data = pickle.dumps(A)
        del connect().__dict__["_meshes"]
        with pytest.raises(InputError) as refused:
            pickle.loads(data)
        return str(refused.value)

    (said, _) = run_ranks(elsewhere, 2)
    assert "lives on 2 × 1 ranks; build a Mesh of that shape first" in said


def test_what_no_product_takes():
    A, _ = matrix_of()
    for operand, said in (
        (np.zeros((N, 2)), "must be a torch tensor, got ndarray"),
        (torch.zeros(N, 2, 1), r"has shape \[20, 2, 1\]"),
        (torch.zeros(N, 2, dtype=torch.int64), "float32, float64 or bfloat16"),
    ):
        with pytest.raises(InputError, match=said):
            A @ operand


def test_compiled_in_one_graph():
    A, _ = matrix_of()
    D, H = torch.from_numpy(dense()), torch.from_numpy(numbers(N, 3))
    W = torch.from_numpy(numbers(3, 3, seed=4))

    def model(X: torch.Tensor) -> torch.Tensor:
        return product(A, torch.relu(product(A, X) @ W)).sum()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    results = []
    for multiply in (lambda X: (D @ torch.relu(D @ X @ W)).sum(), compiled):
        X = H.clone().requires_grad_()
        value = multiply(X)
        value.backward()
        results.append((value.detach(), X.grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def check_all_reduced(rank: int) -> None:
    """A total that every rank uses in its own way; two orders of derivatives. Collective."""
    comm = connect()
    given = torch.from_numpy(numbers(comm.size, 4))
    shares = given.clone().requires_grad_()
    factor = torch.arange(1, comm.size + 1, dtype=torch.float64)
    total = shares.sum(dim=0)
    expected = sum((f * total**3).sum() for f in factor)
    (first,) = torch.autograd.grad(expected, shares, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), shares)
    mine = given[rank].clone().requires_grad_()
    used = factor[rank] * all_reduced(mine, comm) ** 3
    (found,) = torch.autograd.grad(used.sum(), mine, create_graph=True)
    torch.testing.assert_close(found, first[rank])
    (found,) = torch.autograd.grad((found**2).sum(), mine)
    torch.testing.assert_close(found, second[rank])
    once = all_reduced(mine.detach(), comm)
    torch.testing.assert_close(once, total.detach())


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_sum_over_ranks_is_its_own_adjoint(ranks):
    run_ranks(check_all_reduced, ranks)


def exchanged(ledger: Ledger) -> int:
    """Bytes sent, but for what ranks say to agree on an operand."""
    return sum(t.sent_bytes for name, t in ledger.operations.items() if name.startswith("alltoall"))


def check_autocast(rank: int) -> None:
    """Rows travel as bfloat16, and gradients come back as what they belong to. Collective."""
    A, own = matrix_of()
    comm = A.mesh.everyone
    H = torch.from_numpy(numbers(N, 6)[own]).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        assert product(A, H.double()).dtype == torch.float64
        A = A.to(torch.float32)
        before = comm.ledger.copy()
        Z = product(A, H)
        counted = comm.ledger.since(before)
    assert Z.dtype == torch.bfloat16
    planned = A.plan.traffic(6, torch.bfloat16).values()
    assert sum(moved.sent_bytes for moved in planned) == exchanged(counted)
    Z.float().sum().backward()
    assert H.grad.dtype == torch.float32
    rounded = H.detach().bfloat16()
    torch.testing.assert_close(Z.detach(), product(A, rounded), rtol=0, atol=0)
    expected = torch.from_numpy(dense()[:, own].sum(axis=0)).float()[:, None].expand(-1, 6)
    torch.testing.assert_close(H.grad, expected, rtol=2e-2, atol=2e-2)


def check_float16(rank: int) -> None:
    """Products and what is beside them are those of float32: rows do not overflow. Collective."""
    A, own = matrix_of()
    A = A.to(torch.float32)
    H = torch.from_numpy(numbers(N, 6)[own]).float().mul(1e4).requires_grad_()
    W, R = (torch.from_numpy(numbers(4, 6)).float().requires_grad_() for _ in range(2))

    def results(H: torch.Tensor) -> list[torch.Tensor]:
        made = [product(A, H), A.halo(H)]
        made += [product_beside_itself(A, H, W, R, first=first) for first in (False, True)]
        made.append(paper_layer(A, H, W.T))
        made += torch.autograd.grad(sum(Z.sum() for Z in made), (H, W, R))
        return made

    expected = results(H)
    with torch.autocast("cpu", torch.float16):
        for found, exact in zip(results(H), expected, strict=True):
            assert found.dtype == torch.float32
            assert torch.equal(found, exact)
        assert product(A, H.half()).dtype == torch.float32


@pytest.mark.parametrize("check", [check_autocast, check_float16])
@pytest.mark.parametrize("ranks", [1, 3])
def test_autocast_is_respected(ranks, check):
    run_ranks(check, ranks)


def check_values(rank: int) -> int:
    """Gradients of two orders in values and rows, of a matrix and of its transpose."""
    comm, checked = connect(), 0
    A = random_matrix(13, 0.25, 2, weighted=True).tocoo()
    layout = uneven_layout(13, comm.size, seed=4)
    first, last = layout.range(rank)
    mine = torch.from_numpy((A.row >= first) & (A.row < last))
    row, column = torch.from_numpy(A.row).long(), torch.from_numpy(A.col).long()
    draw = torch.Generator().manual_seed(7)
    H, V = (torch.randn(13, 3, dtype=torch.float64, generator=draw) for _ in range(2))
    scale = torch.linspace(1, 2, 13, dtype=torch.float64)
    u = torch.randn(A.nnz, dtype=torch.float64, generator=draw)

    def twice(product, w: Tensor, X: Tensor, u: Tensor, V: Tensor, again: bool) -> list[Tensor]:
        Z = product(w, X)
        dw, dX = torch.autograd.grad((Z**3).sum() / 3, (w, X), create_graph=True)
        second = torch.autograd.grad((dw * u).sum() + (dX * V).sum(), (w, X)) if again else ()
        return [each.detach() for each in (Z, dw, dX, *second)]

    def dense(w: Tensor, X: Tensor) -> Tensor:
        full = torch.zeros(13, 13, dtype=torch.float64).index_put((row, column), w)
        return scale[:, None] * (full @ (scale[:, None] * X))

    algorithms = [
        Algorithm("1d", cover=cover, exchange=exchange)
        for cover, exchange in [
            *(("column", e) for e in STRATEGIES),
            ("row", STRATEGIES[0]),
            ("minimum", STRATEGIES[0]),
        ]
    ]
    algorithms += [Algorithm("vertex-cut"), Algorithm("2d")]
    algorithms += [Algorithm(cover=cover, relays=True) for cover in COVERS]
    if comm.size == 4:
        algorithms += [Algorithm(a, 2) for a in ("1.5d", "1.5d-replicated")]
    for algorithm in algorithms:
        mesh = Mesh.build(comm, algorithm.axes(comm.size))
        pattern = block_row(random_matrix(13, 0.25, 2, weighted=True), first, last)

        def built(w: Tensor, pattern=pattern, mesh=mesh, algorithm=algorithm) -> DistMatrix:
            block = pattern.with_values(w).with_scales(scale[first:last], None)
            own = scale[first:last]
            return DistMatrix.build(block, layout, mesh, algorithm=algorithm, column_scale=own)

        values = torch.from_numpy(A.data)
        for multiplied, whole in (
            (lambda w, X: built(w) @ X, dense),
            (
                lambda w, X: built(w).T @ X,
                lambda w, X: (
                    scale[:, None]
                    * (
                        torch.zeros(13, 13, dtype=torch.float64).index_put((column, row), w)
                        @ (scale[:, None] * X)
                    )
                ),
            ),
        ):
            expected = twice(
                whole, values.clone().requires_grad_(), H.clone().requires_grad_(), u, V, True
            )
            ours = twice(
                multiplied,
                values[mine].clone().requires_grad_(),
                H[first:last].clone().requires_grad_(),
                u[mine],
                V[first:last],
                True,
            )
            for got, all_of_it in zip(ours, expected, strict=True):
                own = all_of_it[mine] if all_of_it.dim() == 1 else all_of_it[first:last]
                torch.testing.assert_close(got, own, rtol=1e-9, atol=1e-9)
                checked += 1
    return checked


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_values_have_gradients_of_two_orders(ranks):
    for checked in run_ranks(check_values, ranks):
        assert checked >= 60
