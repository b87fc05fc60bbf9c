"""Rows of attention on their way: destinations to where their sources are, and softmaxes back."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention.pieces import Partials
from spgnn.comm import Communicator, RowCounts
from spgnn.kernels.recycling import new_rows
from spgnn.sparse import CSR


class Sent:
    """Rows on their way to this rank, while its own are on theirs."""

    def __init__(self, rows: Tensor, counts: RowCounts, comm: Communicator) -> None:
        # Both are kept until all of them have arrived.
        self._rows = rows.contiguous()
        self._arriving = new_rows(counts.received, self._rows)
        self._pending = comm.alltoallv(self._rows, self._arriving, counts)

    def wait(self) -> Tensor:
        """The rows that arrived [received, …]."""
        self._pending.wait()
        return self._arriving


class Way:
    """The way of partial softmaxes, in both directions.

    Parameters
    ----------
    partials : Partials
    comm : Communicator
        Of its axis.
    """

    def __init__(self, partials: Partials, comm: Communicator) -> None:
        self.partials = partials
        self._comm = comm
        self._adding = CSR(partials.received)

    def there(self, rows: Tensor) -> Sent:
        """Start sending what belongs to the partials this rank made to where their rows are."""
        return Sent(rows, self.partials.counts, self._comm)

    def back(self, rows: Tensor) -> Sent:
        """Start sending rows of this rank [rows, …] to all who make partials of them."""
        chosen = rows.index_select(0, self.partials.places)
        return Sent(chosen, self.partials.counts.reversed(), self._comm)

    def add_(self, rows: Tensor, arrived: Tensor) -> Tensor:
        """Add what arrived from *there* to the rows it belongs to, in place."""
        if arrived.numel():
            kernels.spmm(self._adding, arrived, out=rows, accumulate=True)
        return rows


def packed(rows: Tensor, *scores: Tensor) -> Tensor:
    """Rows [n, f] with the bits of what has another dtype beside them, to travel as one."""
    beside = [score.contiguous().view(rows.dtype) for score in scores]
    return torch.cat((rows, *beside), 1)


def unpacked(together: Tensor, width: int, dtype: torch.dtype, count: int) -> list[Tensor]:
    """The rows [n, width], and what was beside them, in its dtype."""
    rows, beside = together[:, :width], together[:, width:]
    return [rows.contiguous(), *(part.contiguous().view(dtype) for part in beside.chunk(count, 1))]
