"""Stale embeddings of other ranks' vertices: caches of them, and how they get there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import (
    Communicator,
)
from spgnn.comm.communicator import Pending
from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError, check_integer
from spgnn.loader.rank_graph import Boundary, RankGraph, as_dtype, rows_as_bytes
from spgnn.loader.remote_rows import rows_of_ranks, take
from spgnn.loader.sampling import offsets_of
from spgnn.sparse import CSR

LayerRows = tuple[Tensor, Tensor]
"""Own rows of A, counted from the first, and a layer's outputs for them [rows, f]."""
_ID_BYTES = 4


@dataclass
class Hits:
    """Rows that a cache was asked for and had, and the iterations since these were made."""

    requested: int = 0
    found: int = 0
    ages: int = 0


class EmbeddingCache:
    """Stale rows of the vertices of a halo; where there is no room, the oldest give way.

    The historical embedding cache of one layer of DistGNN-MB (Vasimuddin et al. 2022). The vertices
    are known and numbered 0 … vertices − 1, so a table takes the place of hashing. It holds
    `capacity` rows; one that was made more than `life` iterations ago is not found.
    """

    def __init__(
        self,
        vertices: int,
        width: int,
        capacity: int,
        life: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_integer("capacity", capacity, 0)
        check_integer("life", life, 0)
        self.capacity, self.life = min(capacity, vertices), life
        self.hits = Hits()
        self._slot = torch.full((vertices,), -1)
        self._vertex = torch.full((self.capacity,), -1)
        self._iteration = torch.zeros(self.capacity, dtype=torch.int64)
        self._turn = torch.zeros(self.capacity, dtype=torch.int64)
        self._rows = torch.zeros(self.capacity, width, dtype=dtype)
        # Slots by the turn in which they were written, oldest first; those written since are void.
        self._turns: deque[tuple[int, Tensor]] = deque()
        self._turns_begun = self._used = self._listed = 0

    def __len__(self) -> int:
        return self._used

    def find(self, vertices: Tensor, now: int) -> Tensor:
        """Slots of vertices' rows, int64 [k], −1 where there is none or it is too old; counted.

        They are for `rows`, until the next `put`.
        """
        slots = self._slot[vertices]
        known = slots >= 0
        ages = now - self._iteration[slots[known]]
        fresh = ages <= self.life
        found = torch.full_like(slots, -1)
        found[known] = torch.where(fresh, slots[known], -1)
        self.hits.requested += len(vertices)
        self.hits.found += int(fresh.sum())
        self.hits.ages += int(ages[fresh].sum())
        return found

    def rows(self, slots: Tensor) -> Tensor:
        """The rows [k, width] at these slots; a copy."""
        return self._rows[slots]

    def put(self, vertices: Tensor, rows: Tensor, iteration: int) -> None:
        """Take rows of an iteration in, which replace older ones of the same vertices.

        Each vertex comes once; if they do not all fit, the first do. Iterations do not decrease
        from call to call.
        """
        vertices, rows = vertices[: self.capacity], rows[: self.capacity]
        if not len(vertices):
            return
        self._turns_begun += 1
        slots = self._slot[vertices]
        self._turn[slots[slots >= 0]] = self._turns_begun
        new = slots < 0
        slots[new] = self._free(int(new.sum()))
        self._slot[vertices] = slots
        self._vertex[slots] = vertices
        self._turn[slots] = self._turns_begun
        self._iteration[slots] = iteration
        self._rows[slots] = rows.to(self._rows.dtype)
        self._turns.append((self._turns_begun, slots))
        self._listed += len(slots)
        if self._listed > 4 * self.capacity:  # leave each slot in the list once
            left = [(turn, slots[self._turn[slots] == turn]) for turn, slots in self._turns]
            self._turns = deque((turn, slots) for turn, slots in left if len(slots))
            self._listed = sum(len(slots) for _, slots in self._turns)

    def _free(self, count: int) -> Tensor:
        """So many slots: those that were never used, then those written longest ago."""
        unused = torch.arange(self._used, min(self._used + count, self.capacity))
        self._used += len(unused)
        free, missing = [unused], count - len(unused)
        while missing:
            turn, slots = self._turns.popleft()
            self._listed -= len(slots)
            slots = slots[self._turn[slots] == turn]
            if len(slots) > missing:
                self._turns.appendleft((turn, slots[missing:]))
                self._listed += len(slots) - missing
            self._slot[self._vertex[slots[:missing]]] = -1
            free.append(slots[:missing])
            missing -= len(free[-1])
        return torch.cat(free)


class HaloFeatures:
    """Features of vertices of the halo, fetched once: they do not age. Collective.

    DistGNN-MB pushes and ages features as it does embeddings; but they never change.

    Of at most `capacity` vertices, those that batches of the seeds can ask for along most edges.
    """

    def __init__(self, ranks: RankGraph, seeds: Tensor, hops: int, capacity: int) -> None:
        uses = reachable_uses(ranks, seeds, hops)
        self.hits = Hits()
        most_used = uses.argsort(descending=True, stable=True)
        kept = most_used[: min(capacity, int((uses > 0).sum()))]
        self._slot = torch.full((len(uses),), -1)
        self._slot[kept] = torch.arange(len(kept))
        self.table = rows_of_ranks(ranks.x, ranks.boundary.halo[kept], ranks.layout, ranks.comm)
        ranks.counts.add(rows_read=self.table.shape[0], bytes_read=self.table.nbytes)

    def find(self, vertices: Tensor, now: int) -> Tensor:
        """Slots of vertices' rows, −1 where there is none; counted."""
        slots = self._slot[vertices]
        self.hits.requested += len(slots)
        self.hits.found += int((slots >= 0).sum())
        return slots

    def rows(self, slots: Tensor) -> Tensor | CSR:
        """The rows at these slots."""
        return take(self.table, slots)


@dataclass(eq=False)
class _Sending:
    """One iteration's rows on their way."""

    iteration: int
    parcels: list[Tensor]
    send: Tensor
    recv: Tensor
    counting: Pending
    received: list[Tensor] = field(default_factory=list)
    arriving: list[Pending] = field(default_factory=list)


class Push:
    """Rows of iteration k are with the peers from iteration k + delay on; nobody waits for them.

    The asynchronous embedding push of DistGNN-MB (Vasimuddin et al. 2022). Of the rows that an
    iteration made, each peer gets those that are in its halo, at most so many a layer, those of
    highest degree first. Unlike there, a peer does not get a row again for `pause` iterations,
    which leaves room for others. Each iteration is one `arrived` and one `begin`, on all ranks.
    """

    def __init__(
        self,
        boundary: Boundary,
        widths: Sequence[int],
        dtype: torch.dtype,
        *,
        delay: int,
        most: int,
        degrees: Tensor,
        comm: Communicator,
        pause: int = 1,
    ) -> None:
        self.delay = check_integer("delay", delay, 1)
        most, self._pause = check_integer("push", most, 0), check_integer("pause", pause, 1)
        self._boundary, self._comm = boundary, comm
        self._widths, self._dtype = list(widths), dtype
        self._row_bytes = [_ID_BYTES + width * dtype.itemsize for width in widths]
        # All ranks know it, so nobody has to ask how many rounds an exchange takes.
        self._most = min(most, boundary.counts.largest)
        self._sending: deque[_Sending] = deque()
        self.sent_bytes = self.received_bytes = 0
        begins = np.cumsum(boundary.counts.send) - boundary.counts.send
        peers = np.repeat(np.arange(comm.size), boundary.counts.send)
        order = np.lexsort((-degrees.numpy()[boundary.sent.numpy()], peers))
        # Those that are to be sent, in the order in which they are: by peer, then by degree.
        self._wanted = boundary.sent[torch.from_numpy(order)]
        self._numbers = torch.from_numpy((order - begins[peers]).astype(np.int32))
        self._begins, self._peers = torch.from_numpy(begins), torch.from_numpy(peers)
        self._sent = torch.full((len(self._widths), len(peers)), -self._pause)

    def begin(self, iteration: int, rows: Sequence[LayerRows]) -> None:
        """Send the rows of an iteration, one layer after the other. Collective."""
        if [tuple(r.shape[1:]) for _, r in rows] != [(width,) for width in self._widths]:
            raise InputError(
                f"push: rows of widths {[tuple(r.shape[1:]) for _, r in rows]}, not {self._widths}"
            )
        send = torch.zeros(self._comm.size, len(rows), dtype=torch.int64)
        parcels = []
        for layer, layer_rows in enumerate(rows):
            parcel, counts = self._pack(iteration, self._sent[layer], *layer_rows)
            parcels.append(parcel)
            send[:, layer] = counts
        recv = torch.empty_like(send)
        ones = RowCounts([1] * self._comm.size, [1] * self._comm.size, 1)
        counting = self._comm.alltoallv(send, recv, ones)
        one = send[:, :0].new_ones(self._comm.size)
        self._count(one, one, 8 * len(rows))
        self._sending.append(_Sending(iteration, parcels, send, recv, counting))

    def arrived(self, now: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        """Rows that may be used from iteration `now` on, oldest first. Collective."""
        for one in self._sending:
            if one.iteration < now and not one.received:
                self._depart(one)
        while self._sending and self._sending[0].iteration + self.delay <= now:
            one = self._sending.popleft()
            for layer, pending in enumerate(one.arriving):
                pending.wait()
                yield layer, one.iteration, *self._unpack(one, layer)

    def drain(self) -> None:
        """Wait for what is still on its way, and drop it. Collective."""
        for _ in self.arrived(2**62):
            pass

    def _pack(
        self, now: int, sent: Tensor, vertices: Tensor, rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Bytes of the rows for all peers, each after its number in the halo; rows a peer."""
        place = torch.full((self._boundary.own,), -1)
        place[vertices] = torch.arange(len(vertices))
        there = place[self._wanted]
        due = (there >= 0) & (now - sent >= self._pause)
        before = offsets_of(due)
        turn = before[:-1] - before[self._begins][self._peers]
        chosen = (due & (turn < self._most)).nonzero()[:, 0]
        sent[chosen] = now
        counts = torch.bincount(self._peers[chosen], minlength=self._comm.size)
        contents = rows.detach().to(self._dtype)[there[chosen]]
        numbers = self._numbers[chosen][:, None]
        return torch.cat((rows_as_bytes(numbers), rows_as_bytes(contents)), 1), counts

    def _depart(self, one: _Sending) -> None:
        """Peers know by now how many rows they will get."""
        one.counting.wait()
        for layer, parcel in enumerate(one.parcels):
            send, recv = one.send[:, layer], one.recv[:, layer]
            counts = RowCounts(send.numpy(), recv.numpy(), self._most)
            received = parcel.new_empty(counts.received, parcel.shape[1])
            one.arriving.append(self._comm.alltoallv(parcel, received, counts))
            one.received.append(received)
            self._count(send, recv, self._row_bytes[layer])

    def _unpack(self, one: _Sending, layer: int) -> tuple[Tensor, Tensor]:
        received, counts = one.received[layer], self._boundary.counts
        begins = torch.from_numpy(np.cumsum(counts.recv) - counts.recv)
        first = begins.repeat_interleave(one.recv[:, layer])
        numbers = as_dtype(received[:, :_ID_BYTES], torch.int32)[:, 0]
        rows = as_dtype(received[:, _ID_BYTES:], self._dtype)
        return first + numbers, rows.view(len(numbers), self._widths[layer])

    def _count(self, send: Tensor, recv: Tensor, row_bytes: int) -> None:
        me = self._comm.rank
        self.sent_bytes += int(send.sum() - send[me]) * row_bytes
        self.received_bytes += int(recv.sum() - recv[me]) * row_bytes


def reachable_uses(ranks: RankGraph, seeds: Tensor, hops: int) -> Tensor:
    """Edges that lead to each halo vertex, int64 [h], from vertices that batches can reach."""
    own = ranks.boundary.own
    pattern = ranks.boundary.compact(ranks.block)
    rows = torch.arange(own).repeat_interleave(pattern.row_lengths)
    reached = seeds.clone()
    for _ in range(hops - 1):
        found = torch.zeros(pattern.shape[1], dtype=torch.bool)
        found[pattern.indices[reached[rows]].long()] = True
        reached = reached | found[:own]
    columns = pattern.indices[reached[rows]].long()
    return torch.bincount(columns[columns >= own] - own, minlength=pattern.shape[1] - own)
