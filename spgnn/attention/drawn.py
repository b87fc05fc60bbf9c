"""A sample of what attention receives: some sources, some partial softmaxes, their edges alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spgnn.attention.pieces import Pieces, columns_where, rows_where
from spgnn.attention.scores import Ids
from spgnn.exchange import Stage
from spgnn.exchange.compression import Subset
from spgnn.exchange.plan import Hop
from spgnn.pattern import Selection
from spgnn.sparse import CSR, take_rows

Marks = tuple[Tensor, Tensor]
"""Masks of the rows that an exchange samples: of those it sends, and of those it receives, bool."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Some of the pieces of a plan.

    Attributes
    ----------
    pieces : Pieces
    rows : Tensor int64, optional
        The partial rows that remain; ``None`` for all.
    fetched : Tensor bool [fetched rows], optional
        True for those that are fetched; ``None`` for all.
    asked : Tensor bool [partials for others], optional
        True for those that are computed; ``None`` for all.
    """

    pieces: Pieces
    rows: Tensor | None = None
    fetched: Tensor | None = None
    asked: Tensor | None = None

    @classmethod
    def of(cls, pieces: Pieces, marks: Mapping[str, Marks]) -> Drawn:
        """Sampled pieces: the marked rows of `fetch`, `sums` and `fold`, where there are any."""
        some, fetched, asked = pieces, None, None
        if pieces.fetch is not None and pieces.remote is not None:
            sent, fetched = marks["fetch"]
            remote = columns_where(pieces.remote, fetched)
            some = replace(some, remote=remote, fetch=_taken(pieces.fetch, sent, fetched))
        if pieces.sums is not None and pieces.summed is not None:
            asked, received = marks["sums"]
            sums = pieces.sums.taken(asked, received)
            some = replace(some, summed=rows_where(pieces.summed, asked), sums=sums)
        if pieces.fold is not None and pieces.others is not None:
            sent, received = marks["fold"]
            fold = pieces.fold.taken(sent, received)
            some = replace(some, others=pieces.others[sent], fold=fold)
        return cls(some, None, fetched, asked)

    @classmethod
    def none(cls, pieces: Pieces) -> Drawn:
        """Nothing of what others have: rows of this rank's own, as its own sources make them."""
        if pieces.mine is None:
            return cls(Pieces(pieces.local))
        return cls(Pieces(take_rows(CSR(pieces.local), pieces.mine).pattern), pieces.mine)

    def ids(self, ids: Ids) -> Ids:
        """Original numbers of what there is."""
        rows, columns, fetched, asked = ids
        if self.rows is not None:
            rows = rows[self.rows]
        if self.fetched is not None:
            fetched = fetched[self.fetched]
        return Ids(rows, columns, fetched, asked if self.asked is None else asked[self.asked])

    def edges(self, whole: Pieces) -> Tensor | None:
        """A mask of the remote edges whose source is fetched, bool; ``None`` for all."""
        if self.fetched is None or whole.remote is None:
            return None
        return self.fetched[whole.remote.indices.long()]


def _taken(fetch: Stage, sent: Tensor, received: Tensor) -> Stage:
    """Fetching some of the sources."""
    (hop,) = fetch.hops
    part = Subset.marked(hop.route(), sent, received)
    rows = CSR(Selection(hop.send.indices[part.sent], hop.send.shape[1]))
    names = part.route.names
    some = Hop(hop.axis, rows, part.route.counts, names=names, part=part.route)
    return Stage(fetch.local, None, (some,))


def left_out(Z: Tensor, whole: Pieces, some: Pieces) -> Tensor | None:
    """Squared norm of rows that are not sent, and of all that could be, float64 [2].

    Of sources alone: a partial softmax that is not sent is not made.
    """
    if whole.fetch is None:
        return None
    norms = torch.linalg.vector_norm(Z, dim=1, dtype=torch.float64).square_()
    everything = norms[whole.fetch.hops[0].send.indices].sum()
    if some.fetch is None:
        return torch.stack((everything, everything))
    return torch.stack((everything - norms[some.fetch.hops[0].send.indices].sum(), everything))
