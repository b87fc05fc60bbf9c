"""Attention where a group of ranks shares feature columns out: each rank weighs some of the heads.

A softmax is one of a head, so rows are turned by whole heads, and nothing is added up between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spgnn.attention.engine import Attention
from spgnn.attention.passes import Forward, Inputs, nothing
from spgnn.attention.scores import Gradients, Scores
from spgnn.errors import InputError
from spgnn.exchange import Plan, Step
from spgnn.exchange.executor import Way, Workspace
from spgnn.exchange.needs import Communicators
from spgnn.exchange.plan import Carried, Turn, Turned
from spgnn.exchange.stacks import Codecs
from spgnn.kernels.attention import head_products
from spgnn.layout import Int64Array
from spgnn.sparse import SUM_DTYPE


@dataclass(frozen=True, eq=False)
class HeadTurn(Turn):
    """A turn by whole heads: as many ranks as can have equally many; others have none."""

    heads: int

    @property
    def sharers(self) -> int:
        """Ranks that have heads."""
        return max(k for k in range(1, len(self.rows) + 1) if self.heads % k == 0)

    def shares(self, width: int) -> Int64Array:
        """Columns of each rank, of as many columns for every head."""
        has = np.arange(len(self.rows)) < self.sharers
        return np.asarray(has * (width // self.sharers), np.int64)


class _Turns(NamedTuple):
    before: HeadTurn  # of sources
    after: HeadTurn  # of destinations


class TurnedAttention(Attention):
    """Attention over a plan of one `Turned`; arguments as of :class:`Attention`, but no codec."""

    ends_here = False

    def __init__(
        self,
        plan: Plan,
        mesh: Communicators,
        workspace: Workspace | None = None,
        codecs: Codecs | None = None,
        *,
        buffer: int = 0,
    ) -> None:
        (factor,) = plan.stages
        assert isinstance(factor, Turned)
        if codecs is not None:
            raise InputError("attention with a codec needs --algo 1d, 1.5d, 2d or vertex-cut")
        self._factor, self._comm = factor, mesh[factor.before.axis]
        self._inner = Attention(Plan(factor.stages), mesh, workspace, buffer=buffer)
        self.rows, self.columns = plan.shape
        self._ids: tuple[Tensor, Tensor | None, tuple[Tensor, ...]] | None = None

    def ids(self, vertex_ids: Tensor, row_columns: Tensor | None) -> tuple[Tensor, ...]:
        """Original ids, as `Attention` has them, of the rows of all ranks of the group."""
        before, after = self._factor.before, self._factor.after
        if self._ids is None or not self.knows(vertex_ids, row_columns):
            first = int(before.rows[: before.me].sum())
            rows = torch.arange(self.rows, device=vertex_ids.device)
            rows = first + (rows if row_columns is None else row_columns)
            everyone = vertex_ids.new_empty(before.all), vertex_ids.new_empty(after.all)
            self._comm.all_gather(vertex_ids.contiguous(), everyone[0], before.rows.tolist())
            self._comm.all_gather(rows, everyone[1], after.rows.tolist())
            self._ids = vertex_ids, row_columns, everyone
        return self._inner.ids(*self._ids[2])

    def carried(
        self, width: int, heads: int, dtype: torch.dtype, step: Step, *, joint: bool
    ) -> Iterator[Carried]:
        """Bytes of a step, exchange by exchange, turns included."""
        before, after = self._turns(heads)
        scores = (width, dtype) if joint else (heads, SUM_DTYPE[dtype])
        if step.adjoint:
            yield after.carried(width, dtype, back=False)
            yield after.carried(heads, SUM_DTYPE[dtype], back=False)
        else:
            yield before.carried(width, dtype, back=False)
            yield after.carried(*scores, back=False)
        if own := before.share(heads):
            yield from self._inner.carried(before.share(width), own, dtype, step, joint=joint)
        if step.adjoint:
            yield before.carried(width, dtype, back=True)
            yield after.carried(*scores, back=True)
        else:
            yield after.carried(width, dtype, back=True)

    def forward(self, inputs: Inputs, step: Step, *, gradients: bool = True) -> list[Tensor]:
        """Weighted sums of own rows, then those of the share, and what its gradients need."""
        Z, dst, scores, *_ = inputs
        before, after = self._turns(scores.heads)
        part = inputs._replace(Z=self._turned(before, Z), dst=self._turned(after, dst))
        saved: Sequence[Tensor] = self._nothing(part, gradients=gradients)
        if before.share(scores.heads):
            saved = self._inner.forward(self._part(part), step, gradients=gradients)
        out = self._way(after, Z.shape[1]).adjoint(saved[0])
        rows = part[:2] if gradients else (Z.new_empty(0, 0), dst.new_empty(0, 0))
        return [out, *saved[1:], *rows]

    def new(
        self, Z: Tensor, dst: Tensor, a: Tensor, *, joint: bool, gradients: bool
    ) -> list[Tensor]:
        """Empty results of `forward`."""
        turns, operands = self._turns(len(a)), (Z, dst)
        rows = [
            each.new_empty(turn.all, turn.share(each.shape[1]))
            for turn, each in zip(turns, operands, strict=True)
        ]
        part = Inputs(rows[0], rows[1], Scores(a, 0.0, joint))
        saved = self._nothing(part, gradients=gradients)
        rows = rows if gradients else [each.new_empty(0, 0) for each in operands]
        return [Z.new_empty(self.rows, Z.shape[1]), *saved[1:], *rows]

    def _nothing(self, part: Inputs, *, gradients: bool) -> Forward:
        """Empty results of the share."""
        Z, dst, scores, *_ = part
        a, inner = scores.a[self._heads(scores.heads)], self._inner
        return nothing(inner.pieces, inner.rows, Z, dst, a, scores.joint, gradients)

    def backward(
        self,
        G: Tensor,
        inputs: Inputs,
        saved: Sequence[Tensor],
        step: Step,
        D: Tensor | None = None,
    ) -> Gradients:
        """Gradients in own rows; that in a has numbers where this rank's heads are."""
        *saved, Z, dst = saved
        heads, width = inputs.scores.heads, G.shape[1]
        before, after = self._turns(heads)
        D = self._turned(after, head_products(G, saved[0], heads))
        G, da = self._turned(after, G), torch.zeros_like(inputs.scores.a)
        dZ, d_dst = torch.empty_like(Z), torch.empty_like(dst)
        if before.share(heads):
            part = self._part(inputs._replace(Z=Z, dst=dst))
            result = self._inner.backward(G, part, saved, step, D)
            assert result.dst is not None
            dZ, d_dst = result.Z, result.dst
            da[self._heads(heads)] = result.a
        of_dst = self._way(after, inputs.dst.shape[1]).adjoint(d_dst)
        return Gradients(self._way(before, width).adjoint(dZ), of_dst, da, None)

    def _turned(self, turn: Turn, rows: Tensor) -> Tensor:
        return self._way(turn, rows.shape[1]).forward(rows)

    def _way(self, turn: Turn, width: int) -> Way:
        return Way(turn, self._comm, width)

    def _turns(self, heads: int) -> _Turns:
        turns = self._factor.before, self._factor.after
        return _Turns(*(HeadTurn(turn.axis, turn.me, turn.rows, heads) for turn in turns))

    def _heads(self, heads: int) -> slice:
        """The heads of this rank."""
        shares = self._turns(heads).before.shares(heads)
        me = self._factor.before.me
        return slice(int(shares[:me].sum()), int(shares[: me + 1].sum()))

    def _part(self, inputs: Inputs) -> Inputs:
        """Operands of the share, whose rows have been turned."""
        scores, turn = inputs.scores, self._turns(inputs.scores.heads).before
        drops = inputs.drops
        if drops is not None:
            key, p, vertex_ids, row_columns = drops
            self.ids(vertex_ids, row_columns)
            assert self._ids is not None
            drops = (key, p, *self._ids[2])  # type: ignore[assignment]
        a = scores.a[self._heads(scores.heads)].contiguous()
        part = turn.sharers, turn.me
        return inputs._replace(scores=scores._replace(a=a), drops=drops, part=part)
