"""Needs: the rows that a rank needs of its peers, and how every rank learns what to send.

Needs are a sparse matrix grouped by owner, which follows from a rank's rows of A alone. Each row is
a row of H (one nonzero) or a partial sum (several); columns are numbers of the owner's own rows.
Every nonzero of the block of one owner is covered by its column or by its row, the cheapest way by
a minimum vertex cover (Hopcroft & Karp 1973; König 1931), as in SuperGNN and SHIRO. Exchanged with
all peers, needs make everybody's send matrix.

A *scheme* is a generator of one rank: it yields a request (`Swap`, `Gather`), is sent the response
of its peers along an axis, and returns a plan. `build` drives one with the communicators of this
rank; `build_all` drives those of all ranks in lockstep and needs none, so the plans of ranks that
do not exist are made by the same code.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.comm import Communicator
from spgnn.comm.traffic import RowCounts
from spgnn.exchange.plan import Carried
from spgnn.layout import EVERYONE, Axes, Int64Array, RowLayout, grouped_order
from spgnn.pattern import Pattern, Selection
from spgnn.registry import Cover
from spgnn.sparse import CSR
from spgnn.torch_internals import on_cpu, recorder

COVERS: tuple[str, ...] = get_args(Cover)


class Communicators(Protocol):
    """Communicators by axis; a Mesh is one."""

    def __getitem__(self, axis: str) -> Communicator: ...


# Tensors; an array that is ``None`` is so on all ranks.
Arrays = tuple[Any, ...]


class Received(NamedTuple):
    """The response to a `Swap`: the stretches for this rank, in the order of the peers."""

    counts: tuple[RowCounts, ...]
    arrays: tuple[Arrays, ...]


class Swap(NamedTuple):
    """A scheme's request to send peers along an axis stretches of arrays, or counts alone."""

    axis: str
    # [peers]: lengths of stretches; as many of them as there are groups of arrays
    counts: tuple[Int64Array, ...]
    # arrays [counts[i].sum(), …] of group i are cut by counts[i]
    arrays: tuple[Arrays, ...]

    def over(self, comm: Communicator) -> Received:
        """The response of real peers. Collective."""
        counts = swap_counts(comm, *self.counts)
        arrays = tuple(
            tuple(None if array is None else swap_rows(comm, array, cut) for array in group)
            for group, cut in zip(self.arrays, counts, strict=True)
        )
        return Received(tuple(counts), arrays)

    @staticmethod
    def in_one_process(requests: Sequence[Swap]) -> list[Received]:
        """The responses to all ranks of a group."""
        counts: list[list[RowCounts]] = [[] for _ in requests]
        arrays: list[list[Arrays]] = [[] for _ in requests]
        for number, group in enumerate(requests[0].arrays):
            sent = np.stack([one.counts[number] for one in requests])
            largest = int(sent.max(initial=0))
            # Only pairs that have something to say: far fewer than there are pairs of ranks.
            sender, receiver = sent.nonzero()
            received = np.zeros_like(sent)
            received[receiver, sender] = lengths = sent[sender, receiver]
            order = stretches(lengths, grouped_order(receiver, len(requests)))
            sizes = received.sum(axis=1).tolist()
            for ends in (sent, received):
                ends.setflags(write=False)
            moved: list[Sequence[Tensor | None]] = []
            for place in range(len(group)):
                whole: list[Any] = [one.arrays[number][place] for one in requests]
                if any(each is None for each in whole):
                    moved.append([None] * len(requests))
                else:
                    moved.append(torch.cat(whole)[torch.from_numpy(order)].split(sizes))
            for rank in range(len(requests)):
                counts[rank].append(RowCounts(sent[rank], received[rank], largest))
                arrays[rank].append(tuple(array[rank] for array in moved))
        return [Received(tuple(c), tuple(a)) for c, a in zip(counts, arrays, strict=True)]


class Gather(NamedTuple):
    """A scheme's request for the arrays of all its peers along an axis, one after the other.

    Lengths may differ from rank to rank; instead of arrays that are ``None`` on all ranks the
    response has ``None``.
    """

    axis: str
    arrays: Arrays

    def over(self, comm: Communicator) -> Arrays:
        """The arrays of real peers. Collective."""
        lengths = torch.tensor([[0 if array is None else len(array) for array in self.arrays]])
        everyone = torch.empty(comm.size, len(self.arrays), dtype=torch.int64)
        comm.all_gather(lengths, everyone, [1] * comm.size)
        gathered: list[Tensor | None] = []
        for array, sizes in zip(self.arrays, everyone.T.tolist(), strict=True):
            whole = None
            if array is not None:
                whole = array.new_empty((sum(sizes), *array.shape[1:]))
                comm.all_gather(array.contiguous(), whole, sizes)
            gathered.append(whole)
        return tuple(gathered)

    @staticmethod
    def in_one_process(requests: Sequence[Gather]) -> list[Arrays]:
        """The response to a whole group: the same arrays, which all of them share."""
        columns = zip(*(one.arrays for one in requests), strict=True)
        gathered = [[array for array in column if array is not None] for column in columns]
        return [tuple(torch.cat(arrays) if arrays else None for arrays in gathered)] * len(requests)


Made = TypeVar("Made")
Scheme = Generator[Swap | Gather, Any, Made]


def gather_number(axis: str, number: int) -> Scheme[Int64Array]:
    """A number of each peer along an axis, int64 [peers]."""
    (numbers,) = yield Gather(axis, (torch.tensor([number]),))
    result: Int64Array = numbers.numpy()
    return result


@on_cpu
def build(scheme: Scheme[Made], mesh: Communicators) -> Made:
    """The plan of a scheme for this rank. Collective: every rank drives the same scheme."""
    response = None
    while True:
        try:
            request = scheme.send(response)
        except StopIteration as done:
            plan: Made = done.value
            return plan
        response = request.over(mesh[request.axis])


@on_cpu
def build_all(schemes: Sequence[Scheme[Made]], axes: Axes) -> list[Made]:
    """The plans of schemes for all ranks, in order, in one process: as :func:`build` makes them."""
    plans: dict[int, Made] = {}
    responses: list[Any] = [None] * len(schemes)
    while len(plans) < len(schemes):
        requests: list[Any] = []
        for rank, scheme in enumerate(schemes):
            try:
                requests.append(scheme.send(responses[rank]))
            except StopIteration as done:
                plans[rank] = done.value
        for group in axes.groups(requests[0].axis) if requests else ():
            answers = requests[0].in_one_process([requests[rank] for rank in group])
            for rank, response in zip(group, answers, strict=True):
                responses[rank] = response
    return [plans[rank] for rank in range(len(schemes))]


@dataclass(frozen=True, eq=False)
class Needs:
    """The rows that one rank needs, grouped by peer; of each first rows of H, then sums."""

    rows: Int64Array  # int64 [peers]: rows needed of each peer, and their nonzeros
    entries: Int64Array
    lengths: Tensor | None  # int32 [rows in all], nonzeros of each; None if all are rows of H
    columns: Tensor  # int32 [entries in all]: the peer's own rows
    values: Tensor | None  # [entries in all]; None if all are ones

    @property
    def sums(self) -> Tensor | None:
        """Rows that are sums of several, bool [rows in all]; ``None`` if all are rows of H."""
        return None if self.lengths is None else self.lengths > 1

    def exchange(self, axis: str, own_rows: int) -> Scheme[tuple[CSR, RowCounts]]:
        """Tell every peer along an axis what is needed of it."""
        counts = (self.rows, self.entries)
        response = yield Swap(axis, counts, ((self.lengths,), (self.columns, self.values)))
        (lengths,), (columns, values) = response.arrays
        if lengths is None:
            send = CSR(Selection(columns, own_rows))
        else:
            send = rows_from(lengths, columns, values, None, own_rows)
        # We send what the others need, and receive what we need.
        return send, response.counts[0].reversed()


def exchange_needs(needs: Needs, own_rows: int, comm: Communicator) -> tuple[CSR, RowCounts]:
    """:meth:`Needs.exchange` over one communicator. Collective."""
    return build(needs.exchange(EVERYONE, own_rows), {EVERYONE: comm})


def needs_of(
    block: CSR, columns: RowLayout, members: Sequence[int] | Int64Array, me: int, cover: Cover
) -> tuple[CSR, CSR, Needs]:
    """The rows that one rank needs for its rows of A. Memory is proportional to what is remote.

    Parameters
    ----------
    block : CSR [rows, n]
        The rank's rows, with global columns; may carry values and a ``row_scale``.
    columns : RowLayout
        Which part owns which columns.
    members : sequence of int, or int64 array
        The parts that exchange rows with each other, rising. Other parts' columns are left out.
    me : int
        Which of the members this rank is.
    cover : {"column", "row", "minimum"}

    Returns
    -------
    L : CSR [rows, own rows]
        Nonzeros whose column this rank owns.
    R : CSR [rows, received rows]
        What to do with the received rows. Nonzeros of a received row of H keep their values; a
        partial sum is added.
    needs : Needs
    """
    own = int(columns.sizes[members[me]])
    if len(members) == columns.parts == 1:
        nobody = np.zeros(1, np.int64)
        R = CSR(Pattern(torch.zeros_like(block.indptr), block.indices[:0], (block.shape[0], 0)))
        L = CSR(block.pattern, block.values, block.row_scale)
        return L, R, Needs(nobody, nobody, None, block.indices[:0].int(), None)
    L_arrays, R_arrays, needed = _native.demand(
        block.indptr.numpy(),
        block.indices.numpy(),
        columns.offsets,
        np.asarray(members, np.int64),
        me,
        COVERS.index(cover),
        block.values is not None,
    )
    rows, entries, lengths, needed_columns, sources = needed

    def part(arrays: tuple[npt.NDArray[Any], ...], columns: int) -> CSR:
        indptr, indices, sources = map(torch.from_numpy, arrays)
        pattern = Pattern.trusted(indptr, indices, (block.shape[0], columns))
        values = None if block.values is None else _taken(block.values, sources)
        return CSR(pattern, values, block.row_scale)

    needs = Needs(
        rows,
        entries,
        None if cover == "column" else torch.from_numpy(lengths),
        torch.from_numpy(needed_columns),
        None
        if block.values is None or cover == "column"
        else _taken(block.values, torch.from_numpy(sources)),
    )
    return part(L_arrays, own), part(R_arrays, int(rows.sum())), needs


# Bytes to ask for rows: how many of each peer (two int64), and the number of each row (int32).
BYTES_OF_COUNTS, BYTES_OF_COLUMN = 16, 4


def request_bytes(counts: RowCounts, rank: int) -> Carried:
    """The bytes of exchanging needs of whole rows, which then travel to and from each rank."""
    each = BYTES_OF_COUNTS * (np.arange(len(counts.send)) != rank)
    sent, received = BYTES_OF_COLUMN * counts.recv, BYTES_OF_COLUMN * counts.send
    return Carried(EVERYONE, each + sent, each + received)


def whole_rows(
    block: CSR, columns: RowLayout, members: Sequence[int] | Int64Array, me: int
) -> tuple[CSR, CSR, CSR, RowCounts]:
    """L, R, send matrix and counts where every rank gets all rows of its peers, needed or not."""
    L, R, needs = needs_of(block, columns, members, me, "column")
    sizes = columns.sizes[np.asarray(members, np.int64)]
    begins = np.concatenate(([0], np.cumsum(sizes)))
    own = int(sizes[me])
    # Received are everyone's rows but ours, in order.
    owners = np.repeat(np.arange(len(members)), needs.rows)
    place = begins[owners] + needs.columns.numpy() - own * (owners > me)
    arrived = torch.from_numpy(place)[R.indices.long()]
    pattern = Pattern(R.indptr, arrived, (R.shape[0], int(begins[-1]) - own))
    others = np.arange(len(members)) != me
    counts = RowCounts(others * own, others * sizes, int(sizes.max()))
    return L, CSR(pattern, R.values, R.row_scale), CSR(Selection(torch.arange(own), own)), counts


def swap_counts(comm: Communicator, *counts: Int64Array) -> list[RowCounts]:
    """Tell every peer how much it will get of each thing, and learn the same. Collective."""
    outgoing = torch.from_numpy(np.stack(counts, axis=1))
    incoming = torch.empty_like(outgoing)
    ones = RowCounts((1,) * comm.size, (1,) * comm.size, 1)
    comm.alltoallv(outgoing, incoming, ones).wait()
    largest = outgoing.amax(dim=0)
    comm.all_reduce(largest, "max").wait()
    sides = zip(outgoing.T.numpy(), incoming.T.numpy(), largest.tolist(), strict=True)
    # What is needed is told against the way that rows will go.
    return [RowCounts(*each, -comm.job.begun[comm.group.key]) for each in sides]


class _Swapped(torch.autograd.Function):
    """Stretches of an array at the peers; their gradient comes back the same way."""

    @staticmethod
    def forward(array: Tensor, comm: Communicator, counts: RowCounts) -> Tensor:
        received = array.new_empty((counts.received, *array.shape[1:]))
        comm.alltoallv(array.contiguous(), received, counts).wait()
        return received

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.comm, ctx.counts = inputs

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        return swap_rows(ctx.comm, gradient[0], ctx.counts.reversed()), None, None


def swap_rows(comm: Communicator, array: Tensor, counts: RowCounts) -> Tensor:
    """Send stretches of an array to all peers; theirs, one after the other. Collective.

    Differentiable at every order.
    """
    received: Tensor = recorder(_Swapped)(array, comm, counts)
    return received


def stretches(lengths: Int64Array, order: Int64Array) -> Int64Array:
    """Places of the elements of some stretches, stretch after stretch in the order given."""
    begin = np.cumsum(lengths) - lengths
    taken = lengths[order]
    shift = begin[order] - (np.cumsum(taken) - taken)
    return np.repeat(shift, taken) + np.arange(int(taken.sum()))


def rows_from(
    lengths: Tensor, columns: Tensor, values: Tensor | None, scale: Tensor | None, width: int
) -> CSR:
    """A block from the lengths of its rows and their columns."""
    indptr = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=indptr[1:])
    return CSR(Pattern.trusted(indptr, columns, (len(lengths), width)), values, scale)


def _taken(values: Tensor, sources: Tensor) -> Tensor:
    """Values at some nonzeros; 1 where there is no source."""
    if (sources >= 0).all():
        return values.index_select(0, sources)
    return torch.where(sources < 0, 1.0, values[sources.long()]).to(values.dtype)
