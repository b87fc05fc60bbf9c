"""Features of batches: fetched for several at once, each row that any of them needs once."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.sampling import relabel
from spgnn.sparse import CSR, take_rows
from spgnn.store import CachedRows, Counts, MemoryRows, PackedRows, Rows


class Features:
    """What fetches the features of batches.

    Parameters
    ----------
    x : Rows or CSR [n, f], or None

    Attributes
    ----------
    counts : Counts
        What batches needed, each for itself; what was read is for the table to say.
    """

    def __init__(self, x: Rows | CSR | None) -> None:
        self.x = x
        self.counts = Counts()

    def of(self, wanted: Sequence[Tensor]) -> Generator[Tensor | CSR | None, None, None]:
        """Features of the vertices of some batches, int64 [m] each, one after the other.

        Of tables that can make something of it, all are announced first; of others that are
        neither in memory nor packed, rows that several batches need are fetched once.
        """
        x = self.x
        if x is None:
            yield from [None] * len(wanted)
            return
        if isinstance(x, CSR):
            for ids in wanted:
                sparse = take_rows(x, ids)
                self.counts.add(rows_needed=len(ids), bytes_needed=sparse.nbytes)
                yield sparse
            return
        needed = sum(len(ids) for ids in wanted)
        self.counts.add(rows_needed=needed, bytes_needed=needed * x.row_bytes)
        if isinstance(x, CachedRows) or x.fetches_together:
            x.prefetch(wanted)
            done = 0
            try:
                for ids in wanted:
                    found = x.gather(ids)
                    done += 1
                    yield found
            finally:
                if done < len(wanted):
                    x.forget()
        elif len(wanted) == 1 or isinstance(x, MemoryRows | PackedRows):
            yield from (x.gather(ids) for ids in wanted)
        else:
            yield from _together(x, wanted)


def _together(x: Rows, wanted: Sequence[Tensor]) -> Iterator[Tensor]:
    listed = torch.cat(list(wanted))
    union, places = relabel(listed[:0], torch.tensor([len(listed)]), listed)
    rows = x.gather(union)
    for part in places.split([len(ids) for ids in wanted]):
        yield kernels.gather_rows(rows, part)
