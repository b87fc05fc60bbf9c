"""Stale embeddings of other ranks' vertices: caches of them, and how they get there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.addons.batches import Boundary, RankGraph, as_dtype, rows_as_bytes, rows_of_ranks, take
from spgnn.comm import Communicator, Pending, RowCounts
from spgnn.errors import InputError, check_integer
from spgnn.hashing import uniform
from spgnn.kernels import gather_rows
from spgnn.sparse import CSR

LayerRows = tuple[Tensor, Tensor]
"""Own rows of A, counted from the first, and a layer's outputs for them [rows, f]."""
_ID_BYTES = 4


@dataclass
class StaleCounts:
    """Rows that a cache was asked for and had, and the iterations since these were made."""

    requested: int = 0
    hits: int = 0
    ages: int = 0


class EmbeddingCache:
    """Stale rows of the vertices of a halo; where there is no room, the oldest are evicted."""

    def __init__(
        self,
        vertices: int,
        width: int,
        capacity: int,
        life: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_integer("capacity", capacity, 0)
        self.capacity, self.life = min(capacity, vertices), check_integer("life", life, 0)
        self.hits = StaleCounts()
        self._lines = _native.EmbeddingCache(vertices, self.capacity)
        self._rows = torch.empty(self.capacity, width, dtype=dtype)

    def __len__(self) -> int:
        return self._lines.used

    def find(self, vertices: Tensor, now: int) -> Tensor:
        """Slots of vertices' rows, int64 [k], −1 where there is none or it is too old; counted."""
        slots = torch.empty_like(vertices)
        hits, ages = self._lines.search(vertices, now, self.life, slots)
        self.hits.requested += len(vertices)
        self.hits.hits += hits
        self.hits.ages += ages
        return slots

    def rows(self, slots: Tensor) -> Tensor:
        """The rows [k, width] at these slots; a copy."""
        return gather_rows(self._rows, slots)

    def put(self, vertices: Tensor, rows: Tensor, iteration: int) -> None:
        """Take in rows of an iteration, one after the other."""
        width = self._rows.shape[1]
        if rows.shape != (len(vertices), width):
            raise InputError(f"rows: must be [{len(vertices)}, {width}], got {list(rows.shape)}")
        written, table = rows_as_bytes(rows.to(self._rows.dtype)), rows_as_bytes(self._rows)
        self._lines.store(vertices, iteration, written, table)

    def state(self) -> dict[str, Tensor]:
        """All rows, their vertices and iterations, the one that was written longest ago first."""
        vertices, iterations, slots = torch.empty(3, len(self), dtype=torch.int64).unbind()
        self._lines.list(vertices, iterations, slots)
        return {"vertices": vertices, "made": iterations, "rows": self.rows(slots)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put the rows of a `state` into an empty cache."""
        iterations, counts = state["made"].unique_consecutive(return_counts=True)
        pieces = (state[name].split(counts.tolist()) for name in ("vertices", "rows"))
        for iteration, vertices, rows in zip(iterations.tolist(), *pieces, strict=True):
            self.put(vertices, rows, iteration)


class HaloFeatures:
    """Features of vertices of the halo, fetched once: they do not age. Collective."""

    def __init__(self, ranks: RankGraph, seeds: Tensor, hops: int, capacity: int) -> None:
        uses = reachable_uses(ranks, seeds, hops)
        self.hits = StaleCounts()
        most_used = uses.argsort(descending=True, stable=True)
        stored = most_used[: min(capacity, int((uses > 0).sum()))]
        self._slot = torch.full((len(uses),), -1)
        self._slot[stored] = torch.arange(len(stored))
        self.table = rows_of_ranks(ranks.x, ranks.boundary.halo[stored], ranks.layout, ranks.comm)
        ranks.counts.add(rows_read=self.table.shape[0], bytes_read=self.table.nbytes)

    def find(self, vertices: Tensor, now: int) -> Tensor:
        """Slots of vertices' rows, −1 where there is none; counted."""
        slots = self._slot[vertices]
        self.hits.requested += len(slots)
        self.hits.hits += int((slots >= 0).sum())
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
    """Rows of iteration k are with the peers from iteration k + delay on; nobody waits for them."""

    def __init__(
        self,
        boundary: Boundary,
        widths: Sequence[int],
        dtype: torch.dtype,
        *,
        delay: int,
        most: int,
        ids: Tensor,
        degrees: Tensor,
        comm: Communicator,
        pause: int = 1,
        seed: int = 0,
    ) -> None:
        self.delay = check_integer("delay", delay, 1)
        most, self._pause = check_integer("push", most, 0), check_integer("pause", pause, 1)
        self._boundary, self._comm, self._seed = boundary, comm, seed
        self._widths, self._dtype = list(widths), dtype
        self._row_bytes = [_ID_BYTES + width * dtype.itemsize for width in widths]
        # All ranks know it, so nobody has to ask how many rounds an exchange takes.
        self._most = min(most, boundary.counts.largest)
        self._sending: deque[_Sending] = deque()
        self.sent_bytes = self.received_bytes = 0
        self._ids, self._degrees = ids.numpy(), degrees.clamp(min=1).numpy()
        # By own row, the peers whose halos it is in and its numbers there: the paper's db_halo.
        begins = np.cumsum(boundary.counts.send) - boundary.counts.send
        peers = np.repeat(np.arange(comm.size), boundary.counts.send)
        numbers = torch.from_numpy((np.arange(len(peers)) - begins[peers]).astype(np.int32))
        by_row = boundary.sent.argsort(stable=True)
        self._halos = torch.bincount(boundary.sent, minlength=boundary.own)
        self._first = self._halos.cumsum(0) - self._halos
        self._peers, self._numbers = torch.from_numpy(peers)[by_row], numbers[by_row]
        self._sent = torch.full((len(self._widths), len(peers)), -self._pause)

    def begin(self, iteration: int, rows: Sequence[LayerRows]) -> None:
        """Send the rows of an iteration, one layer after the other. Collective."""
        widths = [r.shape[1] for _, r in rows]
        if widths != self._widths:
            raise InputError(f"push: rows of widths {widths}, not {self._widths}")
        send = torch.zeros(self._comm.size, len(rows), dtype=torch.int64)
        parcels = []
        for layer, layer_rows in enumerate(rows):
            parcel, counts = self._pack(iteration, layer, *layer_rows)
            parcels.append(parcel)
            send[:, layer] = counts
        self._send(iteration, parcels, send)

    def _send(self, iteration: int, parcels: list[Tensor], send: Tensor) -> None:
        """Tell the peers how many rows of each layer they will get. Collective."""
        recv = torch.empty_like(send)
        ones = RowCounts([1] * self._comm.size, [1] * self._comm.size, 1)
        counting = self._comm.alltoallv(send, recv, ones)
        one = send[:, :0].new_ones(self._comm.size)
        self._count(one, one, 8 * send.shape[1])
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

    def state(self) -> dict[str, Any]:
        """When rows were last sent, and those that are on their way."""
        sending = [(one.iteration, one.parcels, one.send) for one in self._sending]
        return {"sent": self._sent, "sending": sending}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of this rank: what was on its way is sent once more. Collective."""
        self._sent.copy_(state["sent"])
        for iteration, parcels, send in state["sending"]:
            self._send(iteration, parcels, send)

    def drain(self) -> None:
        """Wait for what is still on its way, and drop it. Collective."""
        for _ in self.arrived(2**62):
            pass

    def _pack(self, now: int, layer: int, vertices: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Bytes of the rows for all peers, each after its number in the halo; rows a peer."""
        halos, sent = self._halos[vertices], self._sent[layer]
        row = torch.arange(len(vertices)).repeat_interleave(halos)
        shift = self._first[vertices] - (halos.cumsum(0) - halos)
        entry = torch.arange(len(row)) + shift[row]
        due = now - sent[entry] >= self._pause
        row, entry = row[due], entry[due]
        by_peer = self._peers[entry].argsort(stable=True)
        row, entry = row[by_peer], entry[by_peer]
        counts = torch.bincount(self._peers[entry], minlength=self._comm.size)
        if len(row) and int(counts.max()) > self._most:
            own = vertices.numpy()
            step = now * len(self._widths) + layer
            turns = turns_by_degree(self._ids[own], self._degrees[own], self._seed, step)[row]
            chosen, first = [], 0
            for count in counts.tolist():
                most = min(count, self._most)
                among = turns[first : first + count]
                chosen.append(first + among.topk(most, largest=False, sorted=False).indices)
                first += count
            those = torch.cat(chosen)
            row, entry = row[those], entry[those]
            counts = counts.clamp(max=self._most)
        sent[entry] = now
        contents = rows.detach()[row].to(self._dtype)
        numbers = self._numbers[entry][:, None]
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


def turns_by_degree(
    ids: npt.NDArray[np.int64], degrees: npt.NDArray[np.int64], seed: int, step: int
) -> Tensor:
    """A number for each vertex: the k smallest of any set are a sample of k, biased by degree."""
    drawn = uniform(ids, seed, "push", second=np.full(len(ids), step))
    return torch.from_numpy(-np.log1p(-drawn) / degrees)


def reachable_uses(ranks: RankGraph, seeds: Tensor, hops: int) -> Tensor:
    """Edges that lead to each halo vertex, int64 [h], from vertices that batches can reach."""
    own = ranks.boundary.own
    pattern = ranks.boundary.compact(ranks.block)
    rows = torch.arange(own).repeat_interleave(pattern.row_lengths)
    reached = seeds.clone()
    for _ in range(hops - 1):
        sources = torch.zeros(pattern.shape[1], dtype=torch.bool)
        sources[pattern.indices[reached[rows]].long()] = True
        reached = reached | sources[:own]
    columns = pattern.indices[reached[rows]].long()
    return torch.bincount(columns[columns >= own] - own, minlength=pattern.shape[1] - own)
