"""Features of batches: fetched for several at once, each row that any of them needs once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.blocks import take_rows
from spgnn.sampling import relabel
from spgnn.sparse import CSR
from spgnn.store import Counts, MemoryRows, Rows


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

    def gather(self, wanted: Sequence[Tensor]) -> list[Tensor | CSR | None]:
        """Features of the vertices of each batch, int64 [m] each."""
        x = self.x
        if not isinstance(x, Rows):
            return [None if x is None else take_rows(x, ids) for ids in wanted]
        needed = sum(len(ids) for ids in wanted)
        self.counts.add(rows_needed=needed, bytes_needed=needed * x.row_bytes)
        if len(wanted) == 1 or isinstance(x, MemoryRows):
            return [x.gather(ids) for ids in wanted]
        x.prefetch(wanted)
        listed = torch.cat(list(wanted))
        nobody = listed.new_empty(0)
        union, places = relabel(nobody, torch.tensor([len(listed)]), listed)
        rows = x.gather(union)
        sizes = [len(ids) for ids in wanted]
        return [kernels.gather_rows(rows, part) for part in places.split(sizes)]
