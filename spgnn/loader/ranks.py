"""A rank's part of a distributed graph, and rows that ranks ask each other for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.data.distribute import RankShare
from spgnn.errors import InputError
from spgnn.exchange import exchange_needs, needs_of, swap_rows
from spgnn.exchange.needs import swap_counts
from spgnn.graph.block import Degrees
from spgnn.graph.distgraph import DistGraph
from spgnn.layout import Int64Array, RowLayout
from spgnn.loader.rows import Counts, Pending, Rows, check_ids, copy_rows
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR, take_rows

Table = Tensor | CSR | Rows
_NARROW = torch.int16


class Requests:
    """Rows that each rank asks each rank for; owners may respond several times.

    Made on all ranks together, and so is each response. Rows are numbers of the whole, may repeat,
    and may be this rank's own. `requested` are those that all ranks ask of this one, by rank,
    counted from its first; `order` sorts this rank's by owner.
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
            return self._ordered(swap_rows(self._comm, rows.contiguous(), self.counts.reversed()))
        arrays = [rows.indices] if rows.values is None else [rows.indices, rows.values]
        indptr, (indices, *values) = self.respond_lists(rows.row_lengths.int(), arrays)
        pattern = Pattern.trusted(indptr, indices, (len(indptr) - 1, rows.shape[1]))
        return CSR(pattern, values[0] if values else None)

    def respond_later(self, rows: Tensor | CSR) -> Callable[[], Tensor | CSR]:
        """As `respond`; of dense rows it is begun here, and the returned function waits for them.

        Other exchanges may come in between, in the same order on all ranks.
        """
        if isinstance(rows, CSR):
            sparse = self.respond(rows)
            return lambda: sparse
        rows, counts = rows.contiguous(), self.counts.reversed()
        back = rows.new_empty((sum(counts.recv), *rows.shape[1:]))
        pending = self._comm.apart().alltoallv(rows, back, counts)

        def arrive() -> Tensor:
            pending.wait()
            return self._ordered(back)

        return arrive

    def respond_lists(
        self, lengths: Tensor, entries: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """As `respond`, of rows of different lengths.

        Parameters
        ----------
        lengths : Tensor int32 [requested rows]
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

    def _ordered(self, back: Tensor) -> Tensor:
        rows = torch.empty_like(back)
        rows[self.order] = back
        return rows


def take(table: Table, rows: Tensor) -> Tensor | CSR:
    """Some rows of a table."""
    if isinstance(table, Rows):
        return table.gather(rows)
    return table[rows] if isinstance(table, Tensor) else take_rows(table, rows)


def rows_of_ranks(
    table: Table, rows: Tensor, layout: RowLayout, comm: Communicator
) -> Tensor | CSR:
    """Rows, int64 [k], of a table whose rows lie at their owners. Collective."""
    requests = Requests(rows, layout, comm)
    return requests.respond(take(table, requests.requested))


@dataclass(eq=False)
class _Union:
    """The rows of several batches, each row once, on their way; places of each batch's in them."""

    arrive: Callable[[], Tensor | CSR]
    batches: deque[tuple[Int64Array, Int64Array]]
    table: Tensor | None = None


class RemoteRows(Rows):
    """A table whose rows lie on the ranks of a group; `gather` and `prefetch` are collective.

    What `prefetch` announces (a superbatch) comes in one exchange: the union of its rows, each
    once, by one all-to-allv of row numbers and one of rows. The calls of `gather` that follow take
    their rows from it, without communication. A call that was not announced is an exchange of its
    own. So all ranks announce the same number of batches, and gather the same number.

    Parameters
    ----------
    own : Rows
        This rank's rows.
    layout : RowLayout
        Rows of each rank.
    comm : Communicator

    Raises
    ------
    InputError
        If own rows do not fit the layout, or ranks do not agree on layout, width and dtype.
    """

    def __init__(self, own: Rows, layout: RowLayout, comm: Communicator) -> None:
        super().__init__(layout.rows, own.width, own.dtype)
        fits = layout.parts == comm.size and own.rows == int(layout.sizes[comm.rank])
        comm.check_agreement(
            "rows of all ranks", fits=fits, offsets=layout.offsets, width=own.width, dtype=own.dtype
        )
        if not fits:
            raise InputError(
                f"{own.rows} rows on rank {comm.rank} of {comm.size}, but the layout has "
                f"{layout.parts} parts of {layout.sizes.tolist()} rows"
            )
        self.own, self.layout, self._comm = own, layout, comm
        self._unions: deque[_Union] = deque()

    @property
    def fetches_together(self) -> bool:
        """True: see `prefetch`."""
        return True

    def prefetch(self, ids: Sequence[Tensor]) -> None:
        """Fetch the rows of several batches, for the next calls of `gather`. Collective.

        Returns while the rows are on their way; the next `gather` waits for them.

        Raises
        ------
        InputError
            If an id is out of range, or ranks announce different numbers of batches.
        """
        batches = [check_ids(batch, self.rows, str(self)) for batch in ids]
        self._comm.check_agreement("rows that are prefetched", batches=len(batches))
        if batches:
            self._unions.append(self._fetch(batches))

    def forget(self) -> None:
        """Drop all that was fetched ahead and has not been gathered; on all ranks."""
        for union in self._unions:
            union.arrive()
        self._unions.clear()

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Pending:
        """Collective, unless these rows have been fetched ahead."""
        if not self._unions:
            self._unions.append(self._fetch([ids]))
        union = self._unions[0]
        wanted, rows = union.batches[0]
        if not np.array_equal(wanted, ids):
            raise InputError(
                f"{self}: {len(ids)} rows are asked for, but others were announced, "
                f"{len(wanted)} of them; gather what prefetch was told, in that order"
            )
        union.batches.popleft()
        if not union.batches:
            self._unions.popleft()

        def finish() -> None:
            if union.table is None:
                table = union.arrive()
                assert isinstance(table, Tensor)
                union.table = table
            copy_rows(union.table, rows, out, places)

        return Pending(finish)

    def _fetch(self, batches: Sequence[Int64Array]) -> _Union:
        """One exchange for the union of some batches."""
        rows, places = np.unique(np.concatenate(batches), return_inverse=True)
        requests = Requests(torch.from_numpy(rows), self.layout, self._comm)
        arrive = requests.respond_later(self.own.gather(requests.requested))
        remote = len(rows) - int(requests.counts.send[self._comm.rank])
        self._counts.add(rows_read=remote, bytes_read=remote * self.row_bytes)
        parts = np.split(places, np.cumsum([len(batch) for batch in batches])[:-1])
        return _Union(arrive, deque(zip(batches, parts, strict=True)))


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
    def build(cls, block: CSR, layout: RowLayout, comm: Communicator) -> Boundary:
        """That of this rank's rows of a square matrix, [own rows, n]. Collective."""
        first, last = layout.range(comm.rank)
        everyone = range(layout.parts)
        _, _, needs = needs_of(CSR(block.pattern), layout, everyone, comm.rank, "column")
        send, counts = exchange_needs(needs, last - first, comm)
        owners = np.repeat(np.arange(layout.parts), needs.rows)
        halo = torch.from_numpy(layout.offsets[owners]) + needs.columns
        return cls(first, last, halo, send.indices.long(), counts)

    @property
    def own(self) -> int:
        """Number of own rows."""
        return self.last - self.first

    def is_own(self, rows: Tensor) -> Tensor:
        """True for those rows of the whole matrix that this rank owns."""
        return (rows >= self.first) & (rows < self.last)

    def number(self, rows: Tensor) -> Tensor:
        """Numbers in the halo of rows of the whole matrix, −1 for others."""
        if not len(self.halo):
            return torch.full_like(rows, -1)
        place = torch.searchsorted(self.halo, rows).clamp_(max=len(self.halo) - 1)
        return torch.where(self.halo[place] == rows, place, -1)

    @property
    def columns(self) -> Tensor:
        """Rows of the whole matrix: own ones, then those of the halo; int64 [own + h]."""
        return torch.cat((torch.arange(self.first, self.last), self.halo))

    def compact(self, block: CSR) -> Pattern:
        """A rank's rows of the matrix with the columns of `columns` alone, [own, own + h].

        Entries stay where they are, so rows may list their columns in another order.
        """
        columns = block.indices.long()
        inside = self.is_own(columns)
        indices = torch.where(inside, columns - self.first, self.number(columns) + self.own)
        width = self.own + len(self.halo)
        return Pattern.trusted(block.indptr, indices.to(index_dtype(width)), (self.own, width))

    def of_columns(self, own: Tensor, comm: Communicator) -> Tensor:
        """Tables of own rows, [own, …], for all of `columns`, [own + h, …]. Collective."""
        return torch.cat((own, swap_rows(comm, own[self.sent], self.counts)))


class Metadata:
    """Ids, labels and degrees of some vertices, one row each, which travel as rows of bytes.

    Parameters
    ----------
    columns : dict of Tensor [rows, …]
        ``ids``, the original ones; ``edges``, the number of in-edges in the whole graph; ``weight``
        and ``bare`` as in `spgnn.graph.block.Degrees`, where they say more; ``y``, if labels are
        known.
    """

    def __init__(self, columns: dict[str, Tensor]) -> None:
        self._columns = columns

    @classmethod
    def of_share(cls, share: RankShare, rank: int, *, loops: bool) -> Metadata:
        """Of a rank's own vertices; whether any vertex of the whole graph has a self-loop."""
        A, y = share.adjacency, share.data.y
        assert A is not None
        columns = {"ids": share.vertex_ids.to(index_dtype(share.layout.rows))}
        columns["edges"] = A.row_lengths.int()
        rows = torch.arange(A.shape[0]).repeat_interleave(A.row_lengths)
        if A.values is not None:
            columns["weight"] = torch.zeros(A.shape[0]).index_add_(0, rows, A.values.float())
        if loops:
            columns["bare"] = torch.ones(A.shape[0])
            columns["bare"][rows[loops_of(A, share.layout.range(rank)[0])]] = 0
        if y is not None:
            is_narrow = y.dtype == torch.int64 and share.meta.classes <= torch.iinfo(_NARROW).max
            columns["y"] = y.to(_NARROW) if is_narrow else y
        return cls(columns)

    @property
    def ids(self) -> Tensor:
        """Original ids, int64 [rows]."""
        return self._columns["ids"].long()

    @property
    def y(self) -> Tensor | None:
        """Labels, as the graph has them."""
        y = self._columns.get("y")
        return y.long() if y is not None and y.dtype == _NARROW else y

    @property
    def degrees(self) -> Degrees:
        """In the whole graph."""
        edges = self._columns["edges"].long()
        return Degrees(edges, self._columns.get("weight", edges.float()), self._columns.get("bare"))

    def of(self, rows: Any) -> Metadata:
        """Those of some rows: a tensor of numbers, or a slice."""
        return Metadata({name: array[rows] for name, array in self._columns.items()})

    def packed(self) -> Tensor:
        """One row of bytes each, uint8 [rows, width]."""
        return torch.cat([rows_as_bytes(array) for array in self._columns.values()], 1)

    def unpacked(self, rows: Tensor) -> Metadata:
        """The reverse, of any rows with the same columns."""
        widths = [rows_as_bytes(array[:0]).shape[1] for array in self._columns.values()]
        columns = {}
        for (name, like), part in zip(self._columns.items(), rows.split(widths, 1), strict=True):
            columns[name] = as_dtype(part, like.dtype).view(len(rows), *like.shape[1:])
        return Metadata(columns)


def loops_of(A: CSR, first: int) -> Tensor:
    """True for those nonzeros of a rank's rows that are self-loops."""
    rows = torch.arange(first, first + A.shape[0]).repeat_interleave(A.row_lengths)
    return A.indices == rows


def as_dtype(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Columns of rows of bytes as numbers, wherever they begin; a copy."""
    # Not contiguous(): one row alone is that already, and may begin at an odd address.
    return rows.clone(memory_format=torch.contiguous_format).view(dtype)


def rows_as_bytes(array: Tensor) -> Tensor:
    """Rows [n, …] of any dtype as bytes, uint8 [n, width]."""
    width = torch.Size(array.shape[1:]).numel()
    return array.reshape(len(array), width).contiguous().view(torch.uint8)


@dataclass(frozen=True, eq=False)
class RankGraph:
    """One rank's rows of a graph, with what mini-batches need of the others.

    Attributes
    ----------
    block : CSR [own rows, n]
    x : Tensor, CSR or Rows [own rows, f]
    metadata, around : Metadata
        Of own vertices; of these and of the halo's.
    boundary : Boundary
    layout : RowLayout
    comm : Communicator
        All ranks.
    counts : Counts
        Rows of features that were asked for, and those that came from other ranks.
    """

    block: CSR
    x: Table
    metadata: Metadata
    around: Metadata
    boundary: Boundary
    layout: RowLayout
    comm: Communicator
    counts: Counts = field(default_factory=Counts)

    @classmethod
    def build(
        cls, graph: DistGraph | RankShare, comm: Communicator, x: Table | None = None
    ) -> RankGraph:
        """Of a distributed graph, with other features of own vertices if given. Collective."""
        share = graph.share if isinstance(graph, DistGraph) else graph

        def features() -> Table:
            table = share.data.x if x is None else x
            if table is None or share.adjacency is None:
                raise InputError(f"{share.meta.name}: mini-batches need features and the adjacency")
            return table

        table = comm.on_every_rank(features)
        block = share.adjacency
        assert block is not None
        first = share.layout.range(comm.rank)[0]
        loops = bool(comm.agree(int(loops_of(block, first).any())))
        boundary = Boundary.build(block, share.layout, comm)
        metadata = Metadata.of_share(share, comm.rank, loops=loops)
        around = metadata.unpacked(boundary.of_columns(metadata.packed(), comm))
        return cls(block, table, metadata, around, boundary, share.layout, comm)

    def fetch(
        self, rows: Tensor, *, later: bool = False
    ) -> tuple[Callable[[], Tensor | CSR], Metadata]:
        """Features and metadata of any vertices, in one exchange. Collective.

        Parameters
        ----------
        rows : Tensor int64 [k]
            Of the whole graph; each is fetched as often as it is named.
        later : bool
            Whether dense features may still be under way.

        Returns
        -------
        x : callable
            Waits for the features, Tensor or CSR [k, f].
        metadata : Metadata
        """
        requests = Requests(rows, self.layout, self.comm)
        answer = take(self.x, requests.requested)
        begun = requests.respond_later(answer) if later else None
        there = None if later else requests.respond(answer)

        def arrive() -> Tensor | CSR:
            x = begun() if begun is not None else there
            assert x is not None
            self.count(rows, x)
            return x

        metadata = requests.respond(self.metadata.packed()[requests.requested])
        assert isinstance(metadata, Tensor)
        return arrive, self.metadata.unpacked(metadata)

    def count(self, rows: Tensor, x: Tensor | CSR) -> None:
        """Rows of features are there, each needed once."""
        row_bytes = x.nbytes / max(len(rows), 1)
        remote = int((~self.boundary.is_own(rows)).sum())
        self.counts.add(
            rows_needed=len(rows),
            bytes_needed=x.nbytes,
            rows_read=remote,
            bytes_read=int(remote * row_bytes),
        )

    def inputs(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and original ids of the input nodes of all ranks, by original id. Collective."""
        rows = own.nonzero()[:, 0]
        mine = torch.stack((rows + self.boundary.first, self.metadata.ids[rows]), 1)
        sizes = torch.zeros(self.comm.size, dtype=torch.int64)
        sizes[self.comm.rank] = len(mine)
        self.comm.all_reduce(sizes).wait()
        everyone = mine.new_empty(int(sizes.sum()), 2)
        self.comm.all_gather(mine, everyone, sizes.tolist())
        everyone = everyone[everyone[:, 1].argsort()]
        return everyone[:, 0].contiguous(), everyone[:, 1].contiguous()


def mask_of(graph: DistGraph | RankShare, input_nodes: Any, comm: Communicator) -> Tensor:
    """The own vertices that seeds are taken of, bool [own rows]; a mask or its name. Collective."""
    share = graph.share if isinstance(graph, DistGraph) else graph

    def checked() -> Tensor:
        named = isinstance(input_nodes, str)
        mask = getattr(share.data, input_nodes, None) if named else input_nodes
        own = len(share.vertex_ids)
        if mask is None and not named:
            return torch.ones(own, dtype=torch.bool)
        if not isinstance(mask, Tensor):
            raise InputError(f"input_nodes {input_nodes}: {share.meta.name} has no such mask")
        if mask.dtype != torch.bool or mask.shape != (own,):
            raise InputError(
                f"input_nodes: a mask must be bool [{own}], got {mask.dtype} {list(mask.shape)}"
            )
        return mask.cpu()

    return comm.on_every_rank(checked)
