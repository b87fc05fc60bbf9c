"""Transposes: from own rows of all columns to all rows of a group and a share of the columns.

Between a turn and the turn back, a group of c ranks multiplies a matrix that all of them hold, each
with 1/c of the columns of H, so rows travel at 1/c of their width (Kurt et al., RDM, IPDPS'23; Ai
et al., NeutronTP, PVLDB 18, 2024). A turn and the turn back are each other's adjoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import RowCounts
from spgnn.exchange.plan import Factor, Hop
from spgnn.exchange.schedule import Executor, Runner, runner
from spgnn.exchange.traffic import Messages
from spgnn.exchange.transport import Step
from spgnn.layout import Int64Array
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class Turn:
    """The transpose of a group of ranks: [own rows, f] to [rows of the group, share of f].

    Columns are shared out without padding: of f columns, the first f mod c ranks have one more than
    the others, and where f < c some have none. Rows stay in the order of the ranks.

    Attributes
    ----------
    axis : str
        Of the mesh; the group are the peers along it.
    me : int
        Which of them this rank is.
    rows : int64 [c]
        Rows that each of them has.
    """

    axis: str
    me: int
    rows: Int64Array

    @property
    def own(self) -> int:
        """Rows that this rank has."""
        return int(self.rows[self.me])

    @property
    def all(self) -> int:
        """Rows of the group."""
        return int(self.rows.sum())

    def shares(self, width: int) -> Int64Array:
        """Columns of each rank of the group, int64 [c], of so many in all."""
        peers = len(self.rows)
        return width // peers + (np.arange(peers) < width % peers)

    def share(self, width: int) -> int:
        """Columns of this rank."""
        return int(self.shares(width)[self.me])

    def counts(self, width: int) -> RowCounts:
        """Elements to and from each rank of the group, this one included."""
        shares = self.shares(width)
        largest = int(self.rows.max()) * int(shares.max())
        return RowCounts(self.own * shares, self.rows * int(shares[self.me]), largest)

    def messages(self, width: int, *, back: bool) -> Messages:
        """What a turn moves, or a turn back: elements, to and from the others."""
        apart = np.arange(len(self.rows)) != self.me
        counts = self.counts(width).reversed() if back else self.counts(width)
        return Messages(self.axis, counts.send * apart, counts.recv * apart, 1, wired=False)


@dataclass(frozen=True, eq=False)
class Turned:
    """A turn, some stages at a share of the columns, and the turn back: one factor of a plan.

    Attributes
    ----------
    before : Turn
        Of the rows of H.
    stages : tuple of Factor
        From the rows of H to the rows made, of all ranks of the group.
    after : Turn
        Of the rows made; run backwards.
    """

    before: Turn
    stages: tuple[Factor, ...]
    after: Turn

    @property
    def shape(self) -> tuple[int, int]:
        """Rows this rank makes, and rows of the operand it holds."""
        return self.after.own, self.before.own

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Those of the stages. The turns have no wires: they move everything, as it is."""
        return tuple(hop for stage in self.stages for hop in stage.hops)

    def blocks(self) -> Iterator[CSR]:
        """All matrices of the stages."""
        return chain.from_iterable(stage.blocks() for stage in self.stages)

    def share(self, width: int) -> int:
        """Columns that they multiply: this rank's."""
        return self.before.share(width)

    def messages(self, width: int, *, adjoint: bool = False) -> Iterator[Messages]:
        """What one product of some width moves: both turns, and the stages between."""
        yield self.before.messages(width, back=adjoint)
        for stage in self.stages:
            yield from stage.messages(self.before.share(width), adjoint=adjoint)
        yield self.after.messages(width, back=not adjoint)

    def buffers(self, width: int) -> int:
        """Elements of messages, of what has been turned, and of the buffers of the stages."""
        before, after = self.before, self.after
        share = self.share(width)
        turned = width * max(before.own, after.own) + share * max(before.all, after.all)
        return turned + sum(stage.buffers(share) for stage in self.stages)

    def to(self, target: torch.dtype | torch.device | str) -> Turned:
        """The same on a device, or ready for operands of a dtype."""
        return Turned(self.before, tuple(stage.to(target) for stage in self.stages), self.after)


class Turning:
    """Runs a :class:`Turned`.

    Parameters
    ----------
    stage : Turned
    first : int
        The number of its first hop in the plan.
    executor : Executor
        Whose communicators and buffers it uses.
    """

    def __init__(self, stage: Turned, first: int, executor: Executor) -> None:
        self._stage, self._first, self._executor = stage, first, executor
        self._runners = executor.runners(stage.stages, first)

    def forward(self, H_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """Turn, multiply, turn back. Collective."""
        H_share = self._turned(self._stage.before, H_local)
        for stage in self._runners:
            H_share = stage.forward(H_share, step)
        return self._back(self._stage.after, H_share, H_local.shape[1], out)

    def adjoint(self, G_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """The same backwards. Collective."""
        G_share = self._turned(self._stage.after, G_local)
        for stage in reversed(self._runners):
            G_share = stage.adjoint(G_share, step)
        return self._back(self._stage.before, G_share, G_local.shape[1], out)

    def _turned(self, turn: Turn, H_local: Tensor) -> Tensor:
        """[own rows, f] to [rows of the group, share], in a buffer."""
        width = H_local.shape[1]
        message = self._elements("message", turn.own * width, H_local)
        for columns, block in _beside(H_local, message, len(turn.rows)):
            block.copy_(columns)
        share = turn.share(width)
        # Blocks arrive in the order of ranks: together they are the rows of the group.
        H_share = self._elements("share", turn.all * share, H_local)
        comm = self._executor.mesh[turn.axis]
        comm.alltoallv(message, H_share, turn.counts(width)).wait()
        return H_share.view(turn.all, share)

    def _back(self, turn: Turn, Z_share: Tensor, width: int, out: Tensor | None) -> Tensor:
        """[rows of the group, share] to [own rows, f], in `out` if given."""
        message = self._elements("message", turn.own * width, Z_share)
        comm = self._executor.mesh[turn.axis]
        given = Z_share.contiguous().view(-1)
        comm.alltoallv(given, message, turn.counts(width).reversed()).wait()
        Z_local = Z_share.new_empty(turn.own, width) if out is None else out
        for columns, block in _beside(Z_local, message, len(turn.rows)):
            columns.copy_(block)
        return Z_local

    def _elements(self, role: str, count: int, like: Tensor) -> Tensor:
        one_wide = like.new_empty(0, 1)
        return self._executor.workspace.rows((role, self._first), count, one_wide).view(-1)


def _beside(dense: Tensor, message: Tensor, peers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The columns of ranks that have equally many, [ranks, rows, share], and their blocks.

    At most two of each: of ranks with one more column, and of the others.
    """
    rows, width = dense.shape
    share, more = divmod(width, peers)
    split = more * (share + 1)
    for columns, block, ranks, size in (
        (dense[:, :split], message[: rows * split], more, share + 1),
        (dense[:, split:], message[rows * split :], peers - more, share),
    ):
        if columns.numel():
            apart = columns.unflatten(1, (ranks, size)).transpose(0, 1)
            yield apart, block.view(ranks, rows, size)


@runner.register
def _(stage: Turned, first: int, executor: Executor) -> Runner:
    return Turning(stage, first, executor)
