"""Attention over a distributed matrix, forward and backward, with the exchange overlapped."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn.attention.pieces import Pieces, pieces
from spgnn.attention.scores import NOTHING, Block, Kept, Scores, Whole, merge_partials_
from spgnn.attention.ways import Sent, Way, packed, unpacked
from spgnn.errors import InputError
from spgnn.exchange import Executor, Plan, Step, Workspace
from spgnn.exchange.schedule import Arriving, Communicators, Exchange
from spgnn.kernels.attention import AttentionDropout, AttentionState, finish, head_products
from spgnn.sparse import SUM_DTYPE


class Forward(NamedTuple):
    """The rows that were made, and what the gradient needs: tensors only, empty if not needed.

    Attributes
    ----------
    out : Tensor [rows, heads * channels]
    lse : Tensor [rows, heads]
        Logarithm of the sum of exp(score) over all edges of a row, on whatever rank.
    kept : Kept
        Of the rows before the fold.
    ends : Tensor [rows before the fold, …]
        Empty where there is none.
    fetched : Tensor [fetched rows, heads * channels]
    asked : Tensor [partials for others, …]
        Their destinations' ends.
    asked_kept : Kept
    """

    out: Tensor
    lse: Tensor
    kept: Kept
    ends: Tensor
    fetched: Tensor
    asked: Tensor
    asked_kept: Kept


class Gradients(NamedTuple):
    """Of a layer's operands; that of edges is ``None`` where there were no edge scores."""

    Z: Tensor
    ends: Tensor
    a: Tensor
    edges: Tensor | None


class Ids(NamedTuple):
    """Original numbers of vertices, int64: what dropout of an edge is a function of."""

    rows: Tensor
    columns: Tensor
    fetched: Tensor
    asked: Tensor


class Rate(NamedTuple):
    """Dropout of weights: its probability and key, and the vertices' original numbers."""

    p: float
    key: int
    ids: Ids

    def of(self, rows: Tensor, columns: Tensor) -> AttentionDropout:
        """The same for one block."""
        return AttentionDropout(self.key, self.p, rows, columns)


class Blocks(NamedTuple):
    """Something for each block: that at hand, that of fetched sources, that of partials."""

    local: AttentionDropout | None = None
    remote: AttentionDropout | None = None
    asked: AttentionDropout | None = None

    @classmethod
    def of(cls, rate: Rate | None) -> Blocks:
        """Dropout of every block."""
        if rate is None:
            return cls()
        rows, columns, fetched, asked = rate.ids
        return cls(rate.of(rows, columns), rate.of(rows, fetched), rate.of(asked, columns))


class Attention:
    """What runs attention over the nonzeros of one matrix.

    Parameters
    ----------
    plan : Plan
        Of this rank.
    mesh : communicators by axis
    workspace : Workspace, optional
        Buffers to share with what never runs at the same time.

    Attributes
    ----------
    pieces : Pieces
    rows, columns : int
        Rows this rank makes, and rows of Z it holds.

    Raises
    ------
    InputError
        If rows take a way on which they are added up, or are cut into columns.
    """

    def __init__(self, plan: Plan, mesh: Communicators, workspace: Workspace | None = None) -> None:
        self.pieces: Pieces = pieces(plan)
        self.rows, self.columns = plan.shape
        self._mesh, self._workspace = mesh, workspace
        self._ids: tuple[Tensor, Tensor | None, Ids] | None = None

    @cached_property
    def _exchange(self) -> Exchange | None:
        """What fetches sources."""
        fetch = self.pieces.fetch
        if fetch is None:
            return None
        return Executor(Plan((fetch,)), self._mesh, workspace=self._workspace).exchange(fetch)

    @cached_property
    def _sums(self) -> Way | None:
        sums = self.pieces.sums
        return None if sums is None else Way(sums, self._mesh[sums.axis])

    @cached_property
    def _fold(self) -> Way | None:
        fold = self.pieces.fold
        return None if fold is None else Way(fold, self._mesh[fold.axis])

    @property
    def edges(self) -> int:
        """Nonzeros of this rank's rows, those of partials apart."""
        remote = self.pieces.remote
        return self.pieces.local.nnz + (0 if remote is None else remote.nnz)

    def check_edges(self, edges: Tensor | None, *, wanted: bool = False) -> None:
        """Refuse edge scores that do not lie where the edges are.

        Parameters
        ----------
        edges : Tensor [edges, …], optional
        wanted : bool
            Whether there will be some.

        Raises
        ------
        InputError
        """
        if edges is None and not wanted:
            return
        if self.pieces.sums is not None or self.pieces.fold is not None:
            raise InputError(
                "edge features lie where the edge ends: they need --algo 1d and --cover column"
            )
        if edges is not None and edges.shape[0] != self.edges:
            raise InputError(
                f"this rank has {self.edges} edges, there are edge features of {edges.shape[0]}"
            )

    def ids(self, sources: Tensor, targets: Tensor | None) -> Ids:
        """Original numbers of all vertices that take part; of tensors seen before, as they were.

        Collective where they are new.

        Parameters
        ----------
        sources : Tensor int64 [columns]
        targets : Tensor int64 [rows], optional
            Which column each row is; without it, row i is column i.
        """
        if self._ids is not None and self.knows(sources, targets):
            return self._ids[2]
        rows = self._everywhere(sources[: self.rows] if targets is None else sources[targets])
        asked = fetched = sources[:0]
        if self._sums is not None:
            asked = self._sums.back(rows).wait()
        if self.pieces.fetch is not None:
            # Rows of two numbers that float64 holds exactly: whatever the wire is, it knows rows.
            halves = torch.stack((sources >> 32, sources & 0xFFFFFFFF), 1).double()
            high, low = self._fetched(halves).long().unbind(1)
            fetched = (high << 32) + low
        found = Ids(rows, sources, fetched, asked)
        self._ids = sources, targets, found
        return found

    def knows(self, sources: Tensor | None, targets: Tensor | None) -> bool:
        """Whether these very tensors are those of which the numbers were last asked."""
        return self._ids is not None and self._ids[0] is sources and self._ids[1] is targets

    def _fetched(self, rows: Tensor) -> Tensor:
        assert self._exchange is not None
        received = rows.new_empty(self.pieces.fetched, rows.shape[1])
        return self._exchange.begin(rows, Step(), received).wait()

    def forward(
        self,
        Z: Tensor,
        ends: Tensor,
        scores: Scores,
        step: Step,
        *,
        edges: Tensor | None = None,
        rate: Rate | None = None,
        gradients: bool = True,
    ) -> Forward:
        """Weighted sums of rows of Z. Collective.

        Parameters
        ----------
        Z : Tensor [columns, heads * channels]
        ends : Tensor [rows, …]
            The destinations' side of scores.
        scores : Scores
        step : Step
        edges : Tensor [edges, …], optional
            What edges add to scores, in the order of the nonzeros of [local, remote].
        rate : Rate, optional
            Dropout of weights.
        gradients : bool
            Whether to keep what these need.
        """
        parts, dropped, edges_of = self.pieces, Blocks.of(rate), self._split(edges)
        arriving, partials = self._begin(Z, step, gradients), None
        asked, asked_kept = ends.new_empty(0, ends.shape[1]), _kept(None, Z, scores)
        gathered = asked.clone()
        try:
            if self._fold is not None:
                ends = gathered = self._everywhere(ends)
            if self._sums is not None and parts.summed is not None:
                asked = self._sums.back(ends).wait()
                block = Block(parts.summed, asked, Z, dropout=dropped.asked)
                made = scores.attend(block, None, gradients=gradients)
                asked_kept = _kept(made if gradients else None, Z, scores)
                means, lse = finish(made, Z.dtype)
                partials = self._sums.there(packed(means, lse.clamp_(min=NOTHING)))
            block = Block(parts.local, ends, Z, edges_of[0], dropped.local)
            state = scores.attend(block, None, gradients=gradients)
        finally:
            # Whatever happened here: peers write into these buffers.
            fetched = Z.new_empty(0, Z.shape[1]) if arriving is None else arriving.wait()
        if parts.remote is not None:
            block = Block(parts.remote, ends, fetched, edges_of[1], dropped.remote)
            state = scores.attend(block, state, gradients=gradients)
        kept = _kept(state if gradients else None, Z, scores)
        if partials is not None and self._sums is not None:
            state = self._merged(self._sums, partials, state, Z)
        if self._fold is not None:
            state = self._folded(self._fold, state, Z)
        out, lse = finish(state, Z.dtype)
        if not gradients:
            fetched = Z.new_empty(0, Z.shape[1])
            gathered, asked = (ends.new_empty(0, ends.shape[1]) for _ in range(2))
        return Forward(out, lse.clamp_(min=NOTHING), kept, gathered, fetched, asked, asked_kept)

    def backward(
        self,
        G: Tensor,
        Z: Tensor,
        ends: Tensor,
        scores: Scores,
        made: Forward,
        *,
        step: Step,
        edges: Tensor | None = None,
        rate: Rate | None = None,
    ) -> Gradients:
        """Gradients in all operands, from that in the rows that were made. Collective.

        Parameters
        ----------
        G : Tensor [rows, heads * channels]
        Z, ends, scores, step, edges, rate
            As forward.
        made : Forward
            What that returned.
        """
        parts, dropped, edges_of = self.pieces, Blocks.of(rate), self._split(edges)
        whole = Whole(G, made.lse, head_products(G, made.out, scores.heads))
        if self._fold is not None:
            ends, whole = made.ends, _unpacked(self._everywhere(packed(*whole)), whole)
        asked = None if self._sums is None else self._sums.back(packed(*whole))
        d_ends = scores.ends_gradient(made.kept, whole)
        da, returning, of_remote = torch.zeros_like(scores.a), None, None
        if parts.remote is not None and self._exchange is not None:
            block = Block(parts.remote, ends, made.fetched, edges_of[1], dropped.remote)
            found = scores.gradient(block, whole)
            returning = self._exchange.begin_adjoint(found.Z, step.reversed())
            da, of_remote, d_ends = da + found.a, found.edges, _sum(d_ends, found.ends)
        try:
            dZ, returned = None, None
            if asked is not None and self._sums is not None and parts.summed is not None:
                theirs = _unpacked(asked.wait(), whole)
                block = Block(parts.summed, made.asked, Z, dropout=dropped.asked)
                found = scores.gradient(block, theirs)
                of_ends = _sum(scores.ends_gradient(made.asked_kept, theirs), found.ends)
                assert of_ends is not None
                dZ, da, returned = found.Z, da + found.a, self._sums.there(of_ends)
            block = Block(parts.local, ends, Z, edges_of[0], dropped.local)
            found = scores.gradient(block, whole)
        finally:
            if returning is not None:
                returning.wait()
        dZ = found.Z if dZ is None else dZ.add_(found.Z)
        d_ends = _sum(d_ends, found.ends)
        assert d_ends is not None
        if returning is not None:
            returning.add_to(dZ)
        if returned is not None and self._sums is not None:
            d_ends = self._sums.add_(d_ends, returned.wait())
        if self._fold is not None:
            d_ends = self._folded_sum(self._fold, d_ends)
        return Gradients(dZ, d_ends, da + found.a, self._joined(found.edges, of_remote))

    def _begin(self, Z: Tensor, step: Step, gradients: bool) -> Arriving | None:
        if self._exchange is None:
            return None
        # What gradients need is kept beyond the next exchange.
        received = Z.new_empty(self.pieces.fetched, Z.shape[1]) if gradients else None
        return self._exchange.begin(Z, step, received)

    def _everywhere(self, rows: Tensor) -> Tensor:
        """Rows that this rank makes to all rows that it has a part of; adjoint of a fold."""
        if self._fold is None:
            return rows
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        found = rows.new_empty(parts.local.shape[0], *rows.shape[1:])
        arriving = self._fold.back(rows)
        found[parts.mine] = rows
        found[parts.others] = arriving.wait()
        return found

    def _merged(self, way: Way, partials: Sent, state: AttentionState, Z: Tensor) -> AttentionState:
        means, lse = unpacked(partials.wait(), Z.shape[1], state.m.dtype, 1)
        return merge_partials_(way.partials.received, means, lse, state)

    def _folded(self, way: Way, state: AttentionState, Z: Tensor) -> AttentionState:
        """Of rows that several ranks have a part of, those that this rank makes."""
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        means, lse = finish(state)
        lse.clamp_(min=NOTHING)
        given = packed(means[parts.others].to(Z.dtype), lse[parts.others])
        arriving = way.there(given)
        lse = lse[parts.mine]
        mine = AttentionState(lse, torch.ones_like(lse), means[parts.mine])
        return self._merged(way, arriving, mine, Z)

    def _folded_sum(self, way: Way, rows: Tensor) -> Tensor:
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        arriving = way.there(rows[parts.others])
        return way.add_(rows[parts.mine], arriving.wait())

    def _split(self, edges: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """What edges have, for those of the local block and for the others."""
        if edges is None or self.pieces.remote is None:
            return edges, None
        local, remote = self._places
        return edges[local], edges[remote]

    def _joined(self, local: Tensor | None, remote: Tensor | None) -> Tensor | None:
        if local is None or remote is None:
            return local
        places, joined = self._places, local.new_empty(self.edges, *local.shape[1:])
        joined[places[0]], joined[places[1]] = local, remote
        return joined

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Where the nonzeros of both blocks lie among those of [local, remote], int64."""
        left, right = self.pieces.local, self.pieces.remote
        assert right is not None
        # Entries move right by what their row has of the other block before them.
        before = right.indptr[:-1].repeat_interleave(left.row_lengths)
        after = left.indptr[1:].repeat_interleave(right.row_lengths)
        return before + torch.arange(left.nnz, device=left.device), after + torch.arange(
            right.nnz, device=left.device
        )


def _kept(state: AttentionState | None, Z: Tensor, scores: Scores) -> Kept:
    """What gradients need of a state; empty if they need nothing."""
    if state is None or state.P is None or state.pi is None:
        wide = Z.new_empty(0, Z.shape[1], dtype=SUM_DTYPE[Z.dtype])
        narrow = wide.new_empty(0, scores.heads)
        return Kept(narrow, wide, torch.empty_like(narrow))
    return Kept(state.m, state.P, state.pi)


def _unpacked(together: Tensor, like: Whole) -> Whole:
    return Whole(*unpacked(together, like.G.shape[1], like.lse.dtype, 2))


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one.add_(other)
