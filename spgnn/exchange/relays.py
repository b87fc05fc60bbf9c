"""Relays: ranks that have time hand rows on, and add up sums, for ranks that are busy.

A hop becomes two along the same axis: direct rows with those that relays need, then what relays
send: rows of H handed on (*multicast*), and sums of one row of A added up (*gather*), each the
other's adjoint. No row travels that did not travel before. See ``docs/schemes.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import torch
from torch import Tensor

from spgnn.comm.traffic import RowCounts
from spgnn.exchange.needs import Gather, Scheme, Swap, rows_from
from spgnn.exchange.plan import Factor, Hop, Plan, Stage, Turned
from spgnn.hashing import uniform
from spgnn.layout import EVERYONE, Axes, Int64Array, grouped_order, inverse_permutation
from spgnn.pattern import Selection, index_dtype
from spgnn.sparse import CSR, take_rows

SLACK = 1.05  # of the mean: to this the busiest rank comes down, where that is possible
SPREAD = 1.25  # of an even share of what is handed on: the most that a relay takes
TURNS = 16  # of offers, at most
# Ways of a row that no relay sends: by itself, and by itself to a relay that has use for it.
DIRECT, BASE = -1, -2


def relayed(scheme: Scheme[Plan], axes: Axes, rank: int, *, whole_rows: bool) -> Scheme[Plan]:
    """The plan of another scheme, with relays in the exchanges whose busiest rank they relieve."""
    plan = yield from scheme
    return replace(plan, stages=(yield from _factors(plan.stages, axes, rank, whole_rows)))


def _factors(
    factors: tuple[Factor, ...], axes: Axes, rank: int, whole_rows: bool
) -> Scheme[tuple[Factor, ...]]:
    changed: list[Factor] = []
    for number, factor in enumerate(factors):
        if isinstance(factor, Turned):
            inner = yield from _factors(factor.stages, axes, rank, whole_rows)
            changed.append(replace(factor, stages=inner))
            continue
        stage, place = factor, 0
        while place < len(stage.hops):
            hop, hops = stage.hops[place], len(stage.hops)
            # What relays send already, broadcasts, and folds of even shares stay as they are.
            if hop.relay is None and not hop.broadcast and stage.fold is None:
                gathers = number > 0 or not whole_rows
                stage = yield from _split(stage, place, axes, rank, gathers=gathers)
            place += 1 + len(stage.hops) - hops
        changed.append(stage)
    return tuple(changed)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows that a rank sends in a hop, or those that it receives, grouped by peer."""

    peer: Int64Array  # int64 [rows]
    begin: Int64Array  # int64 [peers]: the first row of each

    @classmethod
    def of(cls, counts: Int64Array) -> _Rows:
        return cls(np.repeat(np.arange(len(counts)), counts), np.cumsum(counts) - counts)

    @property
    def peers(self) -> int:
        return len(self.begin)

    def relays(self, via: Int64Array) -> Int64Array:
        """The relay of each row, `DIRECT` or `BASE`; `via` has the row whose peer that is."""
        return np.where(via < 0, via, self.peer[via])


def _split(stage: Stage, place: int, axes: Axes, rank: int, *, gathers: bool) -> Scheme[Stage]:
    """The stage with one of its hops in two, if that relieves somebody; all ranks agree."""
    hop, R = stage.hops[place], stage.remote
    sent, received = _Rows.of(hop.counts.send), _Rows.of(hop.counts.recv)
    row_of_H = _rows_of_H(hop.send)
    row_of_A, entry = np.full(len(received.peer), -1), np.zeros(len(received.peer), np.int64)
    if gathers and R is not None:
        row_of_A, entry = _rows_of_A(stage, R, place)
    load = [_rows_along(stage, hop.axis, way) for way in ("sent", "received")]
    least = load[0] - _movable(row_of_H), load[1] - _movable(row_of_A)
    (every,) = yield Gather(EVERYONE, (torch.tensor([[*load, *least]]),))
    loads = every.numpy()
    # Where a rank keeps more than that, whatever relays do, all others wait for it anyway.
    limit = max(ceil(SLACK * float(loads[:, 0].mean())), int(loads[:, 2:].max()))
    here = axes, hop.axis, rank, limit
    # What is handed on takes a hop of its own, for whose busiest rank all wait again.
    above = int(np.maximum(loads[:, 0] - limit, 0).sum())
    share = ceil(SPREAD * above / len(loads))
    via, sends = yield from _by_relays(row_of_H, sent, loads[:, 0], *here, share)
    relay_of = torch.from_numpy(sent.relays(via))
    ((comes,),) = (yield Swap(hop.axis, (hop.counts.send,), ((relay_of,),))).arrays
    row_of_A[comes.numpy() != DIRECT] = -1  # a row has one relay
    added, takes = yield from _by_relays(row_of_A, received, loads[:, 1], *here, None)
    if not sends and not takes:
        return stage
    relay_of = torch.from_numpy(received.relays(added))
    ((goes,),) = (yield Swap(hop.axis, (hop.counts.recv,), ((relay_of,),))).arrays
    ways = _Ways(sent, via, goes.numpy()), _Ways(received, added, comes.numpy())
    me = axes.coordinate(hop.axis, rank)
    return (yield from _in_two_hops(stage, place, me, *ways, entry if takes else None))


@dataclass(frozen=True, eq=False)
class _Ways:
    """How the rows that a rank sends in a hop travel, or those that it receives."""

    rows: _Rows
    via: Int64Array  # as this rank decided: the row whose peer is the relay, `DIRECT` or `BASE`
    relay: Int64Array  # as the peers decided: the relay, `DIRECT` or `BASE`


def _in_two_hops(
    stage: Stage, place: int, me: int, sends: _Ways, takes: _Ways, entry: Int64Array | None
) -> Scheme[Stage]:
    """The stage with a hop in two; `entry` has nonzeros of R, if any rank adds rows up."""
    hop, R, send = stage.hops[place], stage.remote, stage.hops[place].send
    axis, peers = hop.axis, sends.rows.peers
    begin, end = stage.received[place : place + 2]
    # Relays learn what they hand on and to whom, what they add up and whose it is: the number of
    # the row that goes by itself, among those of its two ranks, and the third rank.
    lists: list[Tensor] = []
    counts: list[Int64Array] = []
    moved: list[Int64Array] = []
    for ways, rows in ((sends, sends.via >= 0), (takes, takes.via != DIRECT)):
        some = np.flatnonzero(rows)
        base = np.where(ways.via[some] < 0, some, ways.via[some])
        by = ways.rows.peer[base]
        order = grouped_order(by, peers)
        pairs = np.stack((base - ways.rows.begin[by], ways.rows.peer[some]), axis=1)
        lists.append(torch.from_numpy(pairs[order]))
        counts.append(np.bincount(by, minlength=peers))
        moved.append(some[order])
    factors = None
    if entry is not None and R is not None and R.values is not None:
        factors = R.values[torch.from_numpy(entry[moved[1]])]
    response = yield Swap(axis, tuple(counts), ((lists[0],), (lists[1], factors)))
    (handed,), (summed, factors) = response.arrays
    owner, maker_of_row = (np.repeat(np.arange(peers), each.recv) for each in response.counts)
    handed_row = takes.rows.begin[owner] + handed.numpy()[:, 0]
    sum_row, source = sends.rows.begin[maker_of_row] + summed.numpy()[:, 0], summed.numpy()[:, 1]
    own, others = np.flatnonzero(source == me), np.flatnonzero(source != me)

    # First, rows that go by themselves, and then what relays add up.
    direct = np.flatnonzero((sends.via < 0) & (sends.relay == DIRECT))
    fetched = np.flatnonzero(sends.relay >= 0)
    to = np.concatenate((sends.rows.peer[direct], sends.relay[fetched]))
    leaving = np.concatenate((direct, fetched))[grouped_order(to, peers)]
    direct = np.flatnonzero((takes.relay < 0) & (takes.via == DIRECT))
    of = np.concatenate((takes.rows.peer[direct], source[others]))
    place_of_direct, place_of_others = np.split(
        inverse_permutation(grouped_order(of, peers)), [len(direct)]
    )
    new_place = np.full(len(takes.via), -1)
    new_place[direct] = place_of_direct

    # Then what relays hand on, and sums: to each rank in the order of who sent them at first.
    to_next = np.concatenate((handed.numpy()[:, 1], maker_of_row[own]))
    before = np.concatenate((owner, np.full(len(own), me)))
    row = inverse_permutation(np.lexsort((before, to_next)))
    row_of_sum = np.full(len(sends.via), -1)
    row_of_sum[sum_row[own]] = row[len(owner) :]
    relay = _matrix(
        np.concatenate((row[: len(owner)], row_of_sum[sum_row[others]])),
        begin + np.concatenate((new_place[handed_row], place_of_others)),
        None
        if factors is None
        else torch.cat((factors.new_ones(len(owner)), factors[torch.from_numpy(others)])),
        (len(row), begin + len(of)),
    )
    send_next = _sums_sent(
        send,
        sum_row[own],
        row_of_sum[sum_row[own]],
        len(row),
        None if factors is None else factors[torch.from_numpy(own)],
    )
    late = np.flatnonzero((takes.relay >= 0) | (takes.via == BASE))
    sender = np.where(takes.relay >= 0, takes.relay, takes.rows.peer)[late]
    new_place[late] = len(of) + inverse_permutation(grouped_order(sender, peers))

    each = [np.bincount(one, minlength=peers) for one in (to, of, to_next, sender)]
    # The busiest ranks of both hops, one after the other, have to take less than that of the one.
    load = [_rows_along(stage, axis, way) for way in ("sent", "received")]
    rest = load[0] - hop.counts.sent, load[1] - hop.counts.received
    now = rest[0] + len(to), rest[1] + len(of), len(to_next), len(late)
    largest = int(each[0].max()), int(each[2].max())
    (every,) = yield Gather(EVERYONE, (torch.tensor([[*largest, *load, *now]]),))
    most = every.amax(0).tolist()
    if max(most[4:6]) + max(most[6:8]) >= max(most[2:4]):
        return stage
    first = replace(
        hop,
        send=take_rows(send, torch.from_numpy(leaving)),
        counts=RowCounts(each[0], each[1], most[0]),
        sums=None,
    )
    second = Hop(axis, send_next, RowCounts(each[2], each[3], most[1]), relay, few=True)
    # Received rows have other places from here on; those that relays add up are nowhere.
    more = len(of) + len(late) - (end - begin)
    places = np.arange(stage.received[-1])
    places[end:] += more
    places[begin:end] = np.where(new_place < 0, -1, begin + new_place)
    later = [
        replace(one, relay=_moved(one.relay, places, more)) if one.relay is not None else one
        for one in stage.hops[place + 1 :]
    ]
    if R is not None:
        if entry is not None and R.values is not None:
            done = torch.from_numpy(entry[takes.via == BASE])  # multiplied at their relays
            R = R.with_values(R.values.index_fill(0, done, 1))
        R = _moved(R, places, more)
    hops = (*stage.hops[:place], first, second, *later)
    return replace(stage, remote=R, hops=hops)


def _rows_along(stage: Stage, axis: str, way: str) -> int:
    """Rows that a rank has sent, or received, in all hops of a stage along an axis."""
    return sum(int(getattr(hop.counts, way)) for hop in stage.hops if hop.axis == axis)


def _rows_of_H(send: CSR) -> Int64Array:
    """The row of H that each row to send is, int64 [rows]; −1 where it is a sum, or a multiple."""
    alone = send.row_lengths == 1
    if send.values is not None:
        if send.values.requires_grad:  # a number that happens to be 1 has a gradient of its own
            return np.full(send.shape[0], -1)
        alone[alone.clone()] &= send.values[send.indptr[:-1][alone]] == 1
    rows = torch.full((send.shape[0],), -1)
    rows[alone] = send.indices[send.indptr[:-1][alone]].long()
    return rows.numpy()


def _rows_of_A(stage: Stage, R: CSR, place: int) -> tuple[Int64Array, Int64Array]:
    """The one row of A that takes each received row of a hop, and the nonzero of R there."""
    begin, end = stage.received[place : place + 2]
    taken = R.indices.numpy()
    uses = np.bincount(taken, minlength=stage.received[-1])
    for hop in stage.hops[place + 1 :]:
        if hop.relay is not None:
            uses[hop.relay.indices.numpy()] += 2
    rows, entry = np.full(len(uses), -1), np.zeros(len(uses), np.int64)
    entry[taken] = np.arange(len(taken))
    rows[taken] = np.repeat(np.arange(R.shape[0]), R.row_lengths.numpy())
    return np.where(uses == 1, rows, -1)[begin:end], entry[begin:end]


def _movable(alike: Int64Array) -> int:
    """Rows that relays can take, of those with the same number all but one."""
    some = alike[alike >= 0]
    return len(some) - len(np.unique(some))


def _sums_sent(
    send: CSR, rows: Int64Array, places: Int64Array, count: int, factors: Tensor | None
) -> CSR:
    """Some rows of a send matrix times factors, at some places of so many; others are empty."""
    order = np.argsort(places)
    part = take_rows(send, torch.from_numpy(rows[order]))
    lengths = torch.zeros(count, dtype=torch.int64)
    lengths[torch.from_numpy(places[order])] = part.row_lengths
    values = part.values
    if factors is not None:
        factors = factors[torch.from_numpy(order)].repeat_interleave(part.row_lengths)
        values = factors if values is None else values * factors
    block = rows_from(lengths, part.indices, values, None, part.shape[1])
    return block.with_scales(None, part.col_scale)


def _matrix(
    row: Int64Array, column: Int64Array, values: Tensor | None, shape: tuple[int, int]
) -> CSR:
    """The matrix of some nonzeros, in any order."""
    order = np.lexsort((column, row))
    columns = torch.from_numpy(column[order]).to(index_dtype(shape[1]))
    if values is not None:
        values = values[torch.from_numpy(order)]
    elif np.array_equal(row[order], np.arange(shape[0])):
        return CSR(Selection(columns, shape[1]))
    lengths = torch.from_numpy(np.bincount(row, minlength=shape[0]))
    return rows_from(lengths, columns, values, None, shape[1])


def _moved(block: CSR, places: Int64Array, more: int) -> CSR:
    """A block, the columns of which move to other places, or nowhere; there are so many more."""
    row = np.repeat(np.arange(block.shape[0]), block.row_lengths.numpy())
    column = places[block.indices.numpy()]
    stays = np.flatnonzero(column >= 0)
    values = None if block.values is None else block.values[torch.from_numpy(stays)]
    shape = block.shape[0], block.shape[1] + more
    return _matrix(row[stays], column[stays], values, shape).with_scales(block.row_scale, None)


def _by_relays(
    alike: Int64Array,
    rows: _Rows,
    load: Int64Array,
    axes: Axes,
    axis: str,
    rank: int,
    limit: int,
    share: int | None,
) -> Scheme[tuple[Int64Array, bool]]:
    """Find relays for some rows of busy ranks, in turns of offers; all ranks take part."""
    via, peers = np.full(len(alike), DIRECT), np.asarray(axes.group(axis, rank))
    taken, first = np.zeros_like(load), load

    def room(ranks: Int64Array) -> Int64Array:
        rest = limit + (share or 0) - load[ranks] - taken[ranks]
        most = None if share is None else share - taken[ranks]
        return np.asarray(np.clip(rest, 0, most))

    for turn in range(TURNS):
        if load.max() <= limit:
            break
        moving = base = np.zeros(0, np.int64)
        if load[rank] > limit:
            excess, seed = int(load[rank]) - limit, rank * TURNS + turn
            moving, base = _offers(alike, via, rows.peer, room(peers), excess, seed)
        offers = np.bincount(rows.peer[base], minlength=len(peers))
        offered = (yield Swap(axis, (offers,), ((),))).counts[0].recv
        fits = np.minimum(np.cumsum(offered), int(room(np.array([rank]))[0]))
        accepted = np.diff(fits, prepend=0)
        most = (yield Swap(axis, (accepted,), ((),))).counts[0].recv
        fit = _first_of_each(rows.peer[base], most)
        via[moving[fit]] = base[fit]
        via[base[fit]] = BASE
        now = int(load[rank] - most.sum()), int(taken[rank] + accepted.sum())
        (every,) = yield Gather(EVERYONE, (torch.tensor([now]),))
        last, (load, taken) = load, every.numpy().T
        if np.array_equal(last, load):
            break
    return via, not np.array_equal(first, load)


def _offers(
    alike: Int64Array, via: Int64Array, peer: Int64Array, room: Int64Array, excess: int, seed: int
) -> tuple[Int64Array, Int64Array]:
    """Rows to offer to relays, at most `excess`, and for each one the row whose peer is asked."""
    nothing = np.zeros(0, np.int64)
    able = np.flatnonzero((alike >= 0) & (via < 0)) if excess > 0 else nothing
    if not len(able):
        return nothing, nothing
    # The relay of rows that are alike is drawn: else all busy ranks would ask the same one.
    score = room[peer[able]] * (1 - uniform(able, seed, "relay"))
    able = able[np.lexsort((score, alike[able]))]
    last = np.flatnonzero(np.append(alike[able][1:] != alike[able][:-1], True))
    size = np.diff(last, prepend=-1)
    # As many relays as it takes for all of them, those of most room; rows go to them in turn.
    relays = -(-size // (int(room.max(initial=0)) + 1))
    behind = np.repeat(last, size) - np.arange(len(able))
    base = able[np.repeat(last, size) - behind % np.repeat(relays, size)]
    # Where many are alike first: then few relays do.
    order = np.argsort(np.repeat(-size, size), kind="stable")
    moving, base = able[order], base[order]
    moves = (via[moving] == DIRECT) & (peer[moving] != peer[base])
    moving, base = moving[moves], base[moves]
    fits = _first_of_each(peer[base], room)
    return moving[fits][:excess], base[fits][:excess]


def _first_of_each(group: Int64Array, most: Int64Array) -> Int64Array:
    """Numbers of the members of each group that come first, at most so many; rising."""
    order, sizes = np.argsort(group, kind="stable"), np.bincount(group, minlength=len(most))
    place = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[place < most[group[order]]])
