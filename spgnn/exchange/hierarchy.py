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
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import check_choice
from spgnn.exchange.cargo import Cargo, Entries, Place, Values, solve, summed
from spgnn.exchange.deal import Deal
from spgnn.exchange.inspect import COVERS, Ask, Cover, Demand, demand
from spgnn.exchange.plan import Hop, Plan, Stage
from spgnn.exchange.regroup import Regroup
from spgnn.exchange.schemes import Gathered, Scheme, fold
from spgnn.layout import LOCAL, NODE, Axes, Int64Array, RowLayout, grouped_order
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.sparse import CSR


def hierarchical(
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    *,
    cover: Cover = "column",
    column_scale: Tensor | None = None,
) -> Scheme[Plan]:
    """1D and 1.5D on nodes of several ranks: what crosses is as little as the cover allows.

    With several replicas these are ranks of one node, so that partial sums of whole block rows are
    added inside nodes.

    Parameters
    ----------
    block : CSR [rows, n]
        The rank's rows of A, or those of them that are wanted. Global columns; may carry values
        and a ``row_scale``.
    layout : RowLayout
        Rows of H over all ranks.
    axes : Axes
        Of :meth:`Axes.of_nodes`.
    rank : int
    cover : {"column", "row", "minimum"}
        What covers the nonzeros between two nodes, and those between two ranks of one node.
    column_scale : Tensor [own rows], optional
        Scaling of the columns this rank owns, applied where a row of H leaves its owner.

    Raises
    ------
    InputError
        If the cover is unknown.
    """
    check_choice("cover", cover, COVERS)
    made, c = np.array([block.shape[0]]), axes.size("replica") if "replica" in axes.names else 1
    if c > 1:
        made = yield Gathered("replica", block.shape[0])
        replica = layout.owner(block.indices.numpy()) % c
        block = yield Regroup.of("replica", block, replica, c)
    stage = yield from _two_levels(
        block, layout, axes, rank, cover=cover, column_scale=column_scale
    )
    return Plan((stage, *fold(made, axes.coordinate("replica", rank) if c > 1 else 0)))


def _two_levels(
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    *,
    cover: Cover,
    column_scale: Tensor | None,
) -> Scheme[Stage]:
    """The stage that moves rows of H along "node" and "local", of ranks of one replica."""
    here, own = Place.of(layout, axes, rank), int(layout.sizes[rank])
    L, R, asked = demand(block, layout, axes.group(LOCAL, rank), here.local, cover)
    send, counts = yield Ask(LOCAL, asked, own)
    L = L.with_scales(L.row_scale, column_scale)
    flat = Hop(LOCAL, send.with_scales(None, column_scale), counts)
    if here.nodes.parts == 1:
        return Stage(L, R, (flat,)) if here.size > 1 else Stage(L)
    entries = Entries.from_abroad(block, here)
    hand = yield entries.to_solvers(here, cover)
    cargo, agent = solve(hand, here, cover)
    order = grouped_order(agent, here.size)
    hand = yield cargo.taken(order).to(LOCAL, agent[order], here.size)
    hops, found = yield from _carried(Cargo.of(hand), here, own, cover, column_scale)
    remote = _remote(entries, found, R, hops, block)
    return Stage(L, remote, (*hops, flat))


@dataclass(frozen=True, eq=False)
class Found:
    """What of other nodes a rank receives for itself: keys as in `Cargo`, and where each lies."""

    key: Int64Array
    place: Int64Array


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
    direct_send, direct_counts = yield Ask(NODE, _asked(direct, here, cover), own)
    hand = yield relayed.unaddressed().to(NODE, relayed.node, nodes)
    send, relay, ask = _collected(Cargo.of(hand), here, own, cover)
    collect_send, collect_counts = yield Ask(LOCAL, ask, own)

    def scaled(block: CSR) -> CSR:
        return block.with_scales(None, column_scale)

    hops = (
        Hop(LOCAL, scaled(collect_send), collect_counts),
        Hop(NODE, scaled(send), hand.counts[0].reversed(), relay=relay),
        Hop(NODE, scaled(direct_send), direct_counts),
    )
    arrived = relayed.followed_by(direct)
    last, found = yield from _distributed(arrived, collect_counts.received, here, own)
    return (*hops, last), found


def _asked(things: Cargo, here: Place, cover: Cover) -> Demand:
    """The things that are asked of nodes, which rise."""
    node, nodes = things.node, here.nodes.parts
    lengths = None if cover == "column" else torch.from_numpy(things.lengths.astype(np.int32))
    return Demand(
        np.bincount(node, minlength=nodes),
        summed(node, things.lengths, nodes),
        lengths,
        torch.from_numpy(here.own_number(things.columns).astype(np.int32)),
        None if things.values is None else torch.from_numpy(things.values),
    )


def _collected(cargo: Cargo, here: Place, own: int, cover: Cover) -> tuple[CSR, CSR, Demand]:
    """How an agent gets together what it has to send.

    Returns
    -------
    send : CSR [things, own rows]
        Its own share of each thing.
    relay : CSR [things, collected rows]
        Which collected rows are added to it.
    asked : Demand
        What it collects from the ranks of its node. A row of H is collected once, wherever it
        goes; a partial sum is one row from each rank that has a share in it.
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
    asked = Demand(
        np.bincount(peer, minlength=here.size),
        summed(peer, lengths, here.size),
        None if cover == "column" else torch.from_numpy(lengths.astype(np.int32)),
        torch.from_numpy(here.own_number(cargo.columns[theirs[order]]).astype(np.int32)),
        None if cargo.values is None else torch.from_numpy(cargo.values[theirs[order]]),
    )
    pairs = np.unique(thing[theirs] * len(known) + number)
    if cover == "column":
        return send, CSR(Selection(torch.from_numpy(pairs % max(len(known), 1)), len(known))), asked
    thing, number = np.divmod(pairs, max(len(known), 1))
    return send, _csr(thing, number, None, (things, len(known))), asked


def _distributed(arrived: Cargo, before: int, here: Place, own: int) -> Scheme[tuple[Hop, Found]]:
    """The hop that passes things on inside the node; `before` rows come before them."""
    thing = np.repeat(np.arange(len(arrived.key)), arrived.wanted)
    mine = thing[arrived.wanting == here.local]
    others = np.flatnonzero(arrived.wanting != here.local)
    others = others[grouped_order(arrived.wanting[others], here.size)]
    counts = np.bincount(arrived.wanting[others], minlength=here.size)
    passed = thing[others]
    told = yield Deal(LOCAL, (counts,), ((torch.from_numpy(arrived.key[passed]),),))
    ((keys,),) = told.arrays
    total = before + len(arrived.key)
    nothing = _csr(passed[:0], passed[:0], None, (len(passed), own))
    relay = CSR(Selection(torch.from_numpy(before + passed), total))
    found = Found(
        np.concatenate((arrived.key[mine], keys.numpy())),
        np.concatenate((before + mine, total + np.arange(len(keys)))),
    )
    return Hop(LOCAL, nothing, told.counts[0], relay=relay), found


def _remote(entries: Entries, found: Found, R: CSR, hops: Sequence[Hop], block: CSR) -> CSR:
    """What a rank does with what it received: from other nodes, then from its own, by `R`."""
    before = sum(hop.volume.receive for hop in hops)
    is_row = found.key >= 0
    by_key = np.argsort(found.key[is_row])
    # The sentinel is found where nothing is.
    known = np.append(found.key[is_row][by_key], np.iinfo(np.int64).max)
    at = np.searchsorted(known, entries.column)
    by_column = known[at] == entries.column
    inside = np.repeat(np.arange(R.shape[0]), R.row_lengths.numpy())
    row = np.concatenate((entries.row[by_column], -1 - found.key[~is_row], inside))
    place = np.concatenate(
        (
            found.place[is_row][by_key][at[by_column]],
            found.place[~is_row],
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
