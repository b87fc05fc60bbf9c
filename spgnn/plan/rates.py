"""Rates of this rank's kernels at several widths, attention and largest neighbours among them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention.scores import Block, Scores, Whole
from spgnn.kernels.attention import AttentionDropout, finish, head_products
from spgnn.pattern import Pattern
from spgnn.plan.machine import Edges, Gather, Gemm, Spmm, Streams, Weighed
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
    """Seconds of a small operator, called once forward and once backward."""
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


EDGES = ("gat", "gatv2", "largest")
_WIDTHS, _OPERAND_BYTES, _DEGREES, _HEADS = (8, 64, 256), (1 << 18, 1 << 21), (4, 16), 8
_EDGE_ROWS = 1 << 11  # at least, or calls would be all that is measured
# Of the time with many nonzeros at least so much is theirs, whatever a noisy machine says.
_SHARE = 0.05
# Forward and backward of one layer on a matrix, with rows of some width and some heads.
Bodies = Callable[[CSR, int, int, float, torch.device], tuple[Callable[[], object], ...]]
_DROPPED = 0.5


def measure_edges(clock: Clock, device: torch.device, kinds: Collection[str] = EDGES) -> Edges:
    """Attention and largest neighbours on random matrices that fit into a cache, or do not.

    Work of a layer on its rows, apart from its edges, is part of the cost of a row.

    Parameters
    ----------
    clock : Clock
    device : torch.device
    kinds : collection of str
        Of `EDGES`.
    """
    bodies: dict[str, Bodies] = {"gat": _attention, "gatv2": _joint, "largest": _largest}
    return Edges(
        **{kind: _measured(clock, device, bodies[kind]) for kind in EDGES if kind in kinds}
    )


def _measured(clock: Clock, device: torch.device, bodies: Bodies) -> Weighed:
    """Costs of both directions; those of heads and of dropout are measured in one case each."""
    costs = [
        [_costs(clock, device, bodies, (size, width)) for width in _WIDTHS]
        for size in _OPERAND_BYTES
    ]
    size, width = _OPERAND_BYTES[-1], _WIDTHS[1]
    many = _costs(clock, device, bodies, (size, width), heads=_HEADS)
    dropped = _costs(clock, device, bodies, (size, width), rate=_DROPPED)
    tables, others = [], dict[str, float]()
    for way in (0, 1):
        nonzeros = tuple(tuple(each[way][1] for each in row) for row in costs)
        rows = tuple(each[way][0] for each in costs[-1])
        sizes = tuple(map(float, _OPERAND_BYTES))
        tables.append(Spmm(sizes, tuple(map(float, _WIDTHS)), nonzeros, rows))
        one, name = costs[-1][1][way], ("forward", "backward")[way]
        of_head = [
            max(0.0, more - least) / (_HEADS - 1)
            for more, least in zip(many[way], one, strict=True)
        ]
        others |= {f"{name}_row_head": of_head[0], f"{name}_head": of_head[1]}
        others[f"{name}_drop"] = max(0.0, dropped[way][1] - one[1])
    return Weighed(tables[0], tables[1], **others)


def _costs(
    clock: Clock,
    device: torch.device,
    bodies: Bodies,
    shape: tuple[int, int],
    *,
    heads: int = 1,
    rate: float = 0.0,
) -> list[tuple[float, float]]:
    """Seconds of a row and of a nonzero, forward and backward."""
    size, width = shape
    columns, (few, many) = size // (4 * width), _DEGREES
    rows = max(_EDGE_ROWS, columns)
    found = []
    for degree in _DEGREES:
        A = random_matrix(columns, degree, rows).to(device)
        found.append([clock(body) / rows for body in bodies(A, width, heads, rate, device)])
    costs = []
    for least, most in zip(*found, strict=True):
        nonzero = max((most - least) / (many - few), _SHARE * most / many)
        costs.append((max(least - few * nonzero, 0.05 * least), nonzero))
    return costs


def _attention(
    A: CSR, width: int, heads: int, rate: float, device: torch.device
) -> tuple[Callable[[], object], ...]:
    a = torch.full((heads, width // heads), 0.1, device=device)
    return _weighing(
        A, Scores(a, 0.2, joint=False), torch.ones(A.shape[0], heads, device=device), rate
    )


def _joint(
    A: CSR, width: int, heads: int, rate: float, device: torch.device
) -> tuple[Callable[[], object], ...]:
    a = torch.full((heads, width // heads), 0.1, device=device)
    return _weighing(
        A, Scores(a, 0.2, joint=True), torch.ones(A.shape[0], width, device=device), rate
    )


def _weighing(
    A: CSR, scores: Scores, ends: Tensor, rate: float
) -> tuple[Callable[[], object], ...]:
    """As :class:`spgnn.attention.passes.Pass` weighs a block."""
    heads, width = scores.a.shape
    Z = torch.ones(A.shape[1], heads * width, device=ends.device)
    rows, columns = (torch.arange(length, device=ends.device) for length in A.shape)
    dropout = AttentionDropout(1, rate, rows, columns) if rate else None
    block = Block(A.pattern, ends, Z, dropout=dropout)

    def forward() -> tuple[Tensor, Tensor]:
        return finish(scores.attend(block, None, gradients=True), Z.dtype)

    out, lse = forward()

    G = torch.ones_like(out)

    def backward() -> object:
        return scores.gradient(block, Whole(G, lse, head_products(G, out, heads)))

    return forward, backward


def _largest(
    A: CSR, width: int, heads: int, rate: float, device: torch.device
) -> tuple[Callable[[], object], ...]:
    H = torch.ones(A.shape[1], width, device=device, requires_grad=True)
    bare = CSR(A.pattern)
    Z, G = kernels.spmm(bare, H, reduce="max"), torch.ones(A.shape[0], width, device=device)
    forward = partial(kernels.spmm, bare, H.detach(), reduce="max")
    return forward, lambda: torch.autograd.grad(Z, H, G, retain_graph=True)
