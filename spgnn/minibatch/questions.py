"""Rows of a distributed table or matrix that ranks ask each other for, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.exchange import swap_counts, swap_rows
from spgnn.layout import RowLayout
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR, take_rows
from spgnn.store import Rows

Table = Tensor | CSR | Rows


class Questions:
    """Which rows each rank asks which rank for; whoever owns them may answer several times.

    Made on all ranks together, and so is each answer.

    Parameters
    ----------
    rows : Tensor int64 [k]
        Of the whole, in any order; may repeat, and may be this rank's own.
    layout : RowLayout
    comm : Communicator
        All ranks.

    Attributes
    ----------
    order : Tensor int64 [k]
        The rows by owner, otherwise as they were asked for.
    asked : Tensor int64
        Rows that all ranks ask of this one, counted from its first; by rank.
    counts : RowCounts
        This rank's questions to each peer, and theirs.
    """

    def __init__(self, rows: Tensor, layout: RowLayout, comm: Communicator) -> None:
        self._comm = comm
        owner = torch.from_numpy(layout.owner(rows.numpy()))
        self.order = owner.argsort(stable=True)
        sizes = torch.bincount(owner, minlength=comm.size)
        (self.counts,) = swap_counts(comm, sizes.numpy())
        sent = rows[self.order].to(index_dtype(layout.rows))
        self.asked = swap_rows(comm, sent, self.counts).long() - layout.range(comm.rank)[0]

    def answered(self, rows: Tensor) -> Tensor:
        """Row i of what every rank asked for, where this rank answers with ``rows[asked]``.

        Parameters
        ----------
        rows : Tensor [asked rows, …]

        Returns
        -------
        Tensor [k, …]
        """
        back = swap_rows(self._comm, rows.contiguous(), self.counts.reversed())
        found = torch.empty_like(back)
        found[self.order] = back
        return found

    def answered_later(self, rows: Tensor) -> Callable[[], Tensor]:
        """As `answered`, which is begun here; what is returned waits for the rows.

        Other exchanges may come in between, in the same order on all ranks.
        """
        rows = rows.contiguous()
        counts = self.counts.reversed()
        back = rows.new_empty((sum(counts.recv), *rows.shape[1:]))
        pending = self._comm.apart().alltoallv(rows, back, counts)

        def arrived() -> Tensor:
            pending.wait()
            found = torch.empty_like(back)
            found[self.order] = back
            return found

        return arrived

    def answered_lists(
        self, lengths: Tensor, entries: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The same of rows of different lengths.

        Parameters
        ----------
        lengths : Tensor int32 [asked rows]
        entries : sequence of Tensor [sum of the lengths]
            As many on all ranks.

        Returns
        -------
        indptr : Tensor int64 [k + 1]
        entries : list of Tensor
        """
        back = self.counts.reversed()
        theirs = swap_rows(self._comm, lengths, back)
        ends = np.append(0, lengths.numpy().cumsum(dtype=np.int64))
        bounds = np.append(0, back.send.cumsum())
        (counts,) = swap_counts(self._comm, np.diff(ends[bounds]))
        arrived = [swap_rows(self._comm, array, counts) for array in entries]
        begins = theirs.cumsum(0) - theirs
        place = torch.empty_like(self.order)
        place[self.order] = torch.arange(len(place))
        wanted = theirs[place].long()
        indptr = torch.zeros(len(place) + 1, dtype=torch.int64)
        torch.cumsum(wanted, 0, out=indptr[1:])
        source = (begins[place] - indptr[:-1]).repeat_interleave(wanted)
        source += torch.arange(len(source))
        return indptr, [array[source] for array in arrived]


def rows_of_ranks(
    table: Table, rows: Tensor, layout: RowLayout, comm: Communicator
) -> Tensor | CSR:
    """Rows of a table of which each rank holds its own. Collective.

    Parameters
    ----------
    table : Tensor, CSR or Rows [own rows, f]
    rows : Tensor int64 [k]
        Of the whole table; each is fetched as often as it is named.
    layout : RowLayout
    comm : Communicator
        All ranks.

    Returns
    -------
    Tensor or CSR [k, f]
    """
    questions = Questions(rows, layout, comm)
    return answered(questions, taken(table, questions.asked))


def answered(questions: Questions, answer: Tensor | CSR) -> Tensor | CSR:
    """What `questions` are answered with, dense or sparse rows. Collective."""
    if isinstance(answer, Tensor):
        return questions.answered(answer)
    arrays = [answer.indices] if answer.values is None else [answer.indices, answer.values]
    indptr, (indices, *values) = questions.answered_lists(answer.row_lengths.int(), arrays)
    pattern = Pattern.trusted(indptr, indices, (len(indptr) - 1, answer.shape[1]))
    return CSR(pattern, values[0] if values else None)


def answered_later(questions: Questions, answer: Tensor | CSR) -> Callable[[], Tensor | CSR]:
    """The same; of dense rows, what is returned waits for them. Collective."""
    if isinstance(answer, Tensor):
        return questions.answered_later(answer)
    rows = answered(questions, answer)
    return lambda: rows


def taken(table: Table, rows: Tensor) -> Tensor | CSR:
    """Some rows of a table."""
    if isinstance(table, Rows):
        return table.gather(rows)
    return table[rows] if isinstance(table, Tensor) else take_rows(table, rows)


def stacked(above: Tensor | CSR, below: Tensor | CSR) -> Tensor | CSR:
    """The rows of two tables of one width and kind, one after the other."""
    if isinstance(above, Tensor) and isinstance(below, Tensor):
        return torch.cat((above, below))
    assert isinstance(above, CSR)
    assert isinstance(below, CSR)
    indptr = torch.cat((above.indptr, below.indptr[1:] + above.nnz))
    shape = (above.shape[0] + below.shape[0], above.shape[1])
    values = None
    if above.values is not None and below.values is not None:
        values = torch.cat((above.values, below.values))
    return CSR(Pattern.trusted(indptr, torch.cat((above.indices, below.indices)), shape), values)
