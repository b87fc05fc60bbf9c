"""What the GPU suite measures and checks beside the table of products: all the other operations."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from gpu_measurements import Blocks, Calls, Clock, is_near, measure
from torch import Tensor

from spgnn import CSR, DistMatrix, Mesh, RowLayout, kernels
from spgnn.comm import SoloCommunicator
from spgnn.kernels import torch_kernels as plain

HEADS = ((8, 8), (4, 64))  # heads and columns of each, as attention has them
DERIVATIVES_TOLERANCE = 1e-4  # of the norm, float32, through a dozen operations
Line = dict[str, Any]


def compare(
    operation: str, shape: tuple[int, int], calls: Calls, correct: bool, run: tuple[Clock, int]
) -> Line:
    """One line of a table: ours ("spgnn") against the baseline, where there is one."""
    heads, columns = shape
    times = measure(calls, *run)
    line: Line = {"operation": operation, "heads": heads, "columns": columns, "correct": correct}
    if "baseline" in times:
        line["speedup"] = times["baseline"].median / times["spgnn"].median
    return line | {name: asdict(t) for name, t in times.items()}


def row_operations(clock: Clock, rounds: int, where: str, count: int) -> Iterator[Line]:
    """Gather and scatter-add by lists of both types, and dropout, against torch's own.

    Rows in few bits, against a copy.
    """
    run = clock, rounds
    for columns in (16, 128):
        X, wide = torch.randn(count, columns, device=where), torch.randperm(count, device=where)
        for rows in (wide, wide.int()):
            kind = str(rows.dtype).removeprefix("torch.")
            Y = torch.zeros_like(X)
            calls: Calls = {
                "baseline": partial(X.index_select, 0, rows),
                "spgnn": partial(kernels.gather_rows, X, rows),
            }
            right = torch.equal(kernels.gather_rows(X, rows), X[wide])
            yield compare(f"gather_rows {kind}", (1, columns), calls, right, run)
            right = torch.equal(kernels.scatter_add_rows(Y.clone(), rows, X)[wide], X)
            calls = {
                "baseline": partial(Y.index_add_, 0, rows, X),
                "spgnn": partial(kernels.scatter_add_rows, Y, rows, X),
            }
            yield compare(f"scatter_add_rows {kind}", (1, columns), calls, right, run)
        dropped = kernels.dropout_rows(X, wide, 1, 0.5)
        right = torch.equal(dropped, plain.dropped(X, wide, 1, 0.5))
        calls = {
            "baseline": partial(torch.nn.functional.dropout, X, 0.5),
            "spgnn": partial(kernels.dropout_rows, X, wide, 1, 0.5),
        }
        yield compare("dropout_rows", (1, columns), calls, right, run)
        yield from _quantised(X, wide, run)


def _quantised(X: Tensor, ids: Tensor, run: tuple[Clock, int]) -> Iterator[Line]:
    columns = X.shape[1]
    copy, back = torch.empty_like(X), torch.empty_like(X)
    for bits in (16, 8, 2):
        packed = kernels.quantise_rows(X, bits, ids, 1)
        expected, arrived = torch.empty_like(packed), torch.empty_like(X)
        plain.quantise_rows(X, bits, ids, 1, True, None, None, None, expected)
        plain.dequantise_rows(packed, bits, None, arrived)
        calls: Calls = {
            "baseline": partial(copy.copy_, X),
            "spgnn": partial(kernels.quantise_rows, X, bits, ids, 1, out=packed),
        }
        right = torch.equal(packed, expected)
        yield compare(f"quantise_rows, {bits} bits", (1, columns), calls, right, run)
        unpack = partial(kernels.dequantise_rows, packed, bits, columns, X.dtype, out=back)
        right = torch.equal(unpack(), arrived)
        calls = {"baseline": partial(copy.copy_, X), "spgnn": unpack}
        yield compare(f"dequantise_rows, {bits} bits", (1, columns), calls, right, run)


def nonzero_operations(
    blocks: Blocks, widths: Sequence[int], clock: Clock, rounds: int
) -> Iterator[Line]:
    """SDDMM, softmax over rows, and products and attention of several heads."""
    A, run = blocks.scaled, (clock, rounds)
    for heads, columns in (*((1, f) for f in widths), *HEADS):
        G, X = (torch.randn(n, heads, columns, device=A.device) for n in A.shape)
        yield _sddmm(blocks, G, X, run)
        if heads == 1:
            continue
        scores = torch.randn(A.nnz, heads, device=A.device)
        weights = kernels.edge_softmax(A.pattern, scores)
        expected = torch.empty_like(scores, dtype=torch.float64)
        plain.edge_softmax(A.indptr, scores.double(), expected)
        right = is_near(weights, expected, expected)
        calls: Calls = {
            "baseline": partial(plain.edge_softmax, A.indptr, scores, torch.empty_like(scores)),
            "spgnn": partial(kernels.edge_softmax, A.pattern, scores),
        }
        yield compare("edge_softmax", (heads, 1), calls, right, run)
        yield _product_of_heads(blocks, weights, X, run)
        yield from _attention(CSR(A.pattern), X, run)


def _sddmm(blocks: Blocks, G: Tensor, X: Tensor, run: tuple[Clock, int]) -> Line:
    """Against cuSPARSE's, head by head."""
    A, heads = CSR(blocks.plain.pattern), X.shape[1]
    G_each, X_each = G.unbind(1), X.unbind(1)

    def sampled() -> list[Tensor]:
        pairs = zip(G_each, X_each, strict=True)
        return [torch.sparse.sampled_addmm(blocks.torch, g, x.T, beta=0) for g, x in pairs]

    expected = X.new_empty((A.nnz, heads), dtype=torch.float64)
    magnitude = torch.empty_like(expected)
    pattern = A.indptr, A.indices, None, None
    plain.sddmm(*pattern, G, X, expected)
    plain.sddmm(*pattern, G.abs(), X.abs(), magnitude)
    right = is_near(kernels.sddmm(A, G, X), expected, magnitude)
    if heads == 1:
        G, X = G[:, 0], X[:, 0]
    calls: Calls = {"baseline": sampled, "spgnn": partial(kernels.sddmm, A, G, X)}
    return compare("sddmm", (heads, X.shape[-1]), calls, right, run)


def _product_of_heads(blocks: Blocks, weights: Tensor, X: Tensor, run: tuple[Clock, int]) -> Line:
    """Against cuSPARSE's products, head by head."""
    A = CSR(blocks.plain.pattern, weights)
    each = [plain.as_torch(A.with_values(w.contiguous()), torch.float32) for w in weights.unbind(1)]
    X_each = X.unbind(1)

    def products() -> list[Tensor]:
        return [torch.sparse.mm(M, x) for M, x in zip(each, X_each, strict=True)]

    expected = torch.stack(products(), 1)
    # Weights of a softmax are not negative.
    magnitude = torch.stack([M @ x.abs() for M, x in zip(each, X_each, strict=True)], 1)
    right = is_near(kernels.spmm(A, X), expected, magnitude)
    calls: Calls = {"baseline": products, "spgnn": partial(kernels.spmm, A, X)}
    return compare("spmm of heads", (weights.shape[1], X.shape[-1]), calls, right, run)


def _attention(A: CSR, X: Tensor, run: tuple[Clock, int]) -> Iterator[Line]:
    """Dot-product attention: forward, with its gradient, and with the Hessian times that.

    Forward-mode differentiation, which takes another way through the operations, must agree.
    """
    X = X / X.shape[-1] ** 0.5

    def forward(X: Tensor) -> Tensor:
        weights = kernels.edge_softmax(A.pattern, kernels.sddmm(A, X, X))
        return kernels.spmm(A.with_values(weights), X)

    def loss(X: Tensor) -> Tensor:
        return forward(X).square().sum()

    def first() -> Tensor:
        wanted = X.clone().requires_grad_()
        return torch.autograd.grad(loss(wanted), wanted)[0]

    def second() -> Tensor:
        wanted = X.clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(wanted), wanted, create_graph=True)
        return torch.autograd.grad(g.square().sum() / 2, wanted)[0]

    g = first()
    slope = torch.func.jvp(loss, (X,), (g,))[1]
    H_g = torch.func.jvp(torch.func.grad(loss), (X,), (g,))[1]
    for name, call, correct in (
        ("attention", partial(forward, X), True),
        ("attention and gradient", first, _agree(slope, g.double().square().sum())),
        ("attention, two derivatives", second, _agree(second(), H_g)),
    ):
        yield compare(name, (X.shape[1], X.shape[2]), {"spgnn": call}, correct, run)


def _agree(found: Tensor, expected: Tensor) -> bool:
    error, size = (found - expected).double().norm(), expected.double().norm()
    return bool(size > 0) and bool(error <= DERIVATIVES_TOLERANCE * size)


def distributed(A: CSR, where: str, columns: int, clock: Clock, rounds: int) -> Iterator[Line]:
    """A distributed matrix over a world of one rank, against the kernels alone.

    Parameters
    ----------
    A : CSR [n, n]
        On the CPU, symmetrically scaled.
    """
    n = A.shape[0]
    D = DistMatrix.build(
        A.with_scales(A.row_scale, None),
        RowLayout.even(n, 1),
        Mesh.grid(SoloCommunicator()),
        column_scale=A.col_scale,
    ).to(where)
    alone, run = A.to(where), (clock, rounds)
    H = torch.randn(n, columns, device=where)
    expected, magnitude = kernels.spmm(alone, H), kernels.spmm(alone, H.abs())

    def backward(multiply: Any) -> Tensor:
        wanted = H.clone().requires_grad_()
        found: Tensor = torch.autograd.grad(multiply(wanted).square().sum(), wanted)[0]
        return found

    through_halo = kernels.spmm(D.local_matrix(), D.halo(H))
    right = is_near(D @ H, expected, magnitude) and is_near(through_halo, expected, magnitude)
    calls: Calls = {"baseline": partial(kernels.spmm, alone, H), "spgnn": partial(D.__matmul__, H)}
    yield compare("product, against spmm", (1, columns), calls, right, run)
    # A is symmetric: the gradient is 2 A A H.
    right = is_near(
        backward(D.__matmul__) / 2, kernels.spmm(alone, expected), kernels.spmm(alone, magnitude)
    )
    calls = {
        "baseline": partial(backward, partial(kernels.spmm, alone)),
        "spgnn": partial(backward, D.__matmul__),
    }
    yield compare("product and gradient, against spmm", (1, columns), calls, right, run)


def heavy_row(clock: Clock, rounds: int, where: str, nnz: int) -> Line:
    """A row with half of all nonzeros, against as many nonzeros spread evenly."""
    rows = nnz // 16
    X = torch.randn(rows, 64, device=where)
    lengths = {"even": torch.full((rows,), 16), "heavy": torch.full((rows,), 8)}
    lengths["heavy"][rows // 2] += nnz // 2
    calls: Calls = {}
    for name, each in lengths.items():
        indptr = torch.cat((torch.zeros(1, dtype=torch.int64), each.cumsum(0)))
        indices = torch.randint(rows, (int(indptr[-1]),), dtype=torch.int32)
        block = CSR.of(indptr, indices, (rows, rows)).to(where)
        calls[name] = partial(kernels.spmm, block, X)
    return {name: asdict(t) for name, t in measure(calls, clock, rounds).items()}


def host_microseconds(where: str, calls_each: int) -> dict[str, float]:
    """What the host spends on starting one product, on a graph too small to matter."""
    indices = torch.zeros(100, dtype=torch.int32)
    A = CSR.of(torch.arange(101), indices, (100, 100)).to(where)
    X, M = torch.randn(100, 16, device=where), plain.as_torch(A, torch.float32)
    wait = torch.cuda.synchronize if where == "cuda" else int
    spent = {}
    for name, call in {
        "torch": partial(torch.sparse.mm, M, X),
        "spgnn": partial(kernels.spmm, A, X),
    }.items():
        for _ in range(20):
            call()
        wait()
        start = time.perf_counter()
        for _ in range(calls_each):
            call()
        wait()
        spent[name] = (time.perf_counter() - start) / calls_each * 1e6
    return spent
