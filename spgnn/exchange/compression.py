"""Transports that compress rows or leave some out, and hand the rest to another one.

Each does one thing, so any two compose; and each works on every hop of every scheme and cover,
because it sees rows, whatever they mean. Draws are hashes of (seed, matrix, step, name of the row),
so both ends know them without talking.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator, RowCounts
from spgnn.errors import InputError
from spgnn.exchange.approximation import (
    GOLDEN,
    LEAST_WITH_FEEDBACK,
    ODD,
    CodecSetting,
    squared_norm,
)
from spgnn.exchange.plan import Names, Route
from spgnn.exchange.transport import ByteCounts, Exact, Handle, Step, Transport, View
from spgnn.layout import Int64Array
from spgnn.sparse import SUM_DTYPE

State = dict[str, Tensor]

# Of the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class CodecLayer(Transport):
    """A transport that does something to rows, and hands them to another one.

    Parameters
    ----------
    inner : Transport
    setting : CodecSetting
    """

    def __init__(self, inner: Transport, setting: CodecSetting) -> None:
        self.inner, self.setting = inner, setting
        self._pool = Pool()
        self._forget()

    def _forget(self) -> None:
        """Keep nothing of earlier products."""

    def __deepcopy__(self, memo: dict[int, object]) -> CodecLayer:
        # Of another matrix: the same setting, and no state.
        other = copy.copy(self)
        other.inner, other._pool = copy.deepcopy(self.inner, memo), Pool()
        other._forget()
        return other

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """True if it keeps anything of one product for another."""
        return self.inner.remembers

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Hand the rows on."""
        return self.inner.begin(rows, out, route, comm, step)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """The bytes of the inner transport."""
        return self.inner.bytes(route, width, dtype, step)

    def land(self) -> None:
        """Wait for all rows that are under way. Collective."""
        if isinstance(self.inner, CodecLayer):
            self.inner.land()

    def forget(self) -> None:
        """Begin anew, and give all buffers back; no rows may be under way."""
        self._pool = Pool()
        self._forget()
        if isinstance(self.inner, CodecLayer):
            self.inner.forget()

    def state(self) -> State:
        """Its state, by name; collective if rows are under way.

        A codec that loads it goes on as this one would. Tensors are those that the codec uses.
        """
        inner = self.inner.state() if isinstance(self.inner, CodecLayer) else {}
        return {f"inner.{name}": tensor for name, tensor in inner.items()}

    def load(self, state: State) -> None:
        """Go on from a state, which is the codec's own from then on."""
        if isinstance(self.inner, CodecLayer):
            inner = {k.removeprefix("inner."): v for k, v in state.items() if k[:6] == "inner."}
            self.inner.load(inner)


def product_name(step: Step) -> str:
    """A name for the same product of all epochs, in one direction."""
    return f"{step.product}{'t' if step.adjoint else ''}{f'+{step.use}' if step.use else ''}"


class Quantise(CodecLayer):
    """Rows in fewer bits, each direction rounded by itself (Sylvie, EC-Graph, AdaQP).

    A row's least element and its step are rounded outward to bfloat16, and these are what both ends
    use; so what arrives is unbiased. With feedback, the rounding error of a row is added to the row
    that is sent in its place in the next epoch (Seide et al., Interspeech'14), and rows are rounded
    to the nearest: no single one is unbiased then anyway.
    """

    def __init__(self, setting: CodecSetting) -> None:
        self._feedback = setting.codec.feedback
        super().__init__(Exact(), setting)

    def _forget(self) -> None:
        self._residuals: dict[str, Tensor] = {}

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """True if rounding errors are kept."""
        return self._feedback

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Pack, and one all-to-allv of bytes; unpacked when they are waited for."""
        if not rows.is_floating_point():
            raise InputError(f"rows of {rows.dtype} cannot be sent in fewer bits: use float32")
        bits = self._bits(step, rows.dtype)
        if bits is None or not rows.shape[1]:
            return self.inner.begin(rows, out, route, comm, step)
        packed_width = kernels.packed_bytes(rows.shape[1], bits)
        packed, arriving = (
            self._pool.take(len(each), packed_width, torch.uint8, rows.device)
            for each in (rows, out)
        )
        self._pack(rows, bits, packed, route, step, comm.job.rank)
        handle = comm.alltoallv(packed, arriving, route.counts)

        def unpack() -> None:
            kernels.dequantise_rows(arriving, bits, out.shape[1], out.dtype, out=out)
            self._pool.give(packed, arriving)

        return Then(handle, unpack)

    def _pack(
        self, rows: Tensor, bits: int, out: Tensor, route: Route, step: Step, rank: int
    ) -> None:
        assert route.names is not None
        errors, residual, kept, places = self.setting.errors, None, None, None
        if self._feedback:
            # Of all rows of the exchange, whichever of them are sent now.
            name, count = product_name(step), (route.whole or route).counts.sent
            kept = self._residuals.get(name)
            if kept is None or kept.shape != (count, rows.shape[1]) or kept.dtype != rows.dtype:
                kept = self._residuals[name] = rows.new_zeros(count, rows.shape[1])
            places = None if route.places is None else route.places[0]
            residual = kept if places is None else kernels.gather_rows(kept, places)
        # Ranks that send gradients of the same vertex must not round them alike.
        key = self.setting.key(step, f"round {rank if step.adjoint else 0}")
        kernels.quantise_rows(
            rows,
            bits,
            route.names.sent,
            key,
            # Of what is added again, a code to the nearest loses half as much as one at random.
            stochastic=not self._feedback,
            residual=residual,
            lost=errors.account("rounding", step, rows.device)
            if errors.measured(step.epoch)
            else None,
            out=out,
        )
        if kept is not None and residual is not None and places is not None:
            kept.index_copy_(0, places, residual)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """Bytes of packed rows."""
        bits = self._bits(step, dtype)
        if bits is None or not width:
            return self.inner.bytes(route, width, dtype, step)
        row_bytes = kernels.packed_bytes(width, bits)
        return route.counts.send * row_bytes, route.counts.recv * row_bytes

    def state(self) -> State:
        """The rounding error of each row."""
        return {f"lost.{name}": tensor for name, tensor in self._residuals.items()}

    def load(self, state: State) -> None:
        """Go on from a state."""
        self._residuals = {name.removeprefix("lost."): tensor for name, tensor in state.items()}

    def _bits(self, step: Step, dtype: torch.dtype) -> int | None:
        """Bits of an element, or ``None`` where rows have no more anyway."""
        bits = self.setting.codec.bits_at(step.epoch)
        if self._feedback:
            bits = max(bits, LEAST_WITH_FEEDBACK)
        return bits if bits < min(32, 8 * dtype.itemsize) else None


class Sample(CodecLayer):
    """Each row is sent with probability p, as 1/p of it; the others are zeros where they arrive.

    Boundary sampling (BNS-GCN, Wan et al., MLSys'22). A product and its adjoint have the same
    sample and the same factor, so that one is the transpose of the other; both are unbiased. Both
    ends draw by names of the row and of its receiver: no numbers of rows travel. The receivers of a
    row draw each for themselves, and so do the products of an epoch.
    """

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Send the sample; whatever is not in it is zero at once."""
        share = self.setting.codec.sampling_at(step.epoch)
        if share == 1:
            return self.inner.begin(rows, out, route, comm, step)
        subset = self._draw(route, share, step)
        sent = self._buffer(subset.sent, rows, share)
        arriving = self._buffer(subset.received, out, share)
        dtype, device = SUM_DTYPE[rows.dtype], rows.device
        scale = torch.full(subset.sent.shape, 1 / share, dtype=dtype, device=device)
        kernels.gather_rows(rows, subset.sent, scale=scale, out=sent)
        errors = self.setting.errors
        if errors.measured(step.epoch):
            norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square_()
            whole, drawn = norms.sum(), norms[subset.sent].sum()
            error = whole - drawn + (1 / share - 1) ** 2 * drawn
            errors.account("sampling", step, rows.device).add_(torch.stack((error, whole)))
        handle = self.inner.begin(sent, arriving, subset.route, comm, step)

        def spread() -> None:
            kernels.scatter_add_rows(out.zero_(), subset.received, arriving)
            self._pool.give(sent, arriving)

        return Then(handle, spread)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """Of the rows in the sample."""
        share = self.setting.codec.sampling_at(step.epoch)
        if share < 1:
            route = self._draw(route, share, step).route
        return self.inner.bytes(route, width, dtype, step)

    def _draw(self, route: Route, share: float, step: Step) -> Subset:
        key = self.setting.shared_key(step, "sample")
        drawn = chosen(pair_names(route, adjoint=step.adjoint), key, share)
        return Subset.marked(route, drawn[: route.counts.sent], drawn[route.counts.sent :])

    def _buffer(self, numbers: Tensor, of: Tensor, share: float) -> Tensor:
        """For the rows of a sample, with room for most others."""
        expected = share * len(of)
        rows = max(min(len(of), ceil(expected + 4 * sqrt(expected))), len(numbers))
        return self._pool.take(rows, of.shape[1], of.dtype, of.device)[: len(numbers)]


class Fresh(CodecLayer):
    """Each row is sent only if it is farther than a share of its norm from what was last sent.

    As in Sancus (Peng et al., PVLDB 15, 2022) and CDFGNN (2024), but row by row, in both
    directions. A bit for each row says to receivers which rows come; they use the last known one in
    place of the others. At first all rows are sent. The bits are waited for at once, for only they
    say how many rows will come; the rows travel meanwhile, as others do.

    Where rows are sent in fewer bits, what is kept here is the row before that: a row moves, or
    does not, whatever was lost of it.
    """

    remembers = True
    BLOCK = 1024  # rows that are compared at a time: their differences stay in cache

    def _forget(self) -> None:
        # By product: each row as it was last sent, and each as it last arrived.
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}
        self._moved: dict[str, Route | None] = {}

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Send the rows that have moved; `out` becomes all of them, as they are known."""
        name, exact = product_name(step), self.setting.codec.is_exact(step.epoch)
        kept = self._kept.get(name)
        other = kept is not None and (kept[1].shape != out.shape or kept[1].dtype != out.dtype)
        if kept is not None and (exact or other):
            kept = None
            del self._kept[name]
        if kept is None:
            self._moved[name] = None
            handle = self.inner.begin(rows, out, route, comm, step)
            if exact:
                return handle
            last, known = self._kept[name] = rows.clone(), torch.empty_like(out)
            return Then(handle, lambda: known.copy_(out))
        last, known = kept
        moves = self._moves(rows, last, step)
        subset = Subset.marked(route, moves, swap_bits(moves, route.counts, comm))
        self._moved[name] = subset.route
        # Buffers with room for all, since nobody knows how many will move in other steps.
        sent = self._pool.take(len(rows), *kind_of(rows))[: len(subset.sent)]
        arriving = self._pool.take(len(out), *kind_of(out))[: len(subset.received)]
        kernels.gather_rows(rows, subset.sent, out=sent)
        last.index_copy_(0, subset.sent, sent)
        handle = self.inner.begin(sent, arriving, subset.route, comm, step)

        def renew() -> None:
            known.index_copy_(0, subset.received, arriving)
            out.copy_(known)
            self._pool.give(sent, arriving)

        return Then(handle, renew)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """Bits and rows of the last step of the product; all rows before there was one."""
        last = self._moved.get(product_name(step))
        if last is None or self.setting.codec.is_exact(step.epoch):
            return self.inner.bytes(route, width, dtype, step)
        sent, received = self.inner.bytes(last, width, dtype, step)
        bits = bytes_of_bits(route.counts)
        return sent + bits.send, received + bits.recv

    def state(self) -> State:
        """Rows as they were last sent, and as they last arrived."""
        state = super().state()
        for name, (last, known) in self._kept.items():
            state[f"{name}.sent"], state[f"{name}.known"] = last, known
        return state

    def load(self, state: State) -> None:
        """Go on from a state."""
        super().load(state)
        names = [key.removesuffix(".sent") for key in state if key.endswith(".sent")]
        self._kept = {
            name: (state[f"{name}.sent"], state[f"{name}.known"])
            for name in names
            if not name.startswith("inner.")
        }

    def _moves(self, rows: Tensor, last: Tensor, step: Step) -> Tensor:
        """Rows to send, bool [rows]: also those whose distance is not a number."""
        distance, norm = rows.new_empty(2, len(rows))
        for first in range(0, len(rows), self.BLOCK):
            block = slice(first, first + self.BLOCK)
            torch.linalg.vector_norm(rows[block] - last[block], dim=1, out=distance[block])
            torch.linalg.vector_norm(rows[block], dim=1, out=norm[block])
        stays: Tensor = distance <= self.setting.codec.fresh * norm
        if self.setting.errors.measured(step.epoch):
            stale = distance.double().square_().where(stays, 0.0).sum()
            account = self.setting.errors.account("fresh", step, rows.device)
            account.add_(torch.stack((stale, squared_norm(rows))))
        return ~stays


def swap_bits(marks: Tensor, counts: RowCounts, comm: Communicator) -> Tensor:
    """A yes or no for each row, bool [rows to send], to its receiver; theirs, bool [received]."""
    bits = bytes_of_bits(counts)
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=marks.device)
    spread = torch.zeros(8 * bits.sent, dtype=torch.uint8, device=marks.device)
    spread[_places_of_bits(counts.send, bits.send).to(marks.device)] = marks.to(torch.uint8)
    packed = (spread.view(-1, 8) * weights).sum(dim=1, keepdim=True, dtype=torch.uint8)
    arriving = packed.new_empty(bits.received, 1)
    comm.alltoallv(packed, arriving, bits).wait()
    arrived = (arriving & weights).view(-1).bool()
    return arrived[_places_of_bits(counts.recv, bits.recv).to(marks.device)]


def bytes_of_bits(counts: RowCounts) -> RowCounts:
    """Bytes to and from each peer, of a bit for each row."""
    return RowCounts((counts.send + 7) // 8, (counts.recv + 7) // 8, (counts.largest + 7) // 8)


def _places_of_bits(rows: Int64Array, nbytes: Int64Array) -> Tensor:
    """The place of each row's bit, where those of each peer begin with a byte."""
    begins, filled = np.cumsum(rows) - rows, 8 * (np.cumsum(nbytes) - nbytes)
    return torch.from_numpy(np.repeat(filled - begins, rows) + np.arange(int(rows.sum())))


class ExactMeans(CodecLayer):
    """Each message's mean is exact and in time; the inner codec carries the differences from it.

    With M the projection onto means, and D what the inner codec does, a message becomes
    M + (I − M)D(I − M): the sender subtracts the mean, and the receiver replaces the mean of what
    arrived by the true one. So the mean is right whatever D is, the result is unbiased if D is, and
    a product and its adjoint are transposes if those of D are.

    Rows of hidden layers have much in common, for activations are not negative; so when weights
    move, the mean is what moves most. Where it is late, the optimiser acts on what it has corrected
    already, and a loop with such a lag is stable only with steps that are many times smaller. Of a
    sample, the mean is a control variate (as historical rows are in VR-GCN, Chen, Zhu & Song,
    ICML'18): rows that are left out arrive as the mean, and not as zeros.
    """

    def _forget(self) -> None:
        self._buffer: Tensor | None = None

    def send_buffer(self, rows: int, like: Tensor, step: Step) -> Tensor | None:
        """The inner codec's buffer: the mean is subtracted there."""
        self._buffer = self.inner.send_buffer(rows, like, step)
        return self._buffer

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        """Send the means, and hand the differences on."""
        differences, self._buffer = self._buffer, None
        if self.setting.codec.passes(step.epoch) or not rows.shape[1]:
            return self.inner.begin(rows, out, route, comm, step)
        counts = route.counts
        own = _means(rows, counts.send)
        means = rows.new_empty(int(np.count_nonzero(counts.recv)), rows.shape[1])
        # With the means that are sent, which nobody else holds.
        under_way = comm.alltoallv(own, means, _one_each(counts)), own
        if differences is None:
            differences = self.inner.send_buffer(len(rows), rows, step)
        borrowed = differences is None
        if differences is None:
            differences = self._pool.take(len(rows), *kind_of(rows))
        _add_means(rows, own, counts.send, differences, sign=-1)
        handle = self.inner.begin(differences, out, route, comm, step)

        def centre() -> None:
            if isinstance(handle, View):
                arrived = handle.view()
            else:
                handle.wait()
                arrived = out
            under_way[0].wait()
            _add_means(arrived, means - _means(arrived, counts.recv), counts.recv, out, sign=1)
            if borrowed:
                self._pool.give(differences)

        return Then(None, centre)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        """One row more for each message that is not empty."""
        sent, received = self.inner.bytes(route, width, dtype, step)
        if self.setting.codec.passes(step.epoch) or not width:
            return sent, received
        means, row_bytes = _one_each(route.counts), width * dtype.itemsize
        return sent + means.send * row_bytes, received + means.recv * row_bytes


def _one_each(counts: RowCounts) -> RowCounts:
    """One row for each message that is not empty."""
    send, receive = ((each > 0).astype(np.int64) for each in (counts.send, counts.recv))
    return RowCounts(send, receive, min(counts.largest, 1))


def _means(rows: Tensor, counts: Int64Array) -> Tensor:
    """The mean of each message that is not empty, [messages, f]."""
    messages = rows.split(counts[counts > 0].tolist())
    means = rows.new_empty(len(messages), rows.shape[1])
    for message, mean in zip(messages, means, strict=True):
        mean.copy_(message.mean(0, dtype=SUM_DTYPE[rows.dtype]))
    return means


def _add_means(rows: Tensor, means: Tensor, counts: Int64Array, out: Tensor, *, sign: int) -> None:
    """Write ``rows + sign · (the mean of their message)`` to `out`, which may be `rows`."""
    lengths = counts[counts > 0].tolist()
    for message, mean, target in zip(rows.split(lengths), means, out.split(lengths), strict=True):
        torch.add(message, mean, alpha=sign, out=target)


class Then:
    """A handle after which something is to be done, once."""

    def __init__(self, handle: Handle | None, then: Callable[[], object]) -> None:
        self._handle, self._then = handle, then
        self._waited = False

    def wait(self) -> None:
        """Return when everything is done."""
        if not self._waited:
            self._waited = True
            if self._handle is not None:
                self._handle.wait()
            self._then()


class Pool:
    """Buffers that are given back: rows under way for long must not be written to meanwhile."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised [rows, width]."""
        nbytes = rows * width * dtype.itemsize
        fitting = [b for b in self._free if b.device == device and len(b) >= nbytes]
        if fitting:
            best = min(fitting, key=len)
            self._free = [buffer for buffer in self._free if buffer is not best]
        else:
            best = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return best[:nbytes].view(dtype).view(rows, width)

    def give(self, *buffers: Tensor) -> None:
        """Give buffers back."""
        for rows in buffers:
            whole = torch.empty(0, dtype=torch.uint8, device=rows.device)
            self._free.append(whole.set_(rows.untyped_storage()))


def kind_of(like: Tensor) -> tuple[int, torch.dtype, torch.device]:
    """Width, dtype and device."""
    return like.shape[1], like.dtype, like.device


@dataclass(frozen=True, eq=False)
class Subset:
    """Some of the rows of an exchange, which travel without the others.

    Attributes
    ----------
    sent, received : Tensor int64
        Their numbers, rising.
    route : Route
        Of these alone.
    """

    sent: Tensor
    received: Tensor
    route: Route

    @classmethod
    def marked(cls, route: Route, sent: Tensor, received: Tensor) -> Subset:
        """The marked rows: bool [rows to send] and [rows received]."""
        leaving, arriving = sent.nonzero()[:, 0], received.nonzero()[:, 0]

        def per_peer(rows: Tensor, counts: Int64Array) -> Int64Array:
            ends = torch.from_numpy(np.cumsum(counts)).to(rows.device)
            return np.diff(torch.searchsorted(rows, ends).cpu().numpy(), prepend=0)

        counts = route.counts
        fewer = RowCounts(
            per_peer(leaving, counts.send), per_peer(arriving, counts.recv), counts.largest
        )
        return cls(leaving, arriving, route.taken(leaving, arriving, fewer))


def pair_names(route: Route, *, adjoint: bool) -> Tensor:
    """Names of the rows that are sent, then received, each with its receiver in the product, int64.

    A row that goes to several has several names. A product and its adjoint have the same ones.
    """
    known = route.pair_names.get(adjoint)
    if known is None:
        names, counts = route.names, route.counts
        assert names is not None
        if adjoint:
            both = names.sent + _of_rank(names.me), names.received + _by_peer(counts.recv, names)
        else:
            both = names.sent + _by_peer(counts.send, names), names.received + _of_rank(names.me)
        known = route.pair_names[adjoint] = torch.cat(both)
    return known


def chosen(names: Tensor, key: int, share: float) -> Tensor:
    """A draw of rows, each with the same probability, below 1; bool [rows]."""
    return hashed(names, key) < int(share * 2**64) - 2**63


def hashed(names: Tensor, key: int) -> Tensor:
    """A number for each name: uniform over all of int64, the same wherever it is drawn."""
    z = names ^ _signed(key)
    z += _signed(GOLDEN)
    for shift, factor in _MIXING:
        z ^= _shifted(z, shift)
        z *= _signed(factor)
    z ^= _shifted(z, 31)
    return z


def _by_peer(counts: Int64Array, names: Names) -> Tensor:
    ranks = torch.tensor([_of_rank(rank) for rank in range(len(counts))])
    return ranks.repeat_interleave(torch.tensor(counts)).to(names.sent.device)


def _of_rank(rank: int) -> int:
    return _signed(rank * ODD % 2**64)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """To the right, as if there was no sign."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """64 bits as int64 has them."""
    return word - 2**64 if word >= 2**63 else word
