"""What the GPU suite measures and checks of fused attention: against torch, edge by edge."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from gpu_measurements import Calls, Clock
from gpu_operations import HEADS, Line, compare
from torch import Tensor

from spgnn import CSR
from spgnn.kernels import torch_kernels
from spgnn.kernels.attention import FINISHED, AttentionDropout, Gat, GatV2, Rules, Target
from spgnn.kernels.library import kernels_for
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the largest number
HUB_SHAPE = 8, 8
KINDS = "GAT", "GATv2"


class Case:
    """One kind of attention over one pattern, forward and backward, by any of the ways."""

    def __init__(
        self,
        kind: str,
        pattern: Pattern,
        shape: tuple[int, int],
        dtype: torch.dtype = torch.float32,
        *,
        dropped: float = 0.0,
    ) -> None:
        heads, width = shape
        rows, cols = pattern.shape
        self.kind, self.pattern, self.shape, self.dtype = kind, pattern, shape, dtype
        where, wide = pattern.device, SUM_DTYPE[dtype]
        features = partial(torch.randn, device=where, dtype=dtype)
        self.operands: Gat | GatV2
        if kind == "GAT":
            d, s = (torch.randn(n, heads, device=where, dtype=wide) for n in (rows, cols))
            self.operands = Gat(d, s, features(cols, heads * width))
        else:
            a = torch.randn(heads, width, device=where, dtype=wide)
            x, y = (features(n, heads * width) for n in (rows, cols))
            self.operands = GatV2(x, y, a)
        self.G = features(rows, heads * width)
        ids = (torch.arange(n, device=where) for n in (rows, cols))
        self.rules = Rules(0.2, None, AttentionDropout(7, dropped, *ids))

    def forward(self, by: Any) -> tuple[Tensor, ...]:
        """Weighted sums, normalisers, and what GAT keeps for its gradient."""
        (rows, _), (heads, _), wide = self.pattern.shape, self.shape, SUM_DTYPE[self.dtype]
        out, lse = torch.empty_like(self.G), self.G.new_empty((rows, heads), dtype=wide)
        kept = (torch.empty_like(out, dtype=wide), torch.empty_like(lse))
        twice = kept if self.kind == "GAT" else (None, None)
        target = Target(FINISHED, (None, None, None, *twice), out, lse)
        by.attend(self.pattern, self.operands, self.rules, target)
        return (out, lse, *kept) if self.kind == "GAT" else (out, lse)

    def backward(self, by: Any, lse: Tensor, D: Tensor) -> tuple[Tensor, ...]:
        """Gradients in the operands, but for that in d, which is made row by row."""
        *gradients, _ = by.attend_backward(self.pattern, self.operands, self.rules, self.G, lse, D)
        return tuple(gradients)

    def lines(self, name: str, run: tuple[Clock, int]) -> Iterator[Line]:
        """Both directions, against torch."""
        ours, heads = kernels_for(self.G), self.shape[0]
        expected = self.forward(torch_kernels)
        right = self._agree(self.forward(ours), expected)
        calls: Calls = {
            "baseline": partial(self.forward, torch_kernels),
            "spgnn": partial(self.forward, ours),
        }
        yield compare(name, self.shape, calls, right, run)
        out, lse = expected[:2]
        D = torch.empty_like(lse)
        torch_kernels.head_products(self.G, out, D)
        again = torch.empty_like(D)
        ours.head_products(self.G, out, again)
        _ = self.pattern.T  # made once for both
        right = self._agree(
            (*self.backward(ours, lse, D), again), (*self.backward(torch_kernels, lse, D), D)
        )
        calls = {
            "baseline": partial(self.backward, torch_kernels, lse, D),
            "spgnn": partial(self.backward, ours, lse, D),
        }
        assert lse.shape[1] == heads
        yield compare(f"{name}, gradients", self.shape, calls, right, run)

    def _agree(self, found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
        """Whole arrays; rows without nonzeros have an lse of −∞."""
        return all(
            bool(((a - b).abs() <= TOLERANCE[self.dtype] * b.abs().max()).all())
            for a, b in (
                (x.float().nan_to_num(torch.nan, neginf=0), y.float().nan_to_num(neginf=0))
                for x, y in zip(found, expected, strict=True)
            )
        )


def fused_attention(A: CSR, clock: Clock, rounds: int) -> Iterator[Line]:
    """GAT and GATv2 on one graph; with dropout, in bfloat16, and with a hub, GAT alone."""
    run = clock, rounds
    for kind in KINDS:
        for shape in HEADS:
            yield from Case(kind, A.pattern, shape).lines(kind, run)
    shape = HEADS[0]
    yield from Case("GAT", A.pattern, shape, dropped=0.5).lines("GAT, dropout", run)
    yield from Case("GAT", A.pattern, shape, torch.bfloat16).lines("GAT, bfloat16", run)


def hub_attention(clock: Clock, rounds: int, where: str, nnz: int) -> Iterator[Line]:
    """A row with half of all nonzeros ("spgnn") against as many spread evenly ("baseline")."""
    rows, kept = nnz // 16, []
    for hub in (False, True):
        lengths = torch.full((rows,), 8 if hub else 16)
        lengths[rows // 2] += hub * (nnz // 2)
        indptr = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
        indices = torch.randint(rows, (int(indptr[-1]),), dtype=torch.int32)
        kept.append(Case("GAT", CSR.of(indptr, indices, (rows, rows)).to(where).pattern, HUB_SHAPE))
    even, heavy = kept
    ours = kernels_for(heavy.G)
    found, expected = heavy.forward(ours), heavy.forward(torch_kernels)
    calls: Calls = {"baseline": partial(even.forward, ours), "spgnn": partial(heavy.forward, ours)}
    right = heavy._agree(found, expected)
    yield compare("GAT, half of all nonzeros in a row", HUB_SHAPE, calls, right, (clock, rounds))
