"""The inspector: split a block row into L + R·Π·S once, and know the volume of Π exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.exchange.cover import Cover, covered_by_row
from spgnn.layout import Int64Array, RowLayout
from spgnn.sparse import CSR, index_dtype

Strategy = Literal["sparsity-aware", "oblivious"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Volume:
    """Rows one rank sends and receives in one forward product; the adjoint swaps them."""

    send: int
    receive: int

    def __add__(self, other: Volume) -> Volume:
        return Volume(self.send + other.send, self.receive + other.receive)


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """``A = L + R·Π·S`` on one rank of a group; immutable.

    Attributes
    ----------
    L : CSR [n_rows, n_own]
        Nonzeros whose column this rank owns.
    S : CSR [n_send, n_own]
        What this rank sends, grouped by receiver: first rows of H, then partial sums.
    R : CSR [n_rows, n_recv]
        What it does with the received rows, grouped by sender in the same order.
    counts : RowCounts
        The exchange Π.
    strategy : {"sparsity-aware", "oblivious"}
        Π is one all-to-allv, or a broadcast of every rank's whole block row.
    """

    L: CSR
    S: CSR
    R: CSR
    counts: RowCounts
    strategy: Strategy = "sparsity-aware"

    @property
    def volume(self) -> Volume:
        """Rows this rank sends and receives in one product."""
        return Volume(sum(self.counts.send), sum(self.counts.recv))

    @cached_property
    def selected_rows(self) -> Tensor | None:
        """Own rows to send, int64 [n_send], if S only selects rows of H; else ``None``."""
        selects = self.S.values is None and bool((self.S.row_lengths == 1).all())
        return self.S.indices.long() if selects else None

    def to(self, target: torch.dtype | torch.device | str) -> ExchangePlan:
        """The same plan with its blocks on a device, or of another dtype."""
        L, S, R = (block.to(target) for block in (self.L, self.S, self.R))
        return ExchangePlan(L, S, R, self.counts, self.strategy)


def build_plan(
    block: CSR,
    columns: RowLayout,
    comm: Communicator,
    *,
    strategy: Strategy = "sparsity-aware",
    cover: Cover = "column",
    column_scale: Tensor | None = None,
) -> ExchangePlan:
    """Inspect one block row and agree with the group on what will be sent. Collective.

    Parameters
    ----------
    block : CSR [n_rows, n]
        This rank's rows, columns in the group's numbering; may carry a ``row_scale``.
    columns : RowLayout
        Which rank of the group owns which columns.
    comm : Communicator
        The group inside which rows travel.
    strategy : {"sparsity-aware", "oblivious"}
        Send only needed rows (Mukhopadhyay et al., ICPP'24, Algorithm 1), or broadcast whole
        block rows (Tripathy et al., SC'20).
    cover : {"column", "row", "minimum"}
        What covers the nonzeros of a remote block; the oblivious strategy knows only columns.
    column_scale : Tensor [n_own], optional
        Scaling of the columns this rank owns. It is applied where a row of H leaves its owner,
        in S, so that no rank needs to know the scale of a remote column.

    Returns
    -------
    ExchangePlan
    """
    first, last = columns.range(comm.rank)
    indices = block.indices.numpy()
    own: Mask = (indices >= first) & (indices < last)
    L = block.where(own, indices[own] - first, last - first)
    if strategy == "oblivious":
        S, R, counts = _whole_block_rows(block, own, columns, comm)
    else:
        S, R, counts = _needed_rows(block, own, columns, comm, cover)
    return ExchangePlan(
        L.with_scales(block.row_scale, column_scale),
        S.with_scales(None, column_scale),
        R.with_scales(block.row_scale, None),
        counts,
        strategy,
    )


def _whole_block_rows(
    block: CSR, own: Mask, columns: RowLayout, comm: Communicator
) -> tuple[CSR, CSR, RowCounts]:
    first, last = columns.range(comm.rank)
    remote = block.indices.numpy()[~own]
    # Received: everyone's rows but ours, in order.
    position = np.where(remote < first, remote, remote - (last - first))
    R = block.where(~own, position, columns.rows - (last - first))
    sizes = [int(size) for size in columns.sizes]
    sent = [0 if peer == comm.rank else last - first for peer in range(comm.size)]
    received = [0 if peer == comm.rank else size for peer, size in enumerate(sizes)]
    S = _selection(np.arange(last - first), last - first)
    return S, R, RowCounts(tuple(sent), tuple(received), max(sizes))


def _needed_rows(
    block: CSR, own: Mask, columns: RowLayout, comm: Communicator, cover: Cover
) -> tuple[CSR, CSR, RowCounts]:
    remote = block.indices.numpy()[~own]
    if cover == "column":
        wanted = _WantedRows(remote, columns)
        asked, asked_by = _swap(comm, wanted.ids, wanted.per_owner)
        S = _selection(asked - columns.offsets[comm.rank], int(columns.sizes[comm.rank]))
        return S, block.where(~own, wanted.position(remote), len(wanted.ids)), asked_by.reversed()

    rows = np.repeat(np.arange(block.shape[0]), block.row_lengths.numpy())[~own]
    values = None if block.values is None else block.values.numpy()[~own]
    owners = columns.owner(remote)
    by_row = covered_by_row(rows, remote, owners, cover)
    wanted = _WantedRows(remote[~by_row], columns)
    sums = _PartialSums(
        rows[by_row], remote[by_row], owners[by_row], _at(values, by_row), columns.parts
    )
    # Everything from owner k arrives in one message: first its rows of H, then its sums.
    shift_rows = np.cumsum(sums.per_owner) - sums.per_owner
    shift_sums = np.cumsum(wanted.per_owner)
    position = wanted.position(remote[~by_row]) + shift_rows[owners[~by_row]]
    sum_position = np.arange(len(sums.rows)) + shift_sums[sums.owners]
    R = _combine(
        (rows[~by_row], position, _at(values, ~by_row)),
        (sums.rows, sum_position, None if values is None else np.ones(len(sums.rows))),
        (block.shape[0], len(wanted.ids) + len(sums.rows)),
        values,
    )
    S, counts = _answer(wanted, sums, columns, comm, values)
    return S, R, counts


class _WantedRows:
    """The rows of H this rank asks for: the distinct remote columns, hence grouped by owner."""

    def __init__(self, remote: npt.NDArray[Any], columns: RowLayout) -> None:
        present = np.zeros(columns.rows, dtype=np.bool_)
        present[remote] = True
        self.ids: Int64Array = np.flatnonzero(present)
        self.per_owner = np.bincount(columns.owner(self.ids), minlength=columns.parts)
        self._present = present

    def position(self, remote: npt.NDArray[Any]) -> Int64Array:
        """Where the row of H for each remote column lies in the receive buffer."""
        place = np.cumsum(self._present, dtype=np.int64)
        return np.asarray(place[remote] - 1)


class _PartialSums:
    """The partial sums this rank asks for: one per row and owner, with the nonzeros to sum."""

    def __init__(
        self,
        rows: Int64Array,
        columns: npt.NDArray[Any],
        owners: Int64Array,
        values: npt.NDArray[Any] | None,
        parts: int,
    ) -> None:
        order = np.lexsort((columns, rows, owners))
        rows, owners = rows[order], owners[order]
        starts = np.ones(len(rows), dtype=np.bool_)
        starts[1:] = (rows[1:] != rows[:-1]) | (owners[1:] != owners[:-1])
        begin = np.flatnonzero(starts)
        self.rows, self.owners = rows[begin], owners[begin]
        self.lengths = np.diff(np.append(begin, len(rows)))
        self.columns = columns[order].astype(np.int64)
        self.values = _at(values, order)
        self.per_owner = np.bincount(self.owners, minlength=parts)
        self.entries_per_owner = np.bincount(owners, minlength=parts)


def _answer(
    wanted: _WantedRows,
    sums: _PartialSums,
    columns: RowLayout,
    comm: Communicator,
    values: npt.NDArray[Any] | None,
) -> tuple[CSR, RowCounts]:
    """Trade requests: what the others want of this rank becomes its S."""
    first = int(columns.offsets[comm.rank])
    ids, ids_by = _swap(comm, wanted.ids, wanted.per_owner)
    lengths, sums_by = _swap(comm, sums.lengths, sums.per_owner)
    entries, entries_by = _swap(comm, sums.columns, sums.entries_per_owner)
    row_lengths = _alternate(np.ones_like(ids), ids_by.recv, lengths, sums_by.recv)
    S_columns = _alternate(ids, ids_by.recv, entries, entries_by.recv) - first
    S_values = None
    if values is not None and sums.values is not None:
        weights, _ = _swap(comm, sums.values, sums.entries_per_owner)
        ones = np.ones(len(ids), dtype=values.dtype)
        S_values = torch.from_numpy(_alternate(ones, ids_by.recv, weights, entries_by.recv))
    n_own = int(columns.sizes[comm.rank])
    S = CSR(
        torch.from_numpy(np.concatenate(([0], np.cumsum(row_lengths)))),
        torch.from_numpy(S_columns.astype(index_dtype(n_own))),
        (len(row_lengths), n_own),
        S_values,
    )
    # We receive what we asked for and send what was asked of us.
    received = tuple(a + b for a, b in zip(ids_by.send, sums_by.send, strict=True))
    sent = tuple(a + b for a, b in zip(ids_by.recv, sums_by.recv, strict=True))
    return S, RowCounts(sent, received, comm.agree(max(sent)))


def _swap(
    comm: Communicator, array: npt.NDArray[Any], per_peer: Int64Array
) -> tuple[npt.NDArray[Any], RowCounts]:
    """Send each peer its stretch of `array`; returns what arrived and the counts of the trade."""
    counts = comm.exchange_counts(per_peer.tolist())
    received = torch.empty(sum(counts.recv), dtype=torch.from_numpy(array[:0]).dtype)
    comm.alltoallv(torch.from_numpy(np.ascontiguousarray(array)), received, counts).wait()
    return received.numpy(), counts


def _alternate(
    a: npt.NDArray[Any], a_counts: Int64Array, b: npt.NDArray[Any], b_counts: Int64Array
) -> npt.NDArray[Any]:
    """Peer by peer, its stretch of `a` followed by its stretch of `b`."""

    def stretches() -> Iterator[npt.NDArray[Any]]:
        pairs = zip(
            np.split(a, np.cumsum(a_counts)[:-1]),
            np.split(b, np.cumsum(b_counts)[:-1]),
            strict=True,
        )
        for pair in pairs:
            yield from pair

    return np.concatenate(list(stretches()))


def _selection(rows: npt.NDArray[Any], n_own: int) -> CSR:
    indptr = torch.arange(len(rows) + 1)
    indices = torch.from_numpy(rows.astype(index_dtype(n_own)))
    return CSR(indptr, indices, (len(rows), n_own))


_Triples = tuple[Int64Array, Int64Array, npt.NDArray[Any] | None]


def _combine(
    a: _Triples, b: _Triples, shape: tuple[int, int], values: npt.NDArray[Any] | None
) -> CSR:
    """A CSR block of two disjoint sets of (row, column, value)."""
    dtype = np.bool_ if values is None else values.dtype
    weights = np.ones(len(a[0]) + len(b[0]), dtype=dtype)
    if a[2] is not None and b[2] is not None:
        weights = np.concatenate((a[2], b[2])).astype(dtype)
    rows, columns = np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1]))
    return CSR.from_scipy(sp.csr_array((weights, (rows, columns)), shape=shape))


def _at(values: npt.NDArray[Any] | None, where: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    return None if values is None else values[where]
