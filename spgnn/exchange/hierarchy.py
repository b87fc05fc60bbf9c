"""Hierarchy: rows and partial sums cross to a node once, whoever there needs them.

Ranks are arranged as "node" by "local". The nonzeros between two nodes are one block, which is
covered as a whole (SHIRO). One stage has five hops (``docs/hierarchy.md``): collect, relayed,
direct, distribute, flat. Collect, direct and flat need nothing received and start together. Where
nodes have groups of their own (sockets), collect, distribute and flat are exchanges by the same
rule inside a node, of several hops each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.comm.traffic import RowCounts
from spgnn.exchange.needs import (
    Arrays,
    Needs,
    Received,
    Scheme,
    Swap,
    needs_of,
    rows_from,
    stretches,
)
from spgnn.exchange.plan import Hop, Plan, Stage
from spgnn.exchange.schemes import fold, of_block_row
from spgnn.layout import EVERYONE, Axes, Int64Array, RowLayout, grouped_order
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.registry import Cover
from spgnn.sparse import CSR

Values = npt.NDArray[Any] | None


class Group(NamedTuple):
    """Ranks that exchange rows along some axes, the outermost first; this rank is one of them."""

    layout: RowLayout  # rows of each member
    axes: tuple[str, ...]
    sizes: tuple[int, ...]  # of these axes; their product are the members
    ranks: Int64Array  # the members' numbers among all ranks
    everyone: int  # ranks in all
    me: int

    @property
    def size(self) -> int:
        """Members of a node: ranks that differ in nothing but the inner axes."""
        return prod(self.sizes[1:])

    @property
    def nodes(self) -> RowLayout:
        """Rows of each node."""
        return self.layout.grouped(self.size)

    @property
    def node(self) -> int:
        """The node of this rank."""
        return self.me // self.size

    def local_of(self, rows: Int64Array) -> Int64Array:
        """The number of the owner of each row in its node."""
        return self.layout.owner(rows) % self.size

    def inside(self, rows: Int64Array) -> Group:
        """The node of this rank, whose members have so many rows."""
        layout = RowLayout(np.append(0, np.cumsum(rows)))
        ranks = self.ranks[self.node * self.size :][: self.size]
        return Group(
            layout, self.axes[1:], self.sizes[1:], ranks, self.everyone, self.me % self.size
        )

    def swap(self, counts: Sequence[Int64Array], arrays: Sequence[Arrays]) -> Scheme[Received]:
        """Send stretches of arrays to all members."""
        if len(self.axes) == 1:
            response: Received = yield Swap(self.axes[0], tuple(counts), tuple(arrays))
            return response
        # Plans are made rarely: members on several axes have no communicator of their own.
        spread = np.zeros((len(counts), self.everyone), np.int64)
        spread[:, self.ranks] = np.stack(counts)
        response = yield Swap(EVERYONE, tuple(spread), tuple(arrays))
        here = (RowCounts(c.send[self.ranks], c.recv[self.ranks], c.largest) for c in response[0])
        return Received(tuple(here), response.arrays)


class Entries(NamedTuple):
    """Nonzeros: int64 rows and columns, and values if there are any."""

    row: Int64Array
    column: Int64Array
    value: Values

    def taken(self, which: npt.NDArray[Any]) -> Entries:
        """Some of them."""
        value = None if self.value is None else self.value[which]
        return Entries(self.row[which], self.column[which], value)


class Cargo(NamedTuple):
    """Rows of H, and partial sums of rows of A, that cross from other nodes to one node."""

    node: Int64Array  # where each thing comes from
    key: Int64Array  # number of a row of H; of a sum −1 − the row of the rank that wants it
    lengths: Int64Array  # nonzeros of each: 1 of a row of H
    columns: Int64Array  # rows of H that are multiplied, by global number
    values: Values
    uses: Int64Array  # how many ranks of the node want each thing
    users: Int64Array  # which ranks these are

    @classmethod
    def of(cls, response: Received) -> Cargo:
        """The things that peers sent by :meth:`to`."""
        (things,), (columns, values), (users,) = response.arrays
        assert things is not None
        assert columns is not None
        assert users is not None
        node, key, lengths, uses = np.ascontiguousarray(things.numpy().T)
        numbers = None if values is None else values.numpy()
        return cls(node, key, lengths, columns.numpy(), numbers, uses, users.numpy())

    def taken(self, order: Int64Array) -> Cargo:
        """Some of the things, in some order."""
        entries = stretches(self.lengths, order)
        return Cargo(
            self.node[order],
            self.key[order],
            self.lengths[order],
            self.columns[entries],
            None if self.values is None else self.values[entries],
            self.uses[order],
            self.users[stretches(self.uses, order)],
        )

    def followed_by(self, other: Cargo) -> Cargo:
        """All things of both."""
        pairs: Any = zip(self, other, strict=True)
        joined: list[Any] = [None if a is None else np.concatenate((a, b)) for a, b in pairs]
        return Cargo(*joined)

    def to(self, group: Group, peer: Int64Array) -> Scheme[Received]:
        """Send the things to members of a group, which rise."""
        peers = group.layout.parts
        counts = (
            np.bincount(peer, minlength=peers),
            summed(peer, self.lengths, peers),
            summed(peer, self.uses, peers),
        )
        things = np.stack((self.node, self.key, self.lengths, self.uses), axis=1)
        values = None if self.values is None else torch.from_numpy(self.values)
        columns, users = torch.from_numpy(self.columns), torch.from_numpy(self.users)
        arrays = (torch.from_numpy(things),), (columns, values), (users,)
        return (yield from group.swap(counts, arrays))


def solve(response: Received, here: Group, cover: Cover) -> tuple[Cargo, Int64Array]:
    """The least that has to cross to this node from those that this rank looks after."""
    ((rows, columns, values),) = response.arrays
    asker = np.repeat(np.arange(here.size), response.counts[0].recv)
    asked_for = Entries(rows.numpy(), columns.numpy(), None if values is None else values.numpy())
    # Nonzeros came in the order of their asker and its rows; now by node, and then the same.
    node = here.nodes.owner(asked_for.column)
    order = grouped_order(node, here.nodes.parts)
    node, asker, entries = node[order], asker[order], asked_for.taken(order)
    sum_of = np.zeros(len(node), np.int64)  # of what one row gets from one node
    for one in (node, asker, entries.row):
        sum_of[1:] |= one[1:] != one[:-1]
    sum_of = np.cumsum(sum_of)
    by_row = paid_by_rows(sum_of, entries.column, cover)
    whole = _rows_of_H(asker[~by_row], entries.column[~by_row], here, entries.value)
    sums = _partial_sums(sum_of[by_row], asker[by_row], entries.taken(by_row), here)
    cargo = whole.followed_by(sums)
    # A row of H is at home with its owner, a sum with its receiver: neither is passed on there.
    home = np.concatenate((here.local_of(whole.key), sums.users))
    candidates = np.concatenate((whole.users, here.local_of(sums.columns)))
    begin = np.append(0, np.cumsum(np.concatenate((whole.uses, sums.lengths))))
    blocks = here.nodes.parts // here.size + 1
    agent = _native.choose_agents(
        cargo.node // here.size, home, begin, candidates, blocks, here.size
    )
    return cargo, agent


def paid_by_rows(row: Int64Array, column: Int64Array, cover: Cover) -> npt.NDArray[np.bool_]:
    """Nonzeros that are covered by their row, bool; rows rise."""
    if cover != "minimum":
        return np.full(len(column), cover == "row")
    columns, number = np.unique(column, return_inverse=True)
    begin = np.append(np.unique(row, return_index=True)[1], len(column))
    # Blocks of different nodes have no row and no column in common: all are solved at once.
    _, chosen = _native.minimum_vertex_cover(begin, number.astype(np.int64), len(columns))
    by_row: npt.NDArray[np.bool_] = chosen[number] == 0
    return by_row


def summed(group: Int64Array, numbers: Int64Array, groups: int) -> Int64Array:
    """The sum of the numbers of each group, int64 [groups]; exact below 2⁵³."""
    return np.bincount(group, weights=numbers, minlength=groups).astype(np.int64)


def _rows_of_H(asker: Int64Array, column: Int64Array, here: Group, like: Values) -> Cargo:
    """Rows of H that ranks ask for, each once; rising, and so by node."""
    pairs = np.unique(column * here.size + asker)
    key, ranks = np.unique(pairs // here.size, return_counts=True)
    values = None if like is None else np.ones(len(key), like.dtype)
    ones = np.ones_like(key)
    return Cargo(here.nodes.owner(key), key, ones, key, values, ranks, pairs % here.size)


def _partial_sums(sum_of: Int64Array, asker: Int64Array, entries: Entries, here: Group) -> Cargo:
    """Sums of the nonzeros that have the same number; numbers rise."""
    _, first, lengths = np.unique(sum_of, return_index=True, return_counts=True)
    node, key = here.nodes.owner(entries.column[first]), -1 - entries.row[first]
    ones = np.ones_like(lengths)
    return Cargo(node, key, lengths, entries.column, entries.value, ones, asker[first])


def hierarchical(
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    cover: Cover = "column",
    column_scale: Tensor | None = None,
) -> Scheme[Plan]:
    """1D and 1.5D on nodes of several ranks: what crosses is as little as the cover allows."""
    c = axes.size("replica") if "replica" in axes.names else 1
    of_each, block = yield from of_block_row(block, layout, c)
    last_stages = fold(of_each, axes.coordinate("replica", rank) if c > 1 else 0)
    names = tuple(name for name in axes.names if name != "replica")
    ranks = np.arange(rank % c, axes.ranks, c)
    mine = RowLayout(np.append(0, np.cumsum(layout.sizes[ranks])))
    pattern = block.pattern
    if c > 1:  # all columns are of ranks of this replica: number these alone
        columns = block.indices.numpy()
        owner = layout.owner(columns)
        columns = columns - layout.offsets[owner] + mine.offsets[owner // c]
        indices = torch.from_numpy(columns).to(index_dtype(mine.rows))
        pattern = Pattern.trusted(block.indptr, indices, (block.shape[0], mine.rows))
    sizes = tuple(map(axes.size, names))
    group = Group(mine, names, sizes, ranks, axes.ranks, rank // c)
    L, R, hops = yield from _exchange(CSR(pattern, block.values), group, cover)
    L = L.with_scales(block.row_scale, column_scale)
    # What relays pass on was scaled where it set out.
    hops = tuple(
        replace(hop, send=hop.send.with_scales(None, column_scale))
        if hop.relay is None or hop.send.nnz
        else hop
        for hop in hops
    )
    stage = Stage(L, R.with_scales(block.row_scale, None), hops) if hops else Stage(L)
    return Plan((stage, *last_stages))


def _exchange(block: CSR, group: Group, cover: Cover) -> Scheme[tuple[CSR, CSR, tuple[Hop, ...]]]:
    """L and R of a rank's rows, whose columns are all rows of a group, and the hops between."""
    own = int(group.layout.sizes[group.me])
    if len(group.axes) == 1:
        L, R, needs = needs_of(block, group.layout, range(group.sizes[0]), group.me, cover)
        if group.sizes[0] == 1:
            return L, R, ()
        send, counts = yield from needs.exchange(group.axes[0], own)
        return L, R, (Hop(group.axes[0], send, counts),)
    indices = block.indices.numpy()
    first, last = group.nodes.range(group.node)
    inside = (indices >= first) & (indices < last)
    row = np.repeat(np.arange(block.shape[0]), block.row_lengths.numpy())
    values = None if block.values is None else block.values.detach().numpy()
    every = Entries(row, indices.astype(np.int64), values)
    entries, here = every.taken(~inside), every.taken(inside)
    node = group.inside(group.layout.sizes[group.node * group.size :][: group.size])
    near = _csr(here.row, here.column - first, here.value, (block.shape[0], last - first))
    L, R, flat = yield from _exchange(near, node, cover)
    if group.sizes[0] == 1:
        return L, R, flat
    # Each nonzero goes to the rank of this node that looks after the node it comes from.
    requested = entries
    if cover == "column":  # neither rows nor values matter
        column = np.unique(entries.column)
        requested = Entries(np.zeros_like(column), column, None)
    source = group.nodes.owner(requested.column)
    solver, nodes = source % group.size, group.sizes[0]
    requested = requested.taken(grouped_order(solver * nodes + source, group.size * nodes))
    arrays = tuple(None if array is None else torch.from_numpy(array) for array in requested)
    response = yield from node.swap((np.bincount(solver, minlength=group.size),), (arrays,))
    cargo, agent = solve(response, group, cover)
    order = grouped_order(agent, group.size)
    response = yield from cargo.taken(order).to(node, agent[order])
    hops, arrived = yield from _carried(Cargo.of(response), group, node, cover)
    before = sum(hop.counts.received for hop in hops)
    return L, _remote(entries, arrived, R, before), (*hops, *_after(before, flat))


# Of things of other nodes that a rank receives: keys as in `Cargo`, and their places.
Found = tuple[Int64Array, Int64Array]


def _carried(
    cargo: Cargo, here: Group, node: Group, cover: Cover
) -> Scheme[tuple[tuple[Hop, ...], Found]]:
    """The hops that move what this rank is the agent of, and what it finds among what arrives."""
    own, things = int(here.layout.sizes[here.me]), len(cargo.key)
    nodes, axis = here.sizes[0], here.axes[0]
    foreign = here.local_of(cargo.columns) != here.me % here.size
    is_brought = summed(np.repeat(np.arange(things), cargo.lengths), foreign, things) > 0
    by_node = grouped_order(cargo.node, nodes)
    relayed = cargo.taken(by_node[is_brought[by_node]])
    direct = cargo.taken(by_node[~is_brought[by_node]])
    direct_send, direct_counts = yield from _needed(direct, here, cover).exchange(axis, own)
    # Who wants them is nothing that the other node has to know.
    things_alone = relayed._replace(uses=np.zeros_like(relayed.uses), users=relayed.users[:0])
    agents = Group(here.nodes, (axis,), (nodes,), np.arange(nodes), nodes, here.node)
    response = yield from things_alone.to(agents, relayed.node)
    sent = Cargo.of(response)
    # What its node's agent sends is a product like any other, inside the node.
    row = np.repeat(np.arange(len(sent.key)), sent.lengths)
    columns = sent.columns - here.nodes.offsets[here.node]
    block = _csr(row, columns, sent.values, (len(sent.key), node.layout.rows))
    send, relay, collect = yield from _exchange(block, node, cover)
    hops = (
        *collect,
        Hop(axis, send, response.counts[0].reversed(), relay=_beside([(relay, 0)], relay.shape)),
        Hop(axis, direct_send, direct_counts),
    )
    arrived = relayed.followed_by(direct)
    before = sum(hop.counts.received for hop in collect)
    last, places = yield from _distributed(arrived, before, here, node, own)
    return (*hops, *last), places


def _needed(things: Cargo, here: Group, cover: Cover) -> Needs:
    """The things that are needed of nodes, which rise."""
    node, nodes, owner = things.node, here.nodes.parts, here.layout.owner(things.columns)
    lengths = None if cover == "column" else torch.from_numpy(things.lengths.astype(np.int32))
    return Needs(
        np.bincount(node, minlength=nodes),
        summed(node, things.lengths, nodes),
        lengths,
        torch.from_numpy((things.columns - here.layout.offsets[owner]).astype(np.int32)),
        None if things.values is None else torch.from_numpy(things.values),
    )


def _distributed(
    arrived: Cargo, before: int, here: Group, node: Group, own: int
) -> Scheme[tuple[tuple[Hop, ...], Found]]:
    """The hops that pass things on inside the node; `before` rows come before them."""
    thing = np.repeat(np.arange(len(arrived.key)), arrived.uses)
    order = grouped_order(arrived.users, here.size)
    thing, counts = thing[order], np.bincount(arrived.users, minlength=here.size)
    size = torch.full((here.size,), len(arrived.key))
    ones = np.ones(here.size, np.int64)
    arrays = (size,), (torch.from_numpy(arrived.key[thing]), torch.from_numpy(thing))
    response = yield from node.swap((ones, counts), arrays)
    (sizes,), (keys, numbers) = response.arrays
    agents = node._replace(layout=RowLayout(np.append(0, np.cumsum(sizes.numpy()))))
    column = np.repeat(agents.layout.offsets[:-1], response.counts[1].recv) + numbers.numpy()
    taken = CSR(Selection(torch.from_numpy(column), agents.layout.rows))
    L, R, hops = yield from _exchange(taken, agents, "column")
    total = before + len(arrived.key)
    passing, received = [], total
    for hop in _after(total, hops):
        sent = hop.send.shape[0]
        blocks = [(hop.send, before)] + ([] if hop.relay is None else [(hop.relay, 0)])
        relay = _beside(blocks, (sent, received))
        passing.append(
            replace(hop, send=_csr(column[:0], column[:0], None, (sent, own)), relay=relay)
        )
        received += hop.counts.received
    place = np.empty(len(column), np.int64)
    for part, begin in ((L, before), (R, total)):
        lengths = part.row_lengths.numpy()
        place[lengths > 0] = begin + part.indices.numpy()
    return tuple(passing), (keys.numpy(), place)


def _after(before: int, hops: Sequence[Hop]) -> list[Hop]:
    """The hops of an exchange behind others of the same stage, which receive so many rows."""

    def moved(relay: CSR | None) -> CSR | None:
        if relay is None:
            return None
        return _beside([(relay, before)], (relay.shape[0], before + relay.shape[1]))

    return [replace(hop, relay=moved(hop.relay)) for hop in hops]


def _beside(blocks: Sequence[tuple[CSR, int]], shape: tuple[int, int]) -> CSR:
    """One block of several with as many rows, whose columns begin at some numbers, which rise."""
    row = [np.repeat(np.arange(shape[0]), block.row_lengths.numpy()) for block, _ in blocks]
    column = [begin + block.indices.numpy().astype(np.int64) for block, begin in blocks]
    order = np.argsort(np.concatenate(row), kind="stable")
    rows, columns, values = np.concatenate(row)[order], np.concatenate(column)[order], None
    if any(block.values is not None for block, _ in blocks):
        ones = (np.ones(block.nnz, np.float32) for block, _ in blocks)
        each = [
            one if block.values is None else block.values.numpy()
            for one, (block, _) in zip(ones, blocks, strict=True)
        ]
        values = np.concatenate(each)[order]
    elif np.array_equal(rows, np.arange(shape[0])):
        return CSR(Selection(torch.from_numpy(columns), shape[1]))
    return _csr(rows, columns, values, shape)


def _remote(entries: Entries, arrived: Found, R: CSR, before: int) -> CSR:
    """R of the stage: of rows from other nodes, `before` of them, then from its own, by `R`."""
    key, its_place = arrived
    is_row = key >= 0
    by_key = np.argsort(key[is_row])
    # The sentinel is found where nothing is.
    rising = np.append(key[is_row][by_key], np.iinfo(np.int64).max)
    at = np.searchsorted(rising, entries.column)
    by_column = rising[at] == entries.column
    inside = np.repeat(np.arange(R.shape[0]), R.row_lengths.numpy())
    row = np.concatenate((entries.row[by_column], -1 - key[~is_row], inside))
    place = np.concatenate(
        (its_place[is_row][by_key][at[by_column]], its_place[~is_row], before + R.indices.numpy())
    )
    shape = (R.shape[0], before + R.shape[1])
    values = None
    if entries.value is not None:
        ones = np.ones(int((~is_row).sum()), entries.value.dtype)
        of_R = ones[:0] if R.values is None else R.values.numpy()  # which is empty on lone ranks
        values = np.concatenate((entries.value[by_column], ones, of_R))
    order = np.argsort(row * shape[1] + place)
    values = None if values is None else values[order]
    return _csr(row[order], place[order], values, shape)


def _csr(row: Int64Array, column: Int64Array, values: Values, shape: tuple[int, int]) -> CSR:
    """A block from its nonzeros, whose rows rise."""
    lengths = torch.from_numpy(np.bincount(row, minlength=shape[0]))
    columns = torch.from_numpy(column).to(index_dtype(shape[1]))
    numbers = None if values is None else torch.from_numpy(values)
    return rows_from(lengths, columns, numbers, None, shape[1])
