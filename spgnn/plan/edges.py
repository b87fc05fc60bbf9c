"""How fast this rank weighs, or compares, the neighbours of its rows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention.scores import Added, Block, Joint, Scores, Whole
from spgnn.kernels.attention import AttentionDropout, finish, head_products
from spgnn.plan.machine import Edges, Spmm, Weighed
from spgnn.plan.rates import Clock, random_matrix
from spgnn.sparse import CSR

EDGES = ("gat", "gatv2", "largest")
_WIDTHS, _OPERAND_BYTES, _DEGREES, _HEADS = (8, 64, 256), (1 << 18, 1 << 21), (4, 16), 8
_ROWS = 1 << 11  # at least, or calls would be all that is measured
# Of the time with many nonzeros at least so much is theirs, whatever a noisy machine says.
_SHARE = 0.05
# Forward and backward of one layer on a matrix, with rows of some width and some heads.
Bodies = Callable[[CSR, int, int, float, torch.device], tuple[Callable[[], object], ...]]
_DROPPED = 0.5


def measure_edges(clock: Clock, device: torch.device, kinds: Collection[str] = EDGES) -> Edges:
    """Attention and largest neighbours on random matrices that fit into a cache, or do not.

    What a layer does with its rows beside its edges is part of what a row costs.

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
    """Both directions; what heads and dropout cost beside is looked at in one case each."""
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
    rows = max(_ROWS, columns)
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
    return _weighing(A, Added(a, 0.2), torch.ones(A.shape[0], heads, device=device), rate)


def _joint(
    A: CSR, width: int, heads: int, rate: float, device: torch.device
) -> tuple[Callable[[], object], ...]:
    a = torch.full((heads, width // heads), 0.1, device=device)
    return _weighing(A, Joint(a, 0.2), torch.ones(A.shape[0], width, device=device), rate)


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
