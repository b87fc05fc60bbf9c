"""Cargo: what crosses between two nodes, how little that can be, and who carries it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn import _native
from spgnn.exchange.deal import Deal, Hand
from spgnn.exchange.inspect import Cover
from spgnn.layout import LOCAL, NODE, Axes, Int64Array, RowLayout, grouped_order
from spgnn.sparse import CSR

Values = npt.NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class Place:
    """Where a rank sits among nodes of neighbouring ranks.

    Attributes
    ----------
    ranks, nodes : RowLayout
        Rows of each rank, and of each node.
    node, local : int
        Coordinates along "node" and "local".
    size : int
        Ranks along "local".
    """

    ranks: RowLayout
    nodes: RowLayout
    node: int
    local: int
    size: int

    @classmethod
    def of(cls, layout: RowLayout, axes: Axes, rank: int) -> Place:
        """The place of a rank on the axes "node" and "local"."""
        size = axes.size(LOCAL)
        where = axes.coordinate(NODE, rank), axes.coordinate(LOCAL, rank)
        return cls(layout, layout.grouped(layout.parts // axes.size(NODE)), *where, size)

    def local_of(self, rows: Int64Array) -> Int64Array:
        """Which rank of its node owns each of some rows of the whole matrix."""
        ranks_a_node = self.ranks.parts // self.nodes.parts
        # Neighbouring ranks are replicas first, and differ along "local" then.
        return self.ranks.owner(rows) % ranks_a_node // (ranks_a_node // self.size)

    def own_number(self, rows: Int64Array) -> Int64Array:
        """The number of each row among those of its owner."""
        return rows - self.ranks.offsets[self.ranks.owner(rows)]


@dataclass(frozen=True, eq=False)
class Entries:
    """Nonzeros: int64 rows and columns, and values if there are any."""

    row: Int64Array
    column: Int64Array
    value: Values

    def taken(self, which: npt.NDArray[Any]) -> Entries:
        """Some of them."""
        value = None if self.value is None else self.value[which]
        return Entries(self.row[which], self.column[which], value)

    @classmethod
    def from_abroad(cls, block: CSR, here: Place) -> Entries:
        """Those of a rank's rows whose column another node owns."""
        columns = block.indices.numpy()
        first, last = here.nodes.range(here.node)
        chosen = np.flatnonzero((columns < first) | (columns >= last))
        row = np.searchsorted(block.indptr.numpy(), chosen, side="right") - 1
        values = None if block.values is None else block.values.detach().numpy()[chosen]
        return cls(row, columns[chosen].astype(np.int64), values)

    def to_solvers(self, here: Place, cover: Cover) -> Deal:
        """Each to the rank of this node that looks after the node it comes from."""
        entries = self
        if cover == "column":  # neither rows nor values matter
            column = np.unique(self.column)
            entries = Entries(np.zeros_like(column), column, None)
        node = here.nodes.owner(entries.column)
        solver = node % here.size
        by_solver = grouped_order(solver * here.nodes.parts + node, here.size * here.nodes.parts)
        entries = entries.taken(by_solver)
        arrays = (torch.from_numpy(entries.row), torch.from_numpy(entries.column))
        values = None if entries.value is None else torch.from_numpy(entries.value)
        return Deal(LOCAL, (np.bincount(solver, minlength=here.size),), ((*arrays, values),))


@dataclass(frozen=True, eq=False)
class Cargo:
    """Rows of H, and partial sums of rows of A, that cross from other nodes to one node.

    Attributes
    ----------
    node : int64 [things]
        Where each comes from.
    key : int64 [things]
        The number of a row of H; of a partial sum −1 − the row of the rank that wants it.
    lengths : int64 [things]
        Nonzeros of each: 1 of a row of H.
    columns : int64 [nonzeros]
        Rows of H that are multiplied; global numbers.
    values : [nonzeros], optional
    wanted : int64 [things]
        How many ranks want each.
    wanting : int64 [wanted.sum()]
        Which ranks of the node these are.
    """

    node: Int64Array
    key: Int64Array
    lengths: Int64Array
    columns: Int64Array
    values: Values
    wanted: Int64Array
    wanting: Int64Array

    @classmethod
    def of(cls, hand: Hand) -> Cargo:
        """What was dealt by :meth:`to`."""
        (things,), (columns, values), (wanting,) = hand.arrays
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

    def unaddressed(self) -> Cargo:
        """The same, without who wants it."""
        return Cargo(
            *(self.node, self.key, self.lengths, self.columns, self.values),
            np.zeros_like(self.wanted),
            self.wanting[:0],
        )

    def followed_by(self, other: Cargo) -> Cargo:
        """All things of both."""
        pairs: Any = zip(vars(self).values(), vars(other).values(), strict=True)
        joined: list[Any] = [None if a is None else np.concatenate((a, b)) for a, b in pairs]
        return Cargo(*joined)

    def to(self, axis: str, peer: Int64Array, peers: int) -> Deal:
        """Deal the things to peers, which rise."""
        counts = (
            np.bincount(peer, minlength=peers),
            summed(peer, self.lengths, peers),
            summed(peer, self.wanted, peers),
        )
        things = np.stack((self.node, self.key, self.lengths, self.wanted), axis=1)
        values = None if self.values is None else torch.from_numpy(self.values)
        columns, wanting = torch.from_numpy(self.columns), torch.from_numpy(self.wanting)
        return Deal(axis, counts, ((torch.from_numpy(things),), (columns, values), (wanting,)))


def solve(hand: Hand, here: Place, cover: Cover) -> tuple[Cargo, Int64Array]:
    """The least that has to cross to this node from those that this rank looks after.

    Parameters
    ----------
    hand : Hand
        Of :meth:`Entries.to_solvers`: the nonzeros of all ranks of this node.
    here : Place
    cover : {"column", "row", "minimum"}
        What covers the nonzeros between two nodes.

    Returns
    -------
    cargo : Cargo
    agent : int64 [things]
        The rank that carries each thing on both sides.
    """
    ((rows, columns, values),) = hand.arrays
    assert rows is not None
    assert columns is not None
    asker = np.repeat(np.arange(here.size), hand.counts[0].recv)
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
    """Which nonzeros are covered by their row; rows rise."""
    if cover != "minimum":
        return np.full(len(column), cover == "row")
    known, number = np.unique(column, return_inverse=True)
    begin = np.append(np.unique(row, return_index=True)[1], len(column))
    # Blocks of different nodes have no row and no column in common: all are solved at once.
    _, chosen = _native.minimum_vertex_cover(begin, number.astype(np.int64), len(known))
    by_row: npt.NDArray[np.bool_] = chosen[number] == 0
    return by_row


def stretches(lengths: Int64Array, order: Int64Array) -> Int64Array:
    """Where the elements of some stretches lie, stretch after stretch in the order given."""
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
