"""What a rank and its peers know of each other's vertices: who needs which rows of whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.exchange import exchange_needs, needs_of, swap_rows
from spgnn.layout import Int64Array, RowLayout
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class Boundary:
    """A rank's halo, and the own rows that are in the halos of others.

    Two ranks number the rows that one of them needs of the other alike: in rising order.

    Attributes
    ----------
    first, last : int
        Own rows are [first, last).
    halo : Tensor int64 [h]
        Rows of others that own rows of A need, rising.
    sent : Tensor int64 [m]
        Own rows, counted from `first`, that others have in their halos; by peer, rising.
    counts : RowCounts
        So many rows of `sent` are in the halo of each peer, and of `halo` are each peer's.
    """

    first: int
    last: int
    halo: Tensor
    sent: Tensor
    counts: RowCounts

    @classmethod
    def found(cls, block: CSR, layout: RowLayout, comm: Communicator) -> Boundary:
        """That of this rank's rows of a square matrix. Collective.

        Parameters
        ----------
        block : CSR [own rows, n]
            Global columns.
        layout : RowLayout
        comm : Communicator
            All ranks.
        """
        first, last = layout.range(comm.rank)
        everyone = range(layout.parts)
        _, _, asked = needs_of(CSR(block.pattern), layout, everyone, comm.rank, "column")
        send, counts = exchange_needs(asked, last - first, comm)
        owners = np.repeat(np.arange(layout.parts), asked.rows)
        halo = torch.from_numpy(layout.offsets[owners]) + asked.columns
        return cls(first, last, halo, send.indices.long(), counts)

    @property
    def own(self) -> int:
        """Number of own rows."""
        return self.last - self.first

    def is_own(self, rows: Tensor) -> Tensor:
        """Which of some rows of the whole matrix this rank owns, bool."""
        return (rows >= self.first) & (rows < self.last)

    def number(self, rows: Tensor) -> Tensor:
        """Which rows of the halo some rows of the whole matrix are, −1 if none."""
        if not len(self.halo):
            return torch.full_like(rows, -1)
        place = torch.searchsorted(self.halo, rows).clamp_(max=len(self.halo) - 1)
        return torch.where(self.halo[place] == rows, place, -1)

    @property
    def columns(self) -> Tensor:
        """Rows of the whole matrix: own ones, then those of the halo; int64 [own + h]."""
        return torch.cat((torch.arange(self.first, self.last), self.halo))

    def compact(self, block: CSR) -> Pattern:
        """A rank's rows of the matrix where only those of `columns` are left.

        Entries stay where they are, so rows may list their columns in another order.

        Returns
        -------
        Pattern [own, own + h]
        """
        columns = block.indices.long()
        inside = self.is_own(columns)
        indices = torch.where(inside, columns - self.first, self.number(columns) + self.own)
        width = self.own + len(self.halo)
        return Pattern.trusted(block.indptr, indices.to(index_dtype(width)), (self.own, width))

    def of_columns(self, own: Tensor, comm: Communicator) -> Tensor:
        """What ranks know of their own rows, for all of `columns`. Collective.

        Parameters
        ----------
        own : Tensor [own, …]
        comm : Communicator

        Returns
        -------
        Tensor [own + h, …]
        """
        return torch.cat((own, swap_rows(comm, own[self.sent], self.counts)))

    @property
    def sent_begins(self) -> Int64Array:
        """Where the rows of each peer begin in `sent`, int64 [peers]."""
        return np.cumsum(self.counts.send) - self.counts.send

    @property
    def halo_begins(self) -> Int64Array:
        """Where the rows of each peer begin in `halo`, int64 [peers]."""
        return np.cumsum(self.counts.recv) - self.counts.recv
