"""A rank's part of a distributed graph, with what mini-batches need of the others'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches.feature_rows import Counts
from spgnn.addons.batches.remote_rows import Requests, take
from spgnn.comm import Communicator, RowCounts
from spgnn.data import RankShare
from spgnn.errors import InputError
from spgnn.exchange import exchange_needs, needs_of, swap_rows
from spgnn.graph import Degrees
from spgnn.layout import RowLayout
from spgnn.pattern import Pattern, described, index_dtype
from spgnn.sparse import CSR

_NARROW = torch.int16


@dataclass(frozen=True, eq=False)
class Boundary:
    """A rank's halo, and the own rows that are in the halos of others.

    Two ranks number the rows that one of them needs of the other alike: in rising order.
    """

    first: int  # own rows are [first, last)
    last: int
    halo: Tensor  # int64 [h]: rows of others that own rows of A need, rising
    sent: Tensor  # int64 [m]: own rows, from `first` on, in the halos of others; by peer, rising
    counts: RowCounts  # rows of `sent` in the halo of each peer, and rows of `halo` of each peer

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

    Columns are ``ids``, the original ones; ``edges``, the number of in-edges in the whole graph;
    ``weight`` and ``bare`` as in `Degrees`, where they say more; ``y``, if labels are known. Or,
    of edges, all that is known of them by name.
    """

    def __init__(self, columns: dict[str, Tensor]) -> None:
        self.columns = columns

    @classmethod
    def of_share(cls, share: RankShare, rank: int, *, loops: bool) -> Metadata:
        """A rank's own vertices; `loops`: whether any vertex of the whole graph has a self-loop."""
        A, y = share.adjacency, share.data.y
        assert A is not None
        columns = {"ids": share.vertex_ids.to(index_dtype(share.layout.rows))}
        columns["edges"] = A.row_lengths.int()
        rows = torch.arange(A.shape[0]).repeat_interleave(A.row_lengths)
        if A.values is not None:
            columns["weight"] = torch.zeros(A.shape[0]).index_add_(0, rows, A.values.float())
        if loops:
            looped = rows[_loops(A, share.layout.range(rank)[0])]
            columns["bare"] = torch.ones(A.shape[0]).index_add_(0, looped, -torch.ones(len(looped)))
        if y is not None:
            is_narrow = y.dtype == torch.int64 and share.meta.classes <= torch.iinfo(_NARROW).max
            columns["y"] = y.to(_NARROW) if is_narrow else y
        return cls(columns)

    @property
    def ids(self) -> Tensor:
        """Original ids, int64 [rows]."""
        return self.columns["ids"].long()

    @property
    def y(self) -> Tensor | None:
        """Labels, as the graph has them."""
        y = self.columns.get("y")
        return y.long() if y is not None and y.dtype == _NARROW else y

    @property
    def degrees(self) -> Degrees:
        """In the whole graph."""
        edges = self.columns["edges"].long()
        return Degrees(edges, self.columns.get("weight", edges.float()), self.columns.get("bare"))

    @property
    def edge_weight(self) -> Tensor | None:
        """Weights of edges, float32 [rows]."""
        weight = self.columns.get("edge_weight")
        return None if weight is None else weight.reshape(-1).float()

    def of(self, rows: Any) -> Metadata:
        """The same of some rows: a tensor of numbers, or a slice."""
        return Metadata({name: array[rows] for name, array in self.columns.items()})

    def packed(self) -> Tensor:
        """One row of bytes each, uint8 [rows, width]."""
        return torch.cat([rows_as_bytes(array) for array in self.columns.values()], 1)

    def unpacked(self, rows: Tensor) -> Metadata:
        """The reverse, of any rows with the same columns."""
        widths = [rows_as_bytes(array[:0]).shape[1] for array in self.columns.values()]
        columns = {}
        for (name, like), part in zip(self.columns.items(), rows.split(widths, 1), strict=True):
            columns[name] = as_dtype(part, like.dtype).view(len(rows), *like.shape[1:])
        return Metadata(columns)


def _loops(A: CSR, first: int) -> Tensor:
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
    """One rank's rows of a graph, with what mini-batches need of the others."""

    block: CSR  # [own rows, n]
    x: Tensor | CSR  # [own rows, f]
    metadata: Metadata  # of own vertices
    around: Metadata  # of these and of the halo's
    edges: Metadata  # what is known of each nonzero of `block`
    boundary: Boundary
    layout: RowLayout
    comm: Communicator
    counts: Counts = field(default_factory=Counts)  # rows of features, and those of other ranks

    @classmethod
    def build(cls, share: RankShare, comm: Communicator) -> RankGraph:
        """From this rank's share. Collective."""

        def tables() -> tuple[CSR, Tensor | CSR]:
            if share.data.x is None or share.adjacency is None:
                raise InputError(f"{share.meta.name}: mini-batches need features and the adjacency")
            return share.adjacency, share.data.x

        block, x = comm.on_every_rank(tables)
        loops = bool(comm.agree(int(_loops(block, share.layout.range(comm.rank)[0]).any())))
        boundary = Boundary.build(block, share.layout, comm)
        metadata = Metadata.of_share(share, comm.rank, loops=loops)
        around = metadata.unpacked(boundary.of_columns(metadata.packed(), comm))
        weights = {} if block.values is None else {"edge_weight": block.values}
        edges = Metadata(weights | share.edge_attributes)
        return cls(block, x, metadata, around, edges, boundary, share.layout, comm)

    def fetch(self, rows: Tensor) -> tuple[Callable[[], Tensor | CSR], Metadata]:
        """Metadata of any rows, and a function that waits for their features. Collective."""
        requests = Requests(rows, self.layout, self.comm)
        features = requests.respond_later(take(self.x, requests.requested))

        def arrive() -> Tensor | CSR:
            x = features()
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
        return of_all_ranks(rows + self.boundary.first, self.metadata.ids[rows], self.comm)


def of_all_ranks(rows: Tensor, ids: Tensor, comm: Communicator) -> tuple[Tensor, Tensor]:
    """Rows and original ids of some vertices of each rank, by original id. Collective."""
    mine = torch.stack((rows, ids), 1)
    sizes = torch.zeros(comm.size, dtype=torch.int64)
    sizes[comm.rank] = len(mine)
    comm.all_reduce(sizes).wait()
    everyone = mine.new_empty(int(sizes.sum()), 2)
    comm.all_gather(mine, everyone, sizes.tolist())
    everyone = everyone[everyone[:, 1].argsort()]
    return everyone[:, 0].contiguous(), everyone[:, 1].contiguous()


def mask_of(share: RankShare, input_nodes: Any, comm: Communicator) -> Tensor:
    """The own vertices that seeds are taken of, bool [own rows]; a mask or its name. Collective."""
    data, name, rows = share.data, share.meta.name, len(share.vertex_ids)
    return comm.on_every_rank(
        lambda: own_mask(input_nodes, lambda mask: getattr(data, mask, None), rows, f"{name} has")
    )


def own_mask(
    input_nodes: Any, lookup: Callable[[str], Tensor | None], rows: int, owner: str
) -> Tensor:
    """A mask of own vertices, bool [rows], on CPUs: all of them, a given one, or one by name."""
    if input_nodes is None:
        return torch.ones(rows, dtype=torch.bool)
    mask = lookup(input_nodes) if isinstance(input_nodes, str) else input_nodes
    if mask is None:
        raise InputError(f"input_nodes {input_nodes}: {owner} no such mask")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (rows,):
        got = described(mask) if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(
            "input_nodes: over ranks seeds are a mask of own vertices, or the name of one: "
            f"a mask must be bool [{rows}], got {got}"
        )
    return mask.cpu()
