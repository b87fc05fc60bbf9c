"""Rows that ranks ask each other for, and a table whose rows lie on the ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches.feature_rows import Rows, Wait, check_ids, copy_rows
from spgnn.addons.batches.sampling import offsets_of
from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.exchange import swap_counts, swap_rows
from spgnn.layout import Int64Array, RowLayout
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR, take_rows


class Requests:
    """Rows that each rank asks each rank for; owners may respond several times. Collective.

    Rows are numbers of the whole, may repeat, and may be this rank's own. `requested` are those
    that all ranks ask of this one, by rank, counted from its first; `order` sorts its own by owner.
    """

    def __init__(self, rows: Tensor, layout: RowLayout, comm: Communicator) -> None:
        self._comm = comm
        owner = torch.from_numpy(layout.owner(rows.numpy()))
        self.order = owner.argsort(stable=True)
        sizes = torch.bincount(owner, minlength=comm.size)
        (self.counts,) = swap_counts(comm, sizes.numpy())
        sent = rows[self.order].to(index_dtype(layout.rows))
        self.requested = swap_rows(comm, sent, self.counts).long() - layout.range(comm.rank)[0]

    def respond(self, rows: Tensor | CSR) -> Tensor | CSR:
        """Row i of what every rank asked for, where this rank gives ``rows[requested]``."""
        if isinstance(rows, Tensor):
            return self._in_order(swap_rows(self._comm, rows.contiguous(), self.counts.reversed()))
        arrays = [rows.indices] if rows.values is None else [rows.indices, rows.values]
        indptr, (indices, *values) = self.respond_lists(rows.row_lengths.int(), arrays)
        pattern = Pattern.trusted(indptr, indices, (len(indptr) - 1, rows.shape[1]))
        return CSR(pattern, values[0] if values else None)

    def respond_later(self, rows: Tensor | CSR) -> Callable[[], Tensor | CSR]:
        """As `respond`; of dense rows it begins here, and the returned function waits."""
        if isinstance(rows, CSR):
            sparse = self.respond(rows)
            return lambda: sparse
        rows, counts = rows.contiguous(), self.counts.reversed()
        back = rows.new_empty((sum(counts.recv), *rows.shape[1:]))
        pending = self._comm.apart().alltoallv(rows, back, counts)

        def arrive() -> Tensor:
            pending.wait()
            return self._in_order(back)

        return arrive

    def respond_lists(
        self, lengths: Tensor, entries: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """As `respond`, of rows of different lengths, int32 [requested rows], and their entries.

        `entries` are as many tensors on all ranks. Returns indptr int64 [k + 1] and the entries.
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
        lengths = theirs[place].long()
        indptr = offsets_of(lengths)
        source = (begins[place] - indptr[:-1]).repeat_interleave(lengths)
        source += torch.arange(len(source))
        return indptr, [array[source] for array in arrived]

    def _in_order(self, back: Tensor) -> Tensor:
        rows = torch.empty_like(back)
        rows[self.order] = back
        return rows


def take(table: Tensor | CSR, rows: Tensor) -> Tensor | CSR:
    """Some rows of a table."""
    return table[rows] if isinstance(table, Tensor) else take_rows(table, rows)


def rows_of_ranks(
    table: Tensor | CSR, rows: Tensor, layout: RowLayout, comm: Communicator
) -> Tensor | CSR:
    """Rows, int64 [k], of a table whose rows lie at their owners. Collective."""
    requests = Requests(rows, layout, comm)
    return requests.respond(take(table, requests.requested))


class RemoteRows(Rows):
    """A table whose rows lie on the ranks of a group; `gather` and `gather_many` are collective.

    The batches of `gather_many` come in one exchange: the union of their rows, each once, by one
    all-to-allv of row numbers and one of rows. All ranks ask for the same number of batches, and
    agree on layout, width and dtype.

    Parameters
    ----------
    own : Rows
        This rank's rows.
    layout : RowLayout
        Rows of each rank.
    comm : Communicator
    """

    def __init__(self, own: Rows, layout: RowLayout, comm: Communicator) -> None:
        super().__init__(layout.rows, own.width, own.dtype)
        fits = layout.parts == comm.size and own.rows == int(layout.sizes[comm.rank])
        comm.check_agreement(
            "rows of all ranks", fits=fits, offsets=layout.offsets, width=own.width, dtype=own.dtype
        )
        if not fits:
            parts = f"{layout.parts} parts of {layout.sizes.tolist()} rows"
            parts = f"{layout.parts} parts of {layout.sizes.tolist()} rows"
            raise InputError(
                f"{own.rows} rows on rank {comm.rank} of {comm.size}, but the layout has {parts}"
            )
        self.own, self.layout, self._comm = own, layout, comm

    def gather_many(self, ids: Sequence[Tensor]) -> Generator[Tensor, None, None]:
        """The rows of several batches, by one exchange. Collective when first advanced."""
        batches = [check_ids(batch, self.rows, str(self)) for batch in ids]
        for batch, begin in zip(batches, self.begin_many(batches), strict=True):
            out = self._output(len(batch), None)
            self._counts.add(rows_needed=len(batch), bytes_needed=len(batch) * self.row_bytes)
            begin(out)()
            yield out

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Wait:
        """Collective."""
        return self._fetch([ids])[0](out, places)

    def begin_many(self, ids: Sequence[Int64Array]) -> list[Callable[..., Wait]]:
        """Start the exchange for several batches; each of them waits for it. Collective."""
        self._comm.check_agreement("rows that are fetched together", batches=len(ids))
        return self._fetch(ids) if ids else []

    def _fetch(self, batches: Sequence[Int64Array]) -> list[Callable[..., Wait]]:
        rows, places = np.unique(np.concatenate(batches), return_inverse=True)
        requests = Requests(torch.from_numpy(rows), self.layout, self._comm)
        arrive = requests.respond_later(self.own.gather(requests.requested))
        remote = len(rows) - int(requests.counts.send[self._comm.rank])
        self._counts.add(rows_read=remote, bytes_read=remote * self.row_bytes)
        union: list[Tensor | CSR] = []

        def begin(part: Int64Array, out: Tensor, targets: Int64Array | None = None) -> Wait:
            def wait() -> None:
                if not union:
                    union.append(arrive())
                copy_rows(union[0], part, out, targets)  # type: ignore[arg-type]  # dense

            return wait

        ends = np.cumsum([len(batch) for batch in batches])[:-1]
        return [partial(begin, part) for part in np.split(places, ends)]
