"""What other ranks know of the vertices in this rank's columns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.exchange.inspect import demand, swapped, trade
from spgnn.layout import RowLayout
from spgnn.sparse import CSR


def of_columns(numbers: Tensor, block: CSR, layout: RowLayout, comm: Communicator) -> Tensor:
    """For each entry of a block, the number of the vertex in its column. Collective.

    Every remote vertex is asked for once, whatever the number of its entries.

    Parameters
    ----------
    numbers : Tensor [own rows]
        One for each vertex of this rank.
    block : CSR [any rows, n]
        With global columns.
    layout : RowLayout
        Which rank owns which columns.
    comm : Communicator
        All ranks.

    Returns
    -------
    Tensor [nnz]
    """
    return with_counts(numbers, block, layout, comm)[0]


def with_counts(
    numbers: Tensor, block: CSR, layout: RowLayout, comm: Communicator
) -> tuple[Tensor, RowCounts]:
    """The same, and how many numbers each rank was sent and sent. Collective."""
    first, last = layout.range(comm.rank)
    _, _, asked = demand(CSR(block.pattern), layout, range(layout.parts), comm.rank, "column")
    send, counts = trade(asked, last - first, comm)
    theirs = swapped(comm, numbers[send.indices.long()], counts)
    owners = np.repeat(np.arange(layout.parts), asked.rows)
    remote = torch.from_numpy(layout.offsets[owners]) + asked.columns
    columns = block.indices.long()
    inside = (columns >= first) & (columns < last)
    found = numbers.new_empty(len(columns))
    found[inside] = numbers[columns[inside] - first]
    found[~inside] = theirs[torch.searchsorted(remote, columns[~inside])]
    return found, counts
