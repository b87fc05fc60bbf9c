"""Graphs that change: edges are added and dropped in place, in work proportional to the change.

New vertices follow the others of their rank: rows of all ranks then have other numbers.

Three kinds of lists grow and shrink: in-neighbours of each own vertex; the own vertices that edges
of a column end at, whether it is an own vertex or a remote one; and the ranks that need an own row.
Whoever keeps results of the graph is told which rows an update touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.comm import Communicator, RowCounts
from spgnn.data import MASKS, RankShare, VertexData
from spgnn.errors import InputError, unknown
from spgnn.exchange import swap_rows
from spgnn.graph import DistGraph, Edges
from spgnn.layout import RowLayout, grouped_order
from spgnn.pattern import described, index_dtype
from spgnn.sparse import CSR
from spgnn.torch_internals import on_cpu

ADDED, DROPPED = 0, 1
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class Watcher(Protocol):
    """Results of a graph that changes, to be brought up to date."""

    def edges_changed(self, targets: Int64, receivers: Int64) -> None:
        """In-edges of these own vertices changed; rows [2, k] are asked for, (row, rank)."""

    def rows_changed(self, rows: Mapping[str, Int64]) -> None:
        """Rows of these own vertices changed, arrays of the graph by name."""

    def vertices_added(self, first: int, count: int) -> None:
        """New vertices come before this column."""


@dataclass(frozen=True, eq=False)
class Changes:
    """The changes of one update that a rank was given, by original ids."""

    edges: Int64
    attributes: dict[str, Tensor]
    rows: dict[str, tuple[Int64, Tensor]] = field(default_factory=dict)
    vertices: Int64 = field(default_factory=lambda: np.empty(0, np.int64))


def routed(
    comm: Communicator, ranks: Int64, *arrays: Int64
) -> tuple[list[Int64], RowCounts, Int64]:
    """Rows of arrays to these ranks: what arrives, the counts, and the order. Collective."""
    if comm.size == 1:
        count = np.array([len(ranks)])
        return list(arrays), RowCounts(count, count, len(ranks)), np.arange(len(ranks))
    order = np.argsort(ranks, kind="stable")
    counts = comm.exchange_counts(np.bincount(ranks, minlength=comm.size).tolist())
    arrived = [swap_rows(comm, torch.from_numpy(array[order]), counts).numpy() for array in arrays]
    return arrived, counts, order


def answers(
    comm: Communicator, ranks: Int64, numbers: Int64, look: Callable[[Int64], Int64]
) -> Int64:
    """Look numbers up at these ranks, one for each. Collective."""
    (queried,), counts, order = routed(comm, ranks, numbers)
    result, there = np.empty_like(numbers), torch.from_numpy(look(queried))
    result[order] = swap_rows(comm, there, counts.reversed()).numpy()
    return result


class Growth:
    """Rows of all ranks before and after vertices come; until then, these number the last ones."""

    def __init__(self, before: RowLayout, owners: Int64) -> None:
        self.before = self.after = before
        self.owners = self.rows = owners
        if not len(owners):
            return
        come = np.append(0, np.cumsum(np.bincount(owners, minlength=before.parts)))
        self.after = RowLayout(before.offsets + come)
        self._shift = come[:-1]
        self.rows = np.empty(len(owners), np.int64)  # of the new ones, afterwards
        order = grouped_order(owners, before.parts)
        self.rows[order] = np.arange(len(owners)) + before.offsets[owners[order] + 1]

    def owner(self, numbers: Int64) -> Int64:
        """Owners of rows before, and of new ones."""
        if not len(self.owners):
            return self.before.owner(numbers)
        owner, new = self.before.owner(numbers), numbers >= self.before.rows
        owner[new] = self.owners[numbers[new] - self.before.rows]
        return owner

    def renumbered(self, numbers: Int64) -> Int64:
        """Rows afterwards."""
        if not len(self.owners):
            return numbers
        result: Int64 = numbers + self._shift[self.owner(numbers)]
        new = numbers >= self.before.rows
        result[new] = self.rows[numbers[new] - self.before.rows]
        return result


class ChangingEdges:
    """The edges of own vertices of a graph that changes. Collective."""

    def __init__(self, share: RankShare, comm: Communicator) -> None:
        assert share.adjacency is not None
        A, self._comm, self._layout = share.adjacency, comm, share.layout
        self._ids = share.vertex_ids.numpy()
        self._first, last = share.layout.range(comm.rank)
        self.own_rows = own = last - self._first
        columns = A.indices.numpy().astype(np.int64)
        inside = (columns >= self._first) & (columns < last)
        self.halo = np.unique(columns[~inside])
        self._sorted, self._slots = self.halo, np.arange(len(self.halo))
        columns[~inside] = own + np.searchsorted(self.halo, columns[~inside])
        columns[inside] -= self._first
        lengths = A.row_lengths.numpy()
        rows = np.repeat(np.arange(own), lengths)
        by_column = rows[np.argsort(columns, kind="stable")].astype(np.int32)
        counts = np.bincount(columns, minlength=own + len(self.halo))
        self.targets = _native.Neighbours(counts, by_column)
        self.looped = np.bincount(rows[columns == rows], minlength=own) > 0
        begins = A.indptr.numpy()[:-1]
        weights = None if A.values is None else np.insert(A.values.numpy(), begins, 1)
        listed = np.insert(columns.astype(np.int32), begins, np.arange(own, dtype=np.int32))
        self.sources = _native.Neighbours(lengths + 1, listed, weights)
        self.degrees = np.zeros(own)
        self._sum_degrees(np.arange(own))
        self._subscribed = np.zeros(len(self.halo), np.bool_)
        self.receivers = _native.Neighbours(np.zeros(own, np.int64), np.empty(0, np.int32))
        self._subscribe(np.arange(len(self.halo)))
        # Rank r knows the rows of every P-th original id, from r on.
        ids, P = self._ids, comm.size
        numbers = np.arange(self._first, last)
        self._limit = comm.agree(int(ids.max(initial=-1)) + 1)
        (placed, rows_there), _, _ = routed(self._comm, ids % P, ids, numbers)
        self._row_of = np.full(-(-self._limit // P), -1)
        self._row_of[placed // P] = rows_there
        self.watchers: WeakSet[Watcher] = WeakSet()
        self.share = replace(share, adjacency=None)
        self._written = set[str]()  # rows that are no longer the caller's

    @property
    def columns(self) -> int:
        """Own vertices and remote ones."""
        return self.own_rows + len(self.halo)

    def adjacency(self) -> CSR:
        """Own rows [own rows, n], columns rising, as a share has them."""
        numbers = np.concatenate((np.arange(self._first, self._first + self.own_rows), self.halo))
        return self._block(np.arange(self.own_rows), numbers, self._layout.rows)

    def _block(self, rows: Int64, numbers: Int64, columns: int) -> CSR:
        """Some own rows, in these numbers of columns, which rise."""
        indptr, listed, weights = self.sources.take(rows, np.ones(len(rows), np.bool_))
        result = numbers[listed]
        row = np.repeat(np.arange(len(rows)), np.diff(indptr))
        order = torch.from_numpy(np.lexsort((result, row)))
        indices = torch.from_numpy(result)[order].to(index_dtype(columns))
        values = None if weights is None else torch.from_numpy(weights)[order]
        return CSR.of(torch.from_numpy(indptr), indices, (len(rows), columns), values)

    def spread(self, rows: Int64, also: Int64) -> tuple[Int64, RowCounts, Int64]:
        """Own rows by the ranks that have them, and others [2, k], (row, rank). Collective.

        Each pair once; and the columns, here, of rows that other ranks have.
        """
        indptr, ranks, _ = self.receivers.take(rows)
        pairs = np.stack((np.repeat(rows, np.diff(indptr)), ranks))
        rows, ranks_of = np.concatenate((pairs, also), axis=1)
        ranks_of, rows = np.divmod(np.unique(ranks_of * self.own_rows + rows), self.own_rows)
        counts = self._comm.exchange_counts(
            np.bincount(ranks_of, minlength=self._comm.size).tolist()
        )
        numbers = swap_rows(self._comm, torch.from_numpy(rows + self._first), counts)
        return rows, counts, self.columns_of(numbers.numpy())

    def led_to(self, rows: Int64, hops: int) -> Int64:
        """Own rows that paths of so many edges lead to from these rows of all ranks. Collective."""
        nothing = np.empty((2, 0), np.int64)

        def step(front: Int64) -> Int64:
            arrived = front[:0] if self._comm.size == 1 else self.spread(front, nothing)[2]
            return self.targets.ends(np.concatenate((front, arrived)), front[:0], self.own_rows)

        return self._walked(rows, hops, step)

    def leading_to(self, rows: Int64, hops: int) -> Int64:
        """Own rows that such paths to these rows of all ranks begin at. Collective."""

        def step(front: Int64) -> Int64:
            columns = self.sources.ends(front, front[:0], self.columns)
            remote = self.halo[columns[columns >= self.own_rows] - self.own_rows]
            (arrived,), _, _ = routed(self._comm, self._layout.owner(remote), remote)
            return np.concatenate((columns[columns < self.own_rows], arrived - self._first))

        return self._walked(rows, hops, step)

    def _walked(self, rows: Int64, hops: int, step: Callable[[Int64], Int64]) -> Int64:
        reached = np.zeros(self.own_rows, np.bool_)
        reached[rows] = True
        for _ in range(hops):
            rows = np.unique(step(rows))
            rows = rows[~reached[rows]]
            reached[rows] = True
        return np.flatnonzero(reached)

    def share_of(self, rows: Int64, full: Int64) -> tuple[RankShare, Int64]:
        """A share of these own rows, the in-edges of some of them, which have all. Collective.

        And the number there of each column, −1 of others.
        """
        sizes = torch.zeros(self._comm.size, dtype=torch.int64)
        sizes[self._comm.rank] = len(rows)
        self._comm.all_reduce(sizes).wait()
        layout = RowLayout(np.append(0, np.cumsum(sizes.numpy())))
        number = np.full(self.columns, -1)
        number[rows] = np.arange(*layout.range(self._comm.rank))
        columns = self.sources.ends(full, full[:0], self.columns)
        slots = columns[columns >= self.own_rows]
        remote = self.halo[slots - self.own_rows]
        owners = self._layout.owner(remote)
        number[slots] = answers(self._comm, owners, remote, lambda of: number[of - self._first])
        block = self._block(full, number, layout.rows)
        lengths = torch.zeros(len(rows), dtype=torch.int64)
        lengths[torch.from_numpy(np.searchsorted(rows, full))] = block.row_lengths
        indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        each = self._comm.size // self.share.meta.parts
        meta = replace(
            self.share.meta,
            vertices=layout.rows,
            edges=self._comm.agree(block.nnz, "sum"),
            offsets=tuple(layout.offsets[::each].tolist()),
        )
        shape = len(rows), layout.rows
        adjacency = CSR.of(indptr, block.indices, shape, block.values)
        ids = self.share.vertex_ids[torch.from_numpy(rows)]
        return RankShare(meta, layout, adjacency, ids, VertexData()), number

    def edges_of(self, edges: Edges, rows: Int64, number: Int64) -> Edges:
        """Edges that end at these own rows, in such numbers of columns; each with all its state."""
        begins, ends = (
            np.searchsorted(edges.index[1].numpy(), rows + self._first, side)
            for side in ("left", "right")
        )
        counts = ends - begins
        places = np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        at = torch.from_numpy(places)
        source, target = edges.index[:, at].numpy()
        index = np.stack((number[self.columns_of(source)], number[target - self._first]))
        state = {name: values[at] for name, values in edges.attributes.items()}
        return Edges(torch.from_numpy(index), state)

    def apply(self, changes: Changes, vertices: int) -> tuple[Changes, Growth]:
        """Carry an update with so many new vertices out. Collective."""
        queried = np.concatenate(
            (changes.edges[:, :2].ravel(), *(ids for ids, _ in changes.rows.values()))
        )
        numbers = self._numbers(queried, vertices)
        ends, rest = np.split(numbers, [changes.edges[:, :2].size])
        source, target = ends.reshape(-1, 2).T
        growth = Growth(self._layout, self._owners(source, target, vertices))
        # Ids, for messages, are with the edge.
        edges = np.column_stack((source, target, changes.edges[:, (2, 0, 1)]))
        (edges,), counts, order = routed(self._comm, growth.owner(target), edges)
        attributes = {
            name: swap_rows(self._comm, values[torch.from_numpy(order)].contiguous(), counts)
            for name, values in changes.attributes.items()
        }
        rows, own_rows = {}, {}
        for name, (ids, values) in changes.rows.items():
            mine, rest = np.split(rest, [len(ids)])
            (at,), counts, order = routed(
                self._comm, growth.owner(mine), np.column_stack((mine, ids))
            )
            sent = values[torch.from_numpy(order)].contiguous()
            own_rows[name] = at
            rows[name] = at[:, 0], swap_rows(self._comm, sent, counts)
        places = self._comm.on_every_rank(lambda: self._check(edges, own_rows, growth))
        if vertices:
            self._grow(growth)
        edges[:, :2] = growth.renumbered(edges[:, :2])
        rows = {n: (growth.renumbered(at) - self._first, new) for n, (at, new) in rows.items()}
        weights = attributes.get("edge_weight", torch.ones(len(edges)))
        new = np.arange(self.own_rows - (growth.owners == self._comm.rank).sum(), self.own_rows)
        self._change(edges, weights.reshape(-1).float().numpy(), places, new)
        return Changes(edges, attributes, rows), growth

    def _owners(self, source: Int64, target: Int64, vertices: int) -> Int64:
        """Owners of new vertices: of most of their neighbours, among ranks with room. Collective.

        A rank has room for 5 % more than all would have; of several, that with the fewest vertices.
        """
        before, ranks = self._layout.rows, self._comm.size
        owners = np.zeros(vertices, np.int64)
        if not vertices or ranks == 1:
            return owners
        votes = np.zeros((vertices, ranks), np.int64)
        for new, other in ((source, target), (target, source)):
            counts = (new >= before) & (other < before)
            np.add.at(votes, (new[counts] - before, self._layout.owner(other[counts])), 1)
        self._comm.all_reduce(torch.from_numpy(votes)).wait()
        sizes = self._layout.sizes.copy()
        most = -(-21 * (before + vertices) // (20 * ranks))
        for number, vote in enumerate(votes):
            owners[number] = owner = np.lexsort((sizes, -vote, sizes >= most))[0]
            sizes[owner] += 1
        return owners

    def _grow(self, growth: Growth) -> None:
        """Make rows of new vertices, and number all others anew."""
        rank, ranks, own = self._comm.rank, self._comm.size, self.own_rows
        mine = np.flatnonzero(growth.owners == rank)
        count, vertices = len(mine), len(growth.owners)
        self.sources.renumber(own, count)
        for lists in (self.sources, self.targets, self.receivers):
            lists.extend(count, own)
        self.halo, self._sorted = map(growth.renumbered, (self.halo, self._sorted))
        self._layout, self.own_rows = growth.after, own + count
        self._first = growth.after.range(rank)[0]
        self.looped = np.append(self.looped, np.zeros(count, np.bool_))
        self.degrees = np.append(self.degrees, np.zeros(count))
        ids = self._limit + np.arange(vertices)
        self._ids, self._limit = np.concatenate((self._ids, ids[mine])), self._limit + vertices
        row_of = np.full(-(-self._limit // ranks), -1)
        row_of[: len(self._row_of)] = self._row_of
        row_of[row_of >= 0] = growth.renumbered(row_of[row_of >= 0])
        here = ids % ranks == rank
        row_of[ids[here] // ranks] = growth.rows[here]
        self._row_of = row_of
        each = ranks // self.share.meta.parts
        meta = replace(
            self.share.meta,
            vertices=growth.after.rows,
            offsets=tuple(growth.after.offsets[::each].tolist()),
        )
        at = torch.from_numpy(self._ids)
        self.share = replace(self.share, meta=meta, layout=growth.after, vertex_ids=at)
        for watcher in self.watchers:
            watcher.vertices_added(own, count)

    @torch.no_grad()
    def overwrite(self, graph: DistGraph, name: str, at: Tensor, values: Tensor) -> None:
        """Write rows of an attribute, which is the graph's own from the first time on."""
        mine = graph[name]
        come = self.own_rows - len(mine)
        if come or (name not in self._written and not mine.requires_grad):
            self._written.add(name)
            mine = torch.cat((mine, mine.new_zeros(come, *mine.shape[1:])))
            if name in graph.attributes:
                graph.attributes = graph.attributes | {name: mine}
            else:
                setattr(graph, name, mine)
                self.share = replace(
                    self.share, data=replace(self.share.data, **{name: mine.cpu()})
                )
        mine.index_copy_(0, at.to(mine.device), values.to(mine.device))
        saved = None if name in graph.attributes else getattr(self.share.data, name)
        if saved is not None and mine.data_ptr() != saved.data_ptr():
            saved.index_copy_(0, at, values.to(saved.dtype))

    def symmetric(self, changes: Changes) -> bool:
        """True if all ranks together change both directions of each edge alike. Collective."""
        source, target, kind = changes.edges.T
        weights = changes.attributes.get("edge_weight", torch.zeros(len(kind)))
        label = 2 * weights.reshape(-1).double().numpy().view(np.int64) + kind
        with np.errstate(over="ignore"):
            forth = _mixed(_mixed(_mixed(source) + target) + label)
            back = _mixed(_mixed(_mixed(target) + source) + label)
            difference = torch.tensor([int((forth - back).sum())])
        self._comm.all_reduce(difference).wait()
        return int(difference) == 0

    def _check(self, edges: Int64, rows: dict[str, Int64], growth: Growth) -> Int64:
        """Refuse changes that contradict each other, or the graph; the places of dropped edges."""
        keys = edges[:, 1] * (growth.after.rows + 1) + edges[:, 0]
        _, first, times = np.unique(keys, return_index=True, return_counts=True)
        for place in first[times > 1][:1]:
            kinds = set(edges[keys == keys[place], 2].tolist())
            what = "added and dropped" if len(kinds) > 1 else "given twice"
            raise InputError(f"update: edge {self._shown(edges[place])} is {what}")
        new = self._limit + np.flatnonzero(growth.owners == self._comm.rank)
        for name, at in rows.items():
            result, times = np.unique(at[:, 1], return_counts=True)
            for vertex in result[times > 1][:1]:
                raise InputError(f"update: {name} of vertex {vertex} is given twice")
            missing = np.setdiff1d(new, result) if len(new) and name not in MASKS else new[:0]
            for vertex in missing[:1]:
                raise InputError(f"update: {name} of the new vertex {vertex} is missing")
        there = self.columns_of(edges[:, 0])
        places = np.full(len(edges), -1)
        present = np.flatnonzero((there >= 0) & (edges[:, 1] < self._layout.rows))
        targets = edges[present, 1] - self._first
        places[present] = self.sources.find(targets, there[present], 1)
        for edge in edges[(places >= 0) == (edges[:, 2] == ADDED)][:1]:
            what = "there already" if edge[2] == ADDED else "not there to be dropped"
            raise InputError(f"update: edge {self._shown(edge)} is {what}")
        dropped: Int64 = places[edges[:, 2] == DROPPED]
        return dropped

    def _change(self, edges: Int64, weights: Float32, places: Int64, new: Int64) -> None:
        """Add and drop edges of own vertices, and tell whoever watches. Collective."""
        self._take_in(edges[:, 0])
        columns = self.columns_of(edges[:, 0])
        rows = edges[:, 1] - self._first
        added = edges[:, 2] == ADDED
        row, column = rows[~added], columns[~added]
        self.sources.drop(row, places)
        self.targets.drop(column, self.targets.find(column, row))
        # A vertex stands first in its own list.
        first = np.append(new, rows[added]), np.append(new, columns[added])
        self.sources.add(*first, np.append(np.ones(len(new), np.float32), weights[added]))
        self.targets.add(columns[added], rows[added])
        loops = rows == columns
        self.looped[rows[loops]] = added[loops]
        touched = np.unique(rows)
        self._sum_degrees(touched)
        receivers = self._subscribe(np.unique(columns[columns >= self.own_rows]) - self.own_rows)
        for watcher in self.watchers:
            watcher.edges_changed(touched, receivers)

    def _take_in(self, numbers: Int64) -> None:
        """Make columns of remote vertices that were none."""
        last = self._first + self.own_rows
        remote = np.unique(numbers[(numbers < self._first) | (numbers >= last)])
        new = remote[self.columns_of(remote) < 0]
        if len(new):
            self.halo = np.concatenate((self.halo, new))
            self._slots = np.argsort(self.halo)
            self._sorted = self.halo[self._slots]
            self._subscribed = np.concatenate((self._subscribed, np.zeros(len(new), np.bool_)))
            self.targets.extend(len(new), self.columns - len(new))

    def _subscribe(self, slots: Int64) -> Int64:
        """Tell owners of remote columns who has them, and who no longer. Collective."""
        if self._comm.size == 1:
            return np.empty((2, 0), np.int64)
        needed = self.targets.lengths(self.own_rows + slots) > 0
        slots = slots[needed != self._subscribed[slots]]
        begins = ~self._subscribed[slots]
        self._subscribed[slots] = begins
        numbers = self.halo[slots]
        sent = np.column_stack((numbers, begins.astype(np.int64)))
        (received,), counts, _ = routed(self._comm, self._layout.owner(numbers), sent)
        ranks = np.repeat(np.arange(self._comm.size), counts.recv)
        rows, begins = received[:, 0] - self._first, received[:, 1] > 0
        self.receivers.add(rows[begins], ranks[begins])
        self.receivers.drop(rows[~begins], self.receivers.find(rows[~begins], ranks[~begins]))
        return np.stack((rows[begins], ranks[begins]))

    def columns_of(self, numbers: Int64) -> Int64:
        """Columns of rows of all ranks; −1 where there is none."""
        own = (numbers >= self._first) & (numbers < self._first + self.own_rows)
        place = np.searchsorted(self._sorted, numbers)
        place[place == len(self._sorted)] = 0
        result = np.full(len(numbers), -1)
        if len(self._sorted):
            result = np.where(
                self._sorted[place] == numbers, self.own_rows + self._slots[place], -1
            )
        return np.where(own, numbers - self._first, result)

    def check_new(self, ids: Int64) -> None:
        """Refuse new vertices, those of all ranks, that do not go on from the last id."""
        expected = self._limit + np.arange(len(ids))
        for wrong in np.sort(ids)[np.sort(ids) != expected][:1]:
            raise InputError(
                f"update: new vertices are called {self._limit} to {expected[-1]}, each once, "
                f"got {wrong}"
            )

    def _numbers(self, every: Int64, vertices: int) -> Int64:
        """Rows of all ranks, of original ids; new vertices come after all others. Collective."""
        last = self._limit + vertices

        def check() -> None:
            for wrong in every[(every < 0) | (every >= last)][:1]:
                raise InputError(f"update: vertex {wrong} is outside [0, {last})")

        self._comm.on_every_rank(check)
        result = every - self._limit + self._layout.rows
        ids, ranks = every[every < self._limit], self._comm.size
        numbers = answers(self._comm, ids % ranks, ids, lambda of: self._row_of[of // ranks])

        def check_found() -> None:
            for wrong in ids[numbers < 0][:1]:
                raise InputError(f"update: the graph has no vertex {wrong}")

        self._comm.on_every_rank(check_found)
        result[every < self._limit] = numbers
        return result

    def _sum_degrees(self, rows: Int64) -> None:
        """Add up the weights of some rows, all of them: so no rounding stays behind."""
        lengths = self.sources.lengths(rows) - 1
        if self.sources.weighted:
            _, _, weights = self.sources.take(rows, np.ones(len(rows), np.bool_))
            row = np.repeat(np.arange(len(rows)), lengths)
            self.degrees[rows] = np.bincount(row, weights, minlength=len(rows))
        else:
            self.degrees[rows] = lengths

    def _shown(self, edge: Int64) -> str:
        return f"{edge[3]} → {edge[4]}"


def _mixed(numbers: Int64) -> Int64:
    """Numbers whose sums are equal by accident only."""
    mixed = (numbers + 1) * np.int64(-7046029254386353131)
    mixed ^= mixed >> 29
    return mixed * np.int64(-4658895280553007687)


_changing: WeakKeyDictionary[DistGraph, ChangingEdges] = WeakKeyDictionary()


@on_cpu
def changing_edges(graph: DistGraph) -> ChangingEdges:
    """The edges of a graph in a form that can change; made when first asked for. Collective."""
    if graph not in _changing:
        graph.comm.on_every_rank(lambda: _check_can_change(graph))
        graph.list_edges()
        _changing[graph] = ChangingEdges(graph.share, graph.comm)
    return _changing[graph]


def _check_can_change(graph: DistGraph) -> None:
    share = graph.share
    refused = {
        "has a codec, which keeps rows of its messages": not graph.codec.exact,
        "has repeated edges": graph.has_repeated_edges,
        "is cut by edges (a vertex cut)": share.edge_labels is not None,
        "has let go of its adjacency": share.adjacency is None,
    }
    for what, holds in refused.items():
        if holds:
            raise InputError(f"a graph that {what} cannot be updated: distribute it again")


@on_cpu
def update(
    graph: DistGraph,
    add_edges: object,
    drop_edges: object,
    add_nodes: object,
    attributes: Mapping[str, object],
) -> int:
    """See :meth:`spgnn.DistGraph.update`."""
    comm = graph.comm
    comm.check_agreement("graph.update", version=graph.version)
    changing, edges = changing_edges(graph), graph.given_edges
    of_vertices = {name: getattr(graph, name) for name in ("x", "y", *MASKS)} | graph.attributes
    rows = {name: (attributes.get(name), like) for name, like in of_vertices.items()}
    of_edges = {name: values for name, values in attributes.items() if name not in rows}
    present = {"edge_weight": torch.empty(0)} if graph.meta.weighted else {}
    present = present if edges is None else edges.attributes
    changes = comm.on_every_rank(
        lambda: checked(
            add_edges, drop_edges, add_nodes, of_edges, present, rows, graph.num_classes
        )
    )
    # A rank that has no new rows, where others have some, has none of their width.
    updated = torch.tensor([*(name in changes.rows for name in rows), len(changes.vertices) > 0])
    updated = updated.long()
    comm.all_reduce(updated, "max").wait()
    new = changes.vertices[:0]
    if updated[-1]:
        if graph.vertex_names is not None:
            raise InputError(
                "update: vertices have names, and new ones would have none: distribute the new "
                "graph, or give the source integers as ids"
            )
        new = graph.all_gather(torch.from_numpy(changes.vertices)).numpy()
        changing.check_new(new)
        _check_grows(of_vertices)
    every = {}
    for (name, like), some in zip(of_vertices.items(), updated.tolist(), strict=False):
        if some or (len(new) and like is not None):
            nothing = np.empty(0, np.int64), like[:0].detach().cpu()
            every[name] = changes.rows.get(name, nothing)
    changes = replace(changes, rows=every)
    symmetric = graph.meta.directed or changing.symmetric(changes)
    mine, growth = changing.apply(changes, len(new))
    if edges is not None:
        index = torch.from_numpy(growth.renumbered(edges.index.numpy()))
        edges = replace(edges, index=index).changed(mine.edges, mine.attributes)
    for name, (at, values) in mine.rows.items():
        changing.overwrite(graph, name, torch.from_numpy(at), values)
    for watcher in changing.watchers:
        watcher.rows_changed({name: at for name, (at, _) in mine.rows.items()})
    dropped = int(changes.edges[:, 2].sum())
    meta = replace(
        changing.share.meta,
        edges=graph.meta.edges + comm.agree(len(changes.edges) - 2 * dropped, "sum"),
        directed=not symmetric or graph.meta.directed,
    )
    changing.share = replace(changing.share, meta=meta)
    graph.take_changes(changing.share, edges, changing.adjacency, growth.renumbered)
    return graph.version


def _check_grows(of_vertices: Mapping[str, Tensor | CSR | None]) -> None:
    """Refuse new vertices where a row of them cannot be put to the others."""
    for name, values in of_vertices.items():
        if isinstance(values, CSR):
            raise InputError("update: a graph of sparse features takes no new vertices")
        if values is not None and values.requires_grad:
            raise InputError(f"update: {name} is trained, and takes no rows of new vertices")


def checked(
    add_edges: object,
    drop_edges: object,
    add_nodes: object,
    of_edges: Mapping[str, object],
    present: Mapping[str, Tensor],
    rows: Mapping[str, tuple[object, Tensor | CSR | None]],
    classes: int,
) -> Changes:
    """The arguments of an update, checked as far as one rank can."""
    added, dropped = _edges("add_edges", add_edges), _edges("drop_edges", drop_edges)
    kinds = np.repeat((ADDED, DROPPED), (len(added), len(dropped)))
    edges = np.column_stack((np.concatenate((added, dropped)), kinds))
    attributes = {}
    for name in of_edges:
        if of_edges[name] is not None and name not in present:
            there = [key for key, (_, like) in rows.items() if like is not None]
            choices = ["add_edges", "drop_edges", "add_nodes", *there, *present]
            raise unknown("update: the graph has no", name, choices)
    for name, like in present.items():
        values = attributes[name] = like.new_zeros((len(edges), *like.shape[1:]), device="cpu")
        data = of_edges.get(name)
        if data is None and len(added):
            raise InputError(f"update: {name} of new edges is missing, {list(like.shape[1:])} each")
        if data is not None:
            new = _tensor(name, "numbers", data)
            expected = [len(added), *like.shape[1:]]
            if new.is_floating_point() != like.is_floating_point() or list(new.shape) != expected:
                what = f"{str(like.dtype).removeprefix('torch.')} {expected}"
                raise InputError(f"update: {name} must be {what}, got {described(new)}")
            if new.is_floating_point() and not bool(new.isfinite().all()):
                raise InputError(f"update: {name} must be finite")
            values[: len(added)] = new
    result = {}
    for name, (given_rows, known_rows) in rows.items():
        if given_rows is not None:
            result[name] = _rows(name, given_rows, known_rows, classes)
    vertices = np.empty(0, np.int64)
    if add_nodes is not None:
        vertices = _integers("add_nodes", "[vertices]", add_nodes).reshape(-1).numpy()
    return Changes(edges, attributes, result, vertices)


def _tensor(name: str, rule: str, data: object) -> Tensor:
    try:
        return torch.as_tensor(data).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"update: {name} must be {rule}, got {described(data)}") from error


def _edges(name: str, edges: object) -> Int64:
    """Edges [2, e] as a user gives them, as int64 [e, 2]: original ids of sources and targets."""
    if edges is None:
        return np.empty((0, 2), np.int64)
    array = _integers(name, "[2, edges]", edges)
    if not array.numel():
        return np.empty((0, 2), np.int64)
    if array.dim() != 2 or len(array) != 2:
        raise InputError(f"update: {name} must be integers [2, edges], got {described(array)}")
    return array.T.numpy()


def _integers(name: str, shape: str, data: object) -> Tensor:
    array = _tensor(name, f"integers {shape}, numbers of vertices and not names", data)
    if array.numel() == 0:
        array = array.long()  # an empty list is one of floating numbers
    if array.dtype not in (torch.int32, torch.int64):
        raise InputError(f"update: {name} must be integers {shape}, got {described(array)}")
    return array.long()


def _rows(
    name: str, data: object, present: Tensor | CSR | None, classes: int
) -> tuple[Int64, Tensor]:
    """Ids and rows (ids, rows) of vertices as a user gives them."""
    if not isinstance(present, Tensor):
        there = "sparse features, whose rows stay" if isinstance(present, CSR) else f"no {name}"
        raise InputError(f"update: the graph has {there}")
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise InputError(f"update: {name} must be (ids, rows), got {described(data)}")
    ids = _integers(f"ids of {name}", "[vertices]", data[0])
    rows = _tensor(f"rows of {name}", "numbers", data[1])
    expected = (len(ids), *present.shape[1:]), present.dtype
    if ids.dim() != 1 or (tuple(rows.shape), rows.dtype) != expected:
        what = f"{str(present.dtype).removeprefix('torch.')} {list(expected[0])}"
        raise InputError(f"update: {name} must be {what}, one row an id, got {described(rows)}")
    if rows.is_floating_point() and name == "x" and not bool(rows.isfinite().all()):
        raise InputError("update: x must be finite")
    if name == "y" and classes and len(rows) and int(rows.max()) >= classes:
        raise InputError(f"update: y is {int(rows.max())}, the graph has {classes} classes")
    return ids.numpy(), rows
