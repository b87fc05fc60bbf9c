"""Hierarchy: rows and partial sums cross to a node once, whoever there needs them.

Ranks are arranged as "node" by "local". The nonzeros between two nodes form one block, which is
covered as a whole, so that a row of H crosses once however many ranks of the node need it, and the
partial sums that ranks of one node make for a row are added before they cross. One stage has five
hops:

======================  ====================================================================
collect ("local")       rows and partial sums go to the agent that will carry them
relayed ("node")        agents send what they were brought, sums added up
direct ("node")         rows and sums that are complete where they are
distribute ("local")    agents pass on what arrived to those that need it
flat ("local")          what ranks of one node need of each other
======================  ====================================================================

Collect, direct and flat need nothing received and start together. The cover of node blocks is
SHIRO's; exchanges of two levels are those of node-aware products (Bienz, Gropp & Olson, JPDC 2019).
See ``docs/hierarchy.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.exchange.needs import Cover, Needs, Received, Scheme, Swap, needs_of
from spgnn.exchange.plan import Hop, Plan, Stage
from spgnn.exchange.schemes import fold, of_block_row
from spgnn.layout import LOCAL, NODE, Axes, Int64Array, RowLayout, grouped_order
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.sparse import CSR

Values = npt.NDArray[Any] | None


class Place(NamedTuple):
    """The place of a rank among nodes of neighbouring ranks."""

    ranks: RowLayout  # rows of each rank
    nodes: RowLayout  # rows of each node
    node: int  # its coordinates along "node" and "local"
    local: int
    size: int  # ranks along "local"

    @classmethod
    def of(cls, layout: RowLayout, axes: Axes, rank: int) -> Place:
        """The place of a rank on the axes "node" and "local"."""
        size = axes.size(LOCAL)
        where = axes.coordinate(NODE, rank), axes.coordinate(LOCAL, rank)
        return cls(layout, layout.grouped(layout.parts // axes.size(NODE)), *where, size)

    def local_of(self, rows: Int64Array) -> Int64Array:
        """The rank of its node that owns each of some rows of the whole matrix."""
        ranks_a_node = self.ranks.parts // self.nodes.parts
        # Neighbouring ranks are replicas first, and differ along "local" then.
        return self.ranks.owner(rows) % ranks_a_node // (ranks_a_node // self.size)

    def own_number(self, rows: Int64Array) -> Int64Array:
        """The number of each row among those of its owner."""
        return rows - self.ranks.offsets[self.ranks.owner(rows)]


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
    """Rows of H, and partial sums of rows of A, that cross from other nodes to one node.

    Arrays are int64, by thing or by nonzero of a thing.
    """

    node: Int64Array  # where each thing comes from
    key: Int64Array  # number of a row of H; of a sum −1 − the row of the rank that wants it
    lengths: Int64Array  # nonzeros of each: 1 of a row of H
    columns: Int64Array  # rows of H that are multiplied, by global number
    values: Values
    wanted: Int64Array  # how many ranks want each thing
    wanting: Int64Array  # which ranks of the node these are

    @classmethod
    def of(cls, response: Received) -> Cargo:
        """The things that peers sent by :meth:`to`."""
        (things,), (columns, values), (wanting,) = response.arrays
        assert things is not None
        assert columns is not None
        assert wanting is not None
        node, key, lengths, wanted = np.ascontiguousarray(things.numpy().T)
        numbers = None if values is None else values.numpy()
        return cls(node, key, lengths, columns.numpy(), numbers, wanted, wanting.numpy())

    def taken(self, order: Int64Array) -> Cargo:
        """Some of the things, in some order."""
        entries = stretches(self.lengths, order)
        return Cargo(
            self.node[order],
            self.key[order],
            self.lengths[order],
            self.columns[entries],
            None if self.values is None else self.values[entries],
            self.wanted[order],
            self.wanting[stretches(self.wanted, order)],
        )

    def followed_by(self, other: Cargo) -> Cargo:
        """All things of both."""
        pairs: Any = zip(self, other, strict=True)
        joined: list[Any] = [None if a is None else np.concatenate((a, b)) for a, b in pairs]
        return Cargo(*joined)

    def to(self, axis: str, peer: Int64Array, peers: int) -> Swap:
        """Send the things to peers, which rise."""
        counts = (
            np.bincount(peer, minlength=peers),
            summed(peer, self.lengths, peers),
            summed(peer, self.wanted, peers),
        )
        things = np.stack((self.node, self.key, self.lengths, self.wanted), axis=1)
        values = None if self.values is None else torch.from_numpy(self.values)
        columns, wanting = torch.from_numpy(self.columns), torch.from_numpy(self.wanting)
        return Swap(axis, counts, ((torch.from_numpy(things),), (columns, values), (wanting,)))


def solve(response: Received, here: Place, cover: Cover) -> tuple[Cargo, Int64Array]:
    """The least that has to cross to this node from those that this rank looks after.

    With the agent of each thing: the rank that carries it on both sides.
    """
    ((rows, columns, values),) = response.arrays
    assert rows is not None
    assert columns is not None
    asker = np.repeat(np.arange(here.size), response.counts[0].recv)
    given = Entries(rows.numpy(), columns.numpy(), None if values is None else values.numpy())
    # Nonzeros came in the order of their asker and its rows; now by node, and then the same.
    node = here.nodes.owner(given.column)
    order = grouped_order(node, here.nodes.parts)
    node, asker, entries = node[order], asker[order], given.taken(order)
    sum_of = np.zeros(len(node), np.int64)  # of what one row gets from one node
    for one in (node, asker, entries.row):
        sum_of[1:] |= one[1:] != one[:-1]
    sum_of = np.cumsum(sum_of)
    by_row = paid_by_rows(sum_of, entries.column, cover)
    whole = _rows_of_H(asker[~by_row], entries.column[~by_row], here, entries.value)
    sums = _partial_sums(sum_of[by_row], asker[by_row], entries.taken(by_row), here)
    cargo = whole.followed_by(sums)
    # A row of H is at home with its owner, a sum with its receiver: neither is passed on there.
    home = np.concatenate((here.local_of(whole.key), sums.wanting))
    candidates = np.concatenate((whole.wanting, here.local_of(sums.columns)))
    begin = np.append(0, np.cumsum(np.concatenate((whole.wanted, sums.lengths))))
    blocks = here.nodes.parts // here.size + 1
    agent = _native.choose_agents(
        cargo.node // here.size, home, begin, candidates, blocks, here.size
    )
    return cargo, agent


def paid_by_rows(row: Int64Array, column: Int64Array, cover: Cover) -> npt.NDArray[np.bool_]:
    """Nonzeros that are covered by their row, bool; rows rise."""
    if cover != "minimum":
        return np.full(len(column), cover == "row")
    known, number = np.unique(column, return_inverse=True)
    begin = np.append(np.unique(row, return_index=True)[1], len(column))
    # Blocks of different nodes have no row and no column in common: all are solved at once.
    _, chosen = _native.minimum_vertex_cover(begin, number.astype(np.int64), len(known))
    by_row: npt.NDArray[np.bool_] = chosen[number] == 0
    return by_row


def stretches(lengths: Int64Array, order: Int64Array) -> Int64Array:
    """Places of the elements of some stretches, stretch after stretch in the order given."""
    begin = np.cumsum(lengths) - lengths
    taken = lengths[order]
    shift = begin[order] - (np.cumsum(taken) - taken)
    return np.repeat(shift, taken) + np.arange(int(taken.sum()))


def summed(group: Int64Array, numbers: Int64Array, groups: int) -> Int64Array:
    """The sum of the numbers of each group, int64 [groups]; exact below 2⁵³."""
    return np.bincount(group, weights=numbers, minlength=groups).astype(np.int64)


def _rows_of_H(asker: Int64Array, column: Int64Array, here: Place, like: Values) -> Cargo:
    """Rows of H that ranks ask for, each once; rising, and so by node."""
    pairs = np.unique(column * here.size + asker)
    key, wanted = np.unique(pairs // here.size, return_counts=True)
    values = None if like is None else np.ones(len(key), like.dtype)
    ones = np.ones_like(key)
    return Cargo(here.nodes.owner(key), key, ones, key, values, wanted, pairs % here.size)


def _partial_sums(sum_of: Int64Array, asker: Int64Array, entries: Entries, here: Place) -> Cargo:
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
    """1D and 1.5D on nodes of several ranks: what crosses is as little as the cover allows.

    With several replicas these are ranks of one node, so that partial sums of whole block rows are
    added inside nodes.
    """
    c = axes.size("replica") if "replica" in axes.names else 1
    made, block = yield from of_block_row(block, layout, c)
    last_stages = fold(made, axes.coordinate("replica", rank) if c > 1 else 0)
    here, own = Place.of(layout, axes, rank), int(layout.sizes[rank])
    L, R, needs = needs_of(block, layout, axes.group(LOCAL, rank), here.local, cover)
    send, counts = yield from needs.exchange(LOCAL, own)
    L = L.with_scales(L.row_scale, column_scale)
    flat = Hop(LOCAL, send.with_scales(None, column_scale), counts)
    if here.nodes.parts == 1:
        return Plan((Stage(L, R, (flat,)) if here.size > 1 else Stage(L), *last_stages))
    indices = block.indices.numpy()
    first, last = here.nodes.range(here.node)
    foreign = np.flatnonzero((indices < first) | (indices >= last))
    row = np.searchsorted(block.indptr.numpy(), foreign, side="right") - 1
    values = None if block.values is None else block.values.detach().numpy()[foreign]
    entries = Entries(row, indices[foreign].astype(np.int64), values)
    # Each nonzero goes to the rank of this node that looks after the node it comes from.
    requested = entries
    if cover == "column":  # neither rows nor values matter
        column = np.unique(entries.column)
        requested = Entries(np.zeros_like(column), column, None)
    node = here.nodes.owner(requested.column)
    solver, nodes = node % here.size, here.nodes.parts
    requested = requested.taken(grouped_order(solver * nodes + node, here.size * nodes))
    arrays = tuple(None if array is None else torch.from_numpy(array) for array in requested)
    response = yield Swap(LOCAL, (np.bincount(solver, minlength=here.size),), (arrays,))
    cargo, agent = solve(response, here, cover)
    order = grouped_order(agent, here.size)
    response = yield cargo.taken(order).to(LOCAL, agent[order], here.size)
    hops, found = yield from _carried(Cargo.of(response), here, own, cover, column_scale)
    remote = _remote(entries, found, R, hops, block)
    return Plan((Stage(L, remote, (*hops, flat)), *last_stages))


# Of things of other nodes that a rank receives: keys as in `Cargo`, and their places.
Found = tuple[Int64Array, Int64Array]


def _carried(
    cargo: Cargo, here: Place, own: int, cover: Cover, column_scale: Tensor | None
) -> Scheme[tuple[tuple[Hop, ...], Found]]:
    """The hops that move what this rank is the agent of, and what it finds among what arrives."""
    nodes, things = here.nodes.parts, len(cargo.key)
    foreign = here.local_of(cargo.columns) != here.local
    is_brought = summed(np.repeat(np.arange(things), cargo.lengths), foreign, things) > 0
    by_node = grouped_order(cargo.node, nodes)
    relayed = cargo.taken(by_node[is_brought[by_node]])
    direct = cargo.taken(by_node[~is_brought[by_node]])
    direct_send, direct_counts = yield from _needed(direct, here, cover).exchange(NODE, own)
    # Who wants them is nothing that the other node has to know.
    things_alone = relayed._replace(
        wanted=np.zeros_like(relayed.wanted), wanting=relayed.wanting[:0]
    )
    response = yield things_alone.to(NODE, relayed.node, nodes)
    send, relay, needs = _collected(Cargo.of(response), here, own, cover)
    collect_send, collect_counts = yield from needs.exchange(LOCAL, own)

    def scaled(block: CSR) -> CSR:
        return block.with_scales(None, column_scale)

    hops = (
        Hop(LOCAL, scaled(collect_send), collect_counts),
        Hop(NODE, scaled(send), response.counts[0].reversed(), relay=relay),
        Hop(NODE, scaled(direct_send), direct_counts),
    )
    arrived = relayed.followed_by(direct)
    last, found = yield from _distributed(arrived, collect_counts.received, here, own)
    return (*hops, last), found


def _needed(things: Cargo, here: Place, cover: Cover) -> Needs:
    """The things that are needed of nodes, which rise."""
    node, nodes = things.node, here.nodes.parts
    lengths = None if cover == "column" else torch.from_numpy(things.lengths.astype(np.int32))
    return Needs(
        np.bincount(node, minlength=nodes),
        summed(node, things.lengths, nodes),
        lengths,
        torch.from_numpy(here.own_number(things.columns).astype(np.int32)),
        None if things.values is None else torch.from_numpy(things.values),
    )


def _collected(cargo: Cargo, here: Place, own: int, cover: Cover) -> tuple[CSR, CSR, Needs]:
    """An agent's own share of each thing it sends, which collected rows are added, and its needs.

    A row of H is collected once, wherever it goes; a partial sum is one row from each rank that has
    a share in it.
    """
    things, n = len(cargo.key), here.ranks.rows
    thing = np.repeat(np.arange(things), cargo.lengths)
    owner = here.local_of(cargo.columns)
    mine = owner == here.local
    values = None if cargo.values is None else cargo.values[mine]
    send = _csr(thing[mine], here.own_number(cargo.columns[mine]), values, (things, own))
    theirs = np.flatnonzero(~mine)
    what = np.where(cargo.key[thing] < 0, n + thing, cargo.columns)[theirs]
    known, number = np.unique(owner[theirs] * (n + things) + what, return_inverse=True)
    order = np.argsort(number, kind="stable")
    # Of a row of H that goes to several nodes the first mention is enough.
    again = np.zeros(len(order), np.bool_)
    again[1:] = (number[order[1:]] == number[order[:-1]]) & (what[order[1:]] < n)
    order = order[~again]
    lengths = np.bincount(number[order], minlength=len(known))
    peer = known // (n + things)
    needs = Needs(
        np.bincount(peer, minlength=here.size),
        summed(peer, lengths, here.size),
        None if cover == "column" else torch.from_numpy(lengths.astype(np.int32)),
        torch.from_numpy(here.own_number(cargo.columns[theirs[order]]).astype(np.int32)),
        None if cargo.values is None else torch.from_numpy(cargo.values[theirs[order]]),
    )
    pairs = np.unique(thing[theirs] * len(known) + number)
    if cover == "column":
        return send, CSR(Selection(torch.from_numpy(pairs % max(len(known), 1)), len(known))), needs
    thing, number = np.divmod(pairs, max(len(known), 1))
    return send, _csr(thing, number, None, (things, len(known))), needs


def _distributed(arrived: Cargo, before: int, here: Place, own: int) -> Scheme[tuple[Hop, Found]]:
    """The hop that passes things on inside the node; `before` rows come before them."""
    thing = np.repeat(np.arange(len(arrived.key)), arrived.wanted)
    mine = thing[arrived.wanting == here.local]
    others = np.flatnonzero(arrived.wanting != here.local)
    others = others[grouped_order(arrived.wanting[others], here.size)]
    counts = np.bincount(arrived.wanting[others], minlength=here.size)
    passed = thing[others]
    response = yield Swap(LOCAL, (counts,), ((torch.from_numpy(arrived.key[passed]),),))
    ((keys,),) = response.arrays
    total = before + len(arrived.key)
    nothing = _csr(passed[:0], passed[:0], None, (len(passed), own))
    relay = CSR(Selection(torch.from_numpy(before + passed), total))
    found = (
        np.concatenate((arrived.key[mine], keys.numpy())),
        np.concatenate((before + mine, total + np.arange(len(keys)))),
    )
    return Hop(LOCAL, nothing, response.counts[0], relay=relay), found


def _remote(entries: Entries, found: Found, R: CSR, hops: Sequence[Hop], block: CSR) -> CSR:
    """R of the stage: of rows from other nodes, then from its own, by `R`."""
    before = sum(hop.counts.received for hop in hops)
    key, its_place = found
    is_row = key >= 0
    by_key = np.argsort(key[is_row])
    # The sentinel is found where nothing is.
    known = np.append(key[is_row][by_key], np.iinfo(np.int64).max)
    at = np.searchsorted(known, entries.column)
    by_column = known[at] == entries.column
    inside = np.repeat(np.arange(R.shape[0]), R.row_lengths.numpy())
    row = np.concatenate((entries.row[by_column], -1 - key[~is_row], inside))
    place = np.concatenate(
        (
            its_place[is_row][by_key][at[by_column]],
            its_place[~is_row],
            before + R.indices.numpy(),
        )
    )
    shape = (R.shape[0], before + R.shape[1])
    values = None
    if entries.value is not None and R.values is not None:
        ones = np.ones(int((~is_row).sum()), entries.value.dtype)
        values = np.concatenate((entries.value[by_column], ones, R.values.numpy()))
    order = np.argsort(row * shape[1] + place)
    values = None if values is None else values[order]
    remote = _csr(row[order], place[order], values, shape)
    return remote.with_scales(block.row_scale, None)


def _csr(row: Int64Array, column: Int64Array, values: Values, shape: tuple[int, int]) -> CSR:
    """A block from its nonzeros, whose rows rise."""
    indptr = np.append(0, np.cumsum(np.bincount(row, minlength=shape[0])))
    indices = torch.from_numpy(column).to(index_dtype(shape[1]))
    pattern = Pattern.trusted(torch.from_numpy(indptr), indices, shape)
    return CSR(pattern, None if values is None else torch.from_numpy(values))
