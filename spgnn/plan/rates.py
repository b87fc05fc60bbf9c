"""How fast this rank's kernels are, at several widths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.pattern import Pattern
from spgnn.plan.machine import Gather, Gemm, Spmm, Streams
from spgnn.sparse import CSR

WIDTHS = (4, 16, 64, 256)
OPERAND_BYTES = (1 << 18, 1 << 21, 1 << 25)
DEGREES = (4, 32)
_ROWS = 1 << 12
_STREAM_BYTES = 1 << 24


class Clock(Protocol):
    """Seconds of what all ranks do at the same time."""

    def __call__(self, body: Callable[[], object]) -> float:
        """The median. Collective."""


def measure_sparse(clock: Clock, device: torch.device) -> Spmm:
    """Products with random columns, of operands that fit into caches and of one that does not.

    A row costs what is left of rows with few nonzeros once those are paid for.
    """
    table: list[tuple[float, ...]] = []
    per_row: tuple[float, ...] = ()
    for size in OPERAND_BYTES:
        costs = [_row_and_nonzero(clock, size, width, device) for width in WIDTHS]
        table.append(tuple(nonzero for _, nonzero in costs))
        per_row = per_row or tuple(row for row, _ in costs)
    sizes = tuple(map(float, OPERAND_BYTES))
    return Spmm(sizes, tuple(map(float, WIDTHS)), tuple(table), per_row)


def _row_and_nonzero(
    clock: Clock, size: int, width: int, device: torch.device
) -> tuple[float, float]:
    """Seconds of a row and of a nonzero."""
    found = []
    for degree in DEGREES:
        A = random_matrix(size // (4 * width), degree).to(device)
        H, out = _dense(A.shape[1], width, device), _dense(_ROWS, width, device)
        found.append(clock(partial(kernels.spmm, A, H, out=out)) / _ROWS)
    few, many = DEGREES
    nonzero = max((found[1] - found[0]) / (many - few), 0.2 * found[1] / many)
    return max(found[0] - few * nonzero, 0.05 * found[0]), nonzero


def measure_gather(clock: Clock, device: torch.device) -> Gather:
    """Copies of random rows of an operand that fits into no cache."""
    found = []
    for width in WIDTHS:
        H = _dense(OPERAND_BYTES[-1] // (4 * width), width, device)
        rows = _draws(_ROWS, H.shape[0]).to(device)
        out = _dense(_ROWS, width, device)
        seconds = clock(partial(kernels.gather_rows, H, rows, out=out))
        found.append(seconds / _ROWS)
    return Gather(tuple(map(float, WIDTHS)), tuple(found))


def measure_dense(clock: Clock, device: torch.device) -> Gemm:
    """Tall matrices times square ones, and what the gradient of the square one takes.

    Of 16 MiB: features come from memory, and narrow products are bound by that.
    """
    found = []
    for width in WIDTHS:
        rows = (1 << 24) // width // 4
        H, W = _dense(rows, width, device), _dense(width, width, device)
        out = _dense(rows, width, device)

        def both(H: Tensor = H, W: Tensor = W, out: Tensor = out) -> None:
            kernels.times_transposed(H, W)
            kernels.transposed_times(out, H)

        found.append(4 * rows * width * width / clock(both))
    return Gemm(tuple(map(float, WIDTHS)), tuple(found))


def measure_streams(clock: Clock, device: torch.device) -> Streams:
    """ReLU's gradient, dropout, and the cross-entropy of 32 classes with its gradient."""
    width = 32
    rows = _STREAM_BYTES // (4 * width)
    H, G = _dense(rows, width, device), _dense(rows, width, device)
    ids = torch.arange(rows, device=device)
    one, target = float(H.nbytes), ids % width
    scores = H.clone().requires_grad_()

    def loss() -> None:
        scores.grad = None
        kernels.cross_entropy_sum(scores, target).backward()

    return Streams(
        3 * one / clock(lambda: torch.ops.aten.threshold_backward(G, H, 0)),
        2 * one / clock(lambda: kernels.dropout_rows(H, ids, 1, 0.5)),
        3 * one / clock(loss),
    )


def measure_operators(clock: Clock, device: torch.device) -> float:
    """What a small operator costs, called once forward and once backward."""
    small, many = torch.ones(8, 8, device=device), 200

    def operators() -> None:
        H = small
        for _ in range(many):
            H = torch.relu(H)

    # With gradients an operator is called twice, and autograd takes as long as the call.
    return 2 * clock(operators) / many


def random_matrix(columns: int, degree: int, rows: int = _ROWS) -> CSR:
    """So many nonzeros in every row, anywhere."""
    indices, _ = _draws(rows * degree, columns).view(rows, degree).sort(dim=1)
    indptr = torch.arange(rows + 1) * degree
    return CSR(Pattern(indptr, indices.reshape(-1), (rows, columns)))


def _draws(count: int, limit: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(limit, (count,), generator=generator, dtype=torch.int32)


def _dense(rows: int, width: int, device: torch.device) -> Tensor:
    return torch.ones(rows, width, device=device)
