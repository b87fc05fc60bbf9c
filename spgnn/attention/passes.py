"""Attention over blocks and exchanges, forward and backward, with the exchanges overlapped."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.attention.pieces import Pieces
from spgnn.attention.records import Blocks, Forward, Gradients, Rate
from spgnn.attention.scores import NOTHING, Block, Kept, Scores, Whole, merge_partials_
from spgnn.attention.ways import Load, Sent, Way
from spgnn.exchange import Step
from spgnn.exchange.executor import Arriving, Exchange
from spgnn.kernels.attention import AttentionState, finish, head_products
from spgnn.sparse import SUM_DTYPE

EdgeParts = tuple[Tensor | None, Tensor | None]
"""What edges have, for those of the local block and for those of fetched sources."""


class Pass:
    """One layer of attention, through exchanges that are given.

    Parameters
    ----------
    pieces : Pieces
    exchange : Exchange, optional
        What fetches sources.
    sums, fold : Way, optional
        Of partial softmaxes.
    log_share : float
        If sources and partials are a sample: logarithm of the share p of all that they are. The
        weight of each is 1/p times as large then.
    """

    def __init__(
        self,
        pieces: Pieces,
        exchange: Exchange | None,
        sums: Way | None,
        fold: Way | None,
        log_share: float = 0.0,
    ) -> None:
        self.pieces, self.exchange = pieces, exchange
        self.sums, self.fold = sums, fold
        self._log_share = log_share

    def forward(
        self,
        Z: Tensor,
        ends: Tensor,
        scores: Scores,
        step: Step,
        *,
        edges: EdgeParts,
        rate: Rate | None,
        gradients: bool,
    ) -> Forward:
        """Weighted sums of rows of Z; as of :meth:`Attention.forward`. Collective."""
        parts, dropped = self.pieces, Blocks.of(rate)
        arriving, partials = self._begin(Z, step, gradients), None
        asked, asked_kept = ends.new_empty(0, ends.shape[1]), _kept(None, Z, scores)
        gathered = asked.clone()
        try:
            if self.fold is not None:
                ends = gathered = self.everywhere(_of_ends(ends, scores), step)[0]
            if self.sums is not None and parts.summed is not None:
                (asked,) = self.sums.back(_of_ends(ends, scores), step).wait()
                block = Block(parts.summed, asked, Z, dropout=dropped.asked)
                made = scores.attend(block, None, gradients=gradients)
                asked_kept = _kept(made if gradients else None, Z, scores)
                means, lse = finish(made, Z.dtype)
                partials = self.sums.there(Load(means, (lse.clamp_(min=NOTHING),)), step)
            block = Block(parts.local, ends, Z, edges[0], dropped.local)
            state = scores.attend(block, None, gradients=gradients)
        finally:
            # Whatever happened here: peers write into these buffers.
            fetched = Z.new_empty(0, Z.shape[1]) if arriving is None else arriving.wait()
        if parts.remote is not None:
            block = Block(parts.remote, ends, fetched, edges[1], dropped.remote)
            # To lower what is there raises what comes.
            state = scores.attend(block, _raised_(state, self._log_share), gradients=gradients)
            state = _raised_(state, -self._log_share)
        kept = _kept(state if gradients else None, Z, scores)
        if partials is not None and self.sums is not None:
            state = self._merged(self.sums, partials, state)
        if self.fold is not None:
            state = self._folded(self.fold, state, Z, step)
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
        edges: EdgeParts,
        rate: Rate | None,
    ) -> tuple[Gradients, Tensor | None]:
        """Gradients in all operands, and in what edges of fetched sources have. Collective.

        Parameters
        ----------
        step : Step
            An adjoint one.
        others
            As of :meth:`Attention.backward`.
        """
        parts, dropped = self.pieces, Blocks.of(rate)
        whole = Whole(G, made.lse, head_products(G, made.out, scores.heads))
        if self.fold is not None:
            ends, whole = made.ends, self._whole_everywhere(whole, step)
        asked = None if self.sums is None else self.sums.back(_of_whole(whole), step)
        d_ends = scores.ends_gradient(made.kept, whole)
        da, returning, of_remote = torch.zeros_like(scores.a), None, None
        if parts.remote is not None and self.exchange is not None:
            block = Block(parts.remote, ends, made.fetched, edges[1], dropped.remote)
            found = scores.gradient(block, self._weighted(whole))
            returning = self.exchange.begin_adjoint(found.Z, step)
            da, of_remote, d_ends = da + found.a, found.edges, _sum(d_ends, found.ends)
        try:
            dZ, returned = None, None
            if asked is not None and self.sums is not None and parts.summed is not None:
                theirs = self._weighted(Whole(*asked.wait()))
                block = Block(parts.summed, made.asked, Z, dropout=dropped.asked)
                found = scores.gradient(block, theirs)
                of_ends = _sum(scores.ends_gradient(made.asked_kept, theirs), found.ends)
                assert of_ends is not None
                dZ, da = found.Z, da + found.a
                returned = self.sums.there(_of_ends(of_ends, scores), step)
            block = Block(parts.local, ends, Z, edges[0], dropped.local)
            found = scores.gradient(block, whole)
        finally:
            if returning is not None:
                returning.wait()
        dZ = found.Z if dZ is None else dZ.add_(found.Z)
        d_ends = _sum(d_ends, found.ends)
        assert d_ends is not None
        if returning is not None:
            returning.add_to(dZ)
        if returned is not None and self.sums is not None:
            d_ends = self.sums.add_(d_ends, *returned.wait())
        if self.fold is not None:
            d_ends = self._folded_sum(self.fold, d_ends, scores, step)
        return Gradients(dZ, d_ends, da + found.a, found.edges), of_remote

    def everywhere(
        self, load: Load, step: Step, nothing: tuple[float, ...] = (0.0, 0.0, 0.0)
    ) -> list[Tensor]:
        """Rows that this rank makes to all rows that it has a part of; adjoint of a fold.

        Collective. Of partial rows that are not in a sample there is `nothing`.
        """
        if self.fold is None:
            return load.tensors
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        arriving, everything = self.fold.back(load, step), []
        rows, known = parts.local.shape[0], len(parts.mine) + len(parts.others)
        for tensor, empty in zip(load.tensors, nothing, strict=False):
            found = tensor.new_empty(rows, *tensor.shape[1:])
            if known < rows:
                found.fill_(empty)
            found[parts.mine] = tensor
            everything.append(found)
        for found, arrived in zip(everything, arriving.wait(), strict=True):
            found[parts.others] = arrived
        return everything

    def _whole_everywhere(self, whole: Whole, step: Step) -> Whole:
        # A weight of nothing, whatever its score.
        found = Whole(*self.everywhere(_of_whole(whole), step, (0.0, -NOTHING, 0.0)))
        if self._log_share:
            found.lse[self.pieces.others] += self._log_share
        return found

    def _begin(self, Z: Tensor, step: Step, gradients: bool) -> Arriving | None:
        if self.exchange is None:
            return None
        # What gradients need is kept beyond the next exchange.
        received = Z.new_empty(self.pieces.fetched, Z.shape[1]) if gradients else None
        return self.exchange.begin(Z, step, received)

    def _weighted(self, whole: Whole) -> Whole:
        """Of sources, or partials, of which each stands for several."""
        return whole._replace(lse=whole.lse + self._log_share) if self._log_share else whole

    def _merged(self, way: Way, partials: Sent, state: AttentionState) -> AttentionState:
        means, lse = partials.wait()
        if self._log_share:
            lse = lse - self._log_share
        return merge_partials_(way.partials.received, means, lse, state)

    def _folded(self, way: Way, state: AttentionState, Z: Tensor, step: Step) -> AttentionState:
        """Of rows that several ranks have a part of, those that this rank makes."""
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        means, lse = finish(state)
        lse.clamp_(min=NOTHING)
        arriving = way.there(Load(means[parts.others].to(Z.dtype), (lse[parts.others],)), step)
        lse = lse[parts.mine]
        mine = AttentionState(lse, torch.ones_like(lse), means[parts.mine])
        return self._merged(way, arriving, mine)

    def _folded_sum(self, way: Way, rows: Tensor, scores: Scores, step: Step) -> Tensor:
        parts = self.pieces
        assert parts.mine is not None
        assert parts.others is not None
        arriving = way.there(_of_ends(rows[parts.others], scores), step)
        return way.add_(rows[parts.mine], *arriving.wait())


def _of_ends(ends: Tensor, scores: Scores) -> Load:
    """Destinations: whole rows, or a number a head."""
    return Load(ends) if scores.whole_rows else Load(None, (ends,))


def _of_whole(whole: Whole) -> Load:
    # D is a product with G: of another step it would be one of another row.
    return Load(whole.G, (whole.lse,), (whole.D,))


def _raised_(state: AttentionState, by: float) -> AttentionState:
    """The same, where all scores are compared with others that are so much larger."""
    if by:
        state.m.add_(by)
    return state


def _kept(state: AttentionState | None, Z: Tensor, scores: Scores) -> Kept:
    """What gradients need of a state; empty if they need nothing."""
    if state is None or state.P is None or state.pi is None:
        wide = Z.new_empty(0, Z.shape[1], dtype=SUM_DTYPE[Z.dtype])
        narrow = wide.new_empty(0, scores.heads)
        return Kept(narrow, wide, torch.empty_like(narrow))
    return Kept(state.m, state.P, state.pi)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one.add_(other)
