"""Demand and trade: what a rank asks of its peers, and what they ask of it.

A demand is a sparse matrix grouped by owner. Each of its rows is a row of H (one nonzero) or a
partial sum (several); its columns are numbers of the owner's own rows. It follows from a rank's
rows of A alone. Trading demands makes everybody's send matrix, over a communicator or, for ranks
that do not exist, in one process.

Per block of one owner, every nonzero must be covered by its column or by its row. What is covered
by a column needs that row of H; what is covered by a row is summed at the owner and travels as one
partial sum. The cheapest choice is a minimum vertex cover of the block's bipartite graph (Hopcroft
& Karp 1973; König 1931), as in SuperGNN and SHIRO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.comm import Communicator, RowCounts
from spgnn.layout import Int64Array, RowLayout
from spgnn.pattern import Pattern, Selection
from spgnn.sparse import CSR

Cover = Literal["column", "row", "minimum"]
COVERS: tuple[str, ...] = get_args(Cover)


@dataclass(frozen=True, eq=False)
class Demand:
    """What one rank asks of its peers, grouped by peer; of each first rows of H, then sums.

    Attributes
    ----------
    rows, entries : int64 [peers]
        Rows asked of each peer, and their nonzeros.
    lengths : Tensor int32 [rows in all], or ``None`` if all are rows of H
        Nonzeros of each row.
    columns : Tensor int32 [entries in all]
        The peer's own rows.
    values : Tensor [entries in all], or ``None`` if all are ones
    """

    rows: Int64Array
    entries: Int64Array
    lengths: Tensor | None
    columns: Tensor
    values: Tensor | None

    @property
    def sums(self) -> Tensor | None:
        """Which rows are sums of several, bool [rows in all]; ``None`` if all are rows of H.

        A partial sum of one nonzero is a row of H, times a value.
        """
        return None if self.lengths is None else self.lengths > 1


# The send matrix of a rank, and the counts of the exchange.
Traded = tuple[CSR, RowCounts]


@dataclass(frozen=True)
class Ask:
    """What a scheme yields to have a demand traded along an axis of the mesh.

    Attributes
    ----------
    axis : str
    demand : Demand
    own_rows : int
        Rows of H the asking rank has.
    """

    axis: str
    demand: Demand
    own_rows: int

    def settle(self, comm: Communicator) -> Traded:
        """The trade over a communicator."""
        return trade(self.demand, self.own_rows, comm)

    @staticmethod
    def settle_all(asks: Sequence[Ask]) -> list[Traded]:
        """The trade of a whole group in one process."""
        return trade_all([ask.demand for ask in asks], [ask.own_rows for ask in asks])


def demand(
    block: CSR, columns: RowLayout, members: Sequence[int] | Int64Array, me: int, cover: Cover
) -> tuple[CSR, CSR, Demand]:
    """What one rank needs for its rows of A. Pure; memory is proportional to what is remote.

    Parameters
    ----------
    block : CSR [rows, n]
        The rank's rows, with global columns; may carry values and a ``row_scale``.
    columns : RowLayout
        Which part owns which columns.
    members : sequence of int, or int64 array
        The parts that exchange rows with each other, rising. Other parts' columns are left out.
    me : int
        Which of the members this rank is.
    cover : {"column", "row", "minimum"}

    Returns
    -------
    L : CSR [rows, own rows]
        Nonzeros whose column this rank owns.
    R : CSR [rows, received rows]
        What to do with what is received. Nonzeros of a received row of H keep their values; a
        partial sum is added.
    asked : Demand
    """
    own = int(columns.sizes[members[me]])
    if len(members) == columns.parts == 1:
        nobody = np.zeros(1, np.int64)
        R = CSR(Pattern(torch.zeros_like(block.indptr), block.indices[:0], (block.shape[0], 0)))
        L = CSR(block.pattern, block.values, block.row_scale)
        return L, R, Demand(nobody, nobody, None, block.indices[:0].int(), None)
    L_arrays, R_arrays, asked = _native.demand(
        block.indptr.numpy(),
        block.indices.numpy(),
        columns.offsets,
        np.asarray(members, np.int64),
        me,
        COVERS.index(cover),
        block.values is not None,
    )
    rows, entries, lengths, asked_columns, sources = asked
    found = Demand(
        rows,
        entries,
        None if cover == "column" else torch.from_numpy(lengths),
        torch.from_numpy(asked_columns),
        None if block.values is None or cover == "column" else _taken(block.values, sources),
    )
    return (
        _split(block, L_arrays, own),
        _split(block, R_arrays, int(rows.sum())),
        found,
    )


def trade(asked: Demand, own_rows: int, comm: Communicator) -> Traded:
    """Tell every peer what is asked of it; what all ask of this rank is its send matrix.

    Collective over the group; all ranks pass demands of the same cover and dtype.

    Parameters
    ----------
    asked : Demand
    own_rows : int
        Rows of H this rank has.
    comm : Communicator
        Of the peers among which the demand is divided.
    """
    rows, entries = swapped_counts(comm, asked.rows, asked.entries)
    columns = swapped(comm, asked.columns, entries)
    lengths = None if asked.lengths is None else swapped(comm, asked.lengths, rows)
    values = None if asked.values is None else swapped(comm, asked.values, entries)
    # We send what was asked of us, and receive what we asked for.
    return _send_matrix(lengths, columns, values, own_rows), rows.reversed()


def trade_all(asked: Sequence[Demand], own_rows: Sequence[int]) -> list[Traded]:
    """The trade of all ranks of a group in one process, without any communicator.

    Parameters
    ----------
    asked : sequence of Demand, one for each rank
    own_rows : sequence of int
        Rows of H each rank has.
    """
    rows = np.stack([demand.rows for demand in asked])
    entries = np.stack([demand.entries for demand in asked])
    largest = int(rows.max(initial=0))
    lengths = by_receiver([demand.lengths for demand in asked], rows)
    columns = by_receiver([demand.columns for demand in asked], entries)
    values = by_receiver([demand.values for demand in asked], entries)
    traded = []
    for rank, own in enumerate(own_rows):
        own_columns = columns[rank]
        assert own_columns is not None
        send = _send_matrix(lengths[rank], own_columns, values[rank], own)
        traded.append((send, RowCounts(rows[:, rank], rows[rank], largest)))
    return traded


def whole_rows(
    block: CSR, columns: RowLayout, members: Sequence[int] | Int64Array, me: int
) -> tuple[CSR, CSR, CSR, RowCounts]:
    """L, R, send matrix and counts where every rank gets all rows of its peers, needed or not.

    Tripathy et al. (SC'20). Nothing has to be asked.
    """
    L, R, asked = demand(block, columns, members, me, "column")
    sizes = columns.sizes[np.asarray(members, np.int64)]
    begins = np.concatenate(([0], np.cumsum(sizes)))
    own = int(sizes[me])
    # Received are everyone's rows but ours, in order.
    owners = np.repeat(np.arange(len(members)), asked.rows)
    place = begins[owners] + asked.columns.numpy() - own * (owners > me)
    arrived = torch.from_numpy(place)[R.indices.long()]
    pattern = Pattern(R.indptr, arrived, (R.shape[0], int(begins[-1]) - own))
    others = np.arange(len(members)) != me
    counts = RowCounts(others * own, others * sizes, int(sizes.max()))
    return L, CSR(pattern, R.values, R.row_scale), CSR(Selection(torch.arange(own), own)), counts


def swapped_counts(comm: Communicator, *counts: Int64Array) -> list[RowCounts]:
    """Tell every peer how much it will get of each thing, and learn the same. Collective."""
    given = torch.from_numpy(np.stack(counts, axis=1))
    got = torch.empty_like(given)
    ones = RowCounts((1,) * comm.size, (1,) * comm.size, 1)
    comm.alltoallv(given, got, ones).wait()
    largest = given.amax(dim=0)
    comm.all_reduce(largest, "max").wait()
    return [
        RowCounts(tuple(given[:, i].tolist()), tuple(got[:, i].tolist()), int(largest[i]))
        for i in range(len(counts))
    ]


def swapped(comm: Communicator, array: Tensor, counts: RowCounts) -> Tensor:
    """What all peers send, for the stretches of an array that they get. Collective."""
    received = array.new_empty((sum(counts.recv), *array.shape[1:]))
    comm.alltoallv(array, received, counts).wait()
    return received


def _send_matrix(
    lengths: Tensor | None, columns: Tensor, values: Tensor | None, own_rows: int
) -> CSR:
    if lengths is None:
        return CSR(Selection(columns, own_rows))
    indptr = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=indptr[1:])
    return CSR(Pattern(indptr, columns, (len(lengths), own_rows)), values)


def _split(block: CSR, arrays: tuple[npt.NDArray[Any], ...], columns: int) -> CSR:
    indptr, indices, sources = arrays
    pattern = Pattern.trusted(
        torch.from_numpy(indptr), torch.from_numpy(indices), (block.shape[0], columns)
    )
    values = None if block.values is None else _taken(block.values, sources)
    return CSR(pattern, values, block.row_scale)


def _taken(values: Tensor, sources: npt.NDArray[Any]) -> Tensor:
    """Values at some nonzeros; 1 where there is no source."""
    chosen = torch.from_numpy(sources)
    if (chosen >= 0).all():
        return values.index_select(0, chosen)
    return torch.where(chosen < 0, 1.0, values[chosen.long()]).to(values.dtype)


def by_receiver(arrays: Sequence[Tensor | None], counts: Int64Array) -> list[Tensor | None]:
    """For each peer, its stretches of all arrays; ``counts[i, k]`` of array i are peer k's."""
    ranks = len(arrays)
    given = [array for array in arrays if array is not None]
    if len(given) < ranks:
        return [None] * ranks
    everything = torch.cat(given).numpy()
    begins = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)[:-1]
    by_peer = counts.T.ravel()
    begins = begins.reshape(counts.shape).T.ravel()
    # Only pairs that have something to say: there are far fewer of them than pairs of ranks.
    talking = np.flatnonzero(by_peer)
    lengths = by_peer[talking]
    ends = np.cumsum(lengths)
    source = np.repeat(begins[talking] - ends + lengths, lengths) + np.arange(len(everything))
    moved = torch.from_numpy(everything[source])
    return list(moved.split(counts.sum(axis=0).tolist()))
