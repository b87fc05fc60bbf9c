"""Neighbourhoods across ranks: who owns a vertex draws its neighbours, for whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.errors import InputError
from spgnn.exchange import swap_counts, swap_rows
from spgnn.layout import RowLayout
from spgnn.minibatch.ahead import last
from spgnn.minibatch.boundary import Boundary
from spgnn.minibatch.counts import Sampled as Counted
from spgnn.minibatch.expansion import HopSampler, anew, once
from spgnn.minibatch.questions import Questions
from spgnn.pattern import index_dtype
from spgnn.sampling import Draw, Sample

Result = TypeVar("Result")
Sampled = list[tuple[Sample, Tensor | None]]
Sampling = Generator[None, None, Sampled]
"""On its way to samples; between its steps, whatever needs no other rank may run in a thread."""


class Drawn(NamedTuple):
    """Sampled rows of the matrix.

    Attributes
    ----------
    indptr : Tensor int64 [targets + 1]
    columns : Tensor [edges]
        Of the whole matrix.
    edges : Tensor [edges, …], optional
        What is known of each edge.
    weights : Tensor float32 [edges], optional
        Of the sampler.
    """

    indptr: Tensor
    columns: Tensor
    edges: Tensor | None
    weights: Tensor | None


class DistributedSampler:
    """Draws neighbours in a graph whose rows lie on several ranks.

    A draw is a function of original ids, so it is the same wherever a vertex is.

    Parameters
    ----------
    sampler : HopSampler
        Of :meth:`Boundary.compact`, told the original ids of its columns.
    boundary : Boundary
    layout : RowLayout
    comm : Communicator
        All ranks.
    edges : Tensor [nnz, …], optional
        What is known of each of this rank's nonzeros, for a sampler that numbers edges; on all
        ranks or on none.
    weighted : bool
        Whether the sampler returns weights.

    Attributes
    ----------
    hops : int
        How often a neighbourhood grows.
    """

    def __init__(
        self,
        sampler: HopSampler,
        boundary: Boundary,
        layout: RowLayout,
        comm: Communicator,
        *,
        edges: Tensor | None = None,
        weighted: bool = False,
    ) -> None:
        self.hops = len(sampler.num_neighbors)
        self.layout, self.comm = layout, comm
        self._sampler, self._columns = sampler, boundary.columns.to(index_dtype(layout.rows))
        self._edges, self._weighted = edges, weighted

    def asking(self, draws: Sequence[Draw]) -> Asking:
        """What is asked for in these draws, one a batch, hop by hop. Collective.

        Ranks may have different numbers of batches.
        """
        mine = torch.tensor([[d.seed, d.epoch, d.batch] for d in draws], dtype=torch.int64)
        size = self.comm.size
        (counts,) = swap_counts(self.comm, np.full(size, len(draws), np.int64))
        theirs = swap_rows(self.comm, mine.view(-1, 3).repeat(size, 1), counts)
        told = [[Draw(*row) for row in rows.tolist()] for rows in theirs.split(counts.recv_list)]
        return Asking(self, told, counts)

    def sample(
        self, seeds: Sequence[Tensor], draws: Sequence[Draw], *, resample: bool = False
    ) -> Sampled:
        """Several batches at once. Collective; ranks may have different numbers of them.

        Parameters
        ----------
        seeds : sequence of Tensor int64
            Rows of the whole matrix, each once in a batch.
        draws : sequence of Draw
            One a batch.
        resample : bool
            Draw neighbours of a vertex anew in each hop, rather than once.

        Returns
        -------
        list of (Sample, Tensor or None)
            Nodes are rows of the whole matrix. With what is known of edges, if anything is; a hop
            numbers its edges by places in there.
        """
        return last(self.sampling(seeds, draws, resample=resample))

    def sampling(
        self,
        seeds: Sequence[Tensor],
        draws: Sequence[Draw],
        *,
        resample: bool = False,
        thread: Executor | None = None,
    ) -> Sampling:
        """As `sample`, in two steps a hop and one more; each step is collective.

        Other exchanges may come between steps, in the same order on all ranks. What this rank draws
        and puts in order by itself runs in a thread meanwhile, if there is one.
        """
        asking = self.asking(draws)
        growth = [(anew if resample else once)(batch, self.hops) for batch in seeds]
        targets = [next(batch) for batch in growth]
        known: list[list[Tensor]] = [[] for _ in seeds]
        samples: list[Sample] = []

        def grow(found: Sequence[Drawn]) -> None:
            for batch, (indptr, columns, edges, weights) in enumerate(found):
                numbers = None
                if edges is not None:
                    before = sum(map(len, known[batch]))
                    numbers = torch.arange(before, before + len(edges))
                    known[batch].append(edges)
                try:
                    targets[batch] = growth[batch].send((indptr, columns, numbers, weights))
                except StopIteration as grown:
                    samples.append(grown.value)

        for hop in range(self.hops):
            arrive = asking.begun(targets, hop, thread)
            yield
            grown = running(thread, grow, arrive())
            yield
            grown()
        joined = [torch.cat(parts) if parts else None for parts in known]
        return list(zip(samples, joined, strict=True))

    def own(self, targets: Tensor, hop: int, draw: Draw) -> Drawn:
        """Neighbours of own rows, counted from the first; without communication.

        Raises
        ------
        InputError
            If the sampler does not number edges of which something is known.
        """
        indptr, columns, edge_ids, weights = self._sampler.sample_hop(targets, hop, draw)
        edges = None
        if self._edges is not None:
            if edge_ids is None:
                raise InputError("the sampler must number edges (edge_ids=True)")
            edges = self._edges[edge_ids]
        columns = self._columns[columns.long()]
        return Drawn(indptr, columns, edges, weights if self._weighted else None)

    def rows(self, indptr: Tensor, entries: Sequence[Tensor]) -> Drawn:
        """Rows whose columns, and whatever goes with them, have travelled as arrays."""
        columns, *others = entries
        edges = others.pop(0) if self._edges is not None else None
        return Drawn(indptr, columns, edges, others[0] if self._weighted else None)


@dataclass(frozen=True, eq=False)
class Asking:
    """The questions of one superbatch; all ranks ask together.

    Attributes
    ----------
    of : DistributedSampler
    draws : list of list of Draw
        Those of each rank's batches.
    batches : RowCounts
        This rank's batches to each peer, and each peer's.
    """

    of: DistributedSampler
    draws: list[list[Draw]]
    batches: RowCounts

    def rows_of(self, targets: Sequence[Tensor], hop: int) -> list[Drawn]:
        """The drawn neighbours of each batch's targets, in their order. Collective.

        Parameters
        ----------
        targets : sequence of Tensor int64
            Rows of the whole matrix; one tensor a batch.
        hop : int
            Which draw it is.
        """
        return self.begun(targets, hop)()

    def begun(
        self, targets: Sequence[Tensor], hop: int, thread: Executor | None = None
    ) -> Callable[[], list[Drawn]]:
        """As `rows_of`, of which questions alone are asked; what is returned has them answered.

        Both are collective. This rank's draws may be made in a thread between the two.
        """
        made, batches = self.of, len(targets)
        wanted = torch.cat([*targets, torch.zeros(0, dtype=torch.int64)])
        sizes = torch.tensor([len(t) for t in targets], dtype=torch.int64)
        questions = Questions(wanted, made.layout, made.comm)
        # By owner, and of each owner by batch.
        asked = torch.tensor(questions.counts.send_list)
        owner = torch.arange(made.comm.size).repeat_interleave(asked)
        batch = torch.arange(batches).repeat_interleave(sizes)[questions.order]
        of_batches = torch.bincount(owner * batches + batch, minlength=made.comm.size * batches)
        theirs = swap_rows(made.comm, of_batches, self.batches)
        drawn = running(thread, self._drawn, questions.asked, theirs, hop)

        def answered() -> list[Drawn]:
            indptr, arrived = questions.answered_lists(*drawn())
            return [made.rows(*cut) for cut in _cut(indptr, arrived, sizes.tolist())]

        return answered

    def _drawn(self, asked: Tensor, sizes: Tensor, hop: int) -> tuple[Tensor, list[Tensor]]:
        """What this rank draws for all batches of all ranks, one after the other."""
        draws = [draw for batches in self.draws for draw in batches]
        found = [
            self.of.own(rows, hop, draw)
            for rows, draw in zip(asked.split(sizes.tolist()), draws, strict=True)
        ]
        found.append(self.of.own(asked[:0], hop, Draw(0)))
        lengths = torch.cat([rows.indptr.diff().int() for rows in found])
        arrays = zip(*([a for a in rows[1:] if a is not None] for rows in found), strict=True)
        return lengths, [torch.cat(parts) for parts in arrays]


def timed(sampling: Sampling, counted: Counted) -> Sampling:
    """The same steps; their seconds and what was drawn are counted."""
    seconds = 0.0
    while True:
        started = perf_counter()
        try:
            next(sampling)
        except StopIteration as done:
            samples: Sampled = done.value
            counted.add([sample for sample, _ in samples], seconds + perf_counter() - started)
            return samples
        seconds += perf_counter() - started
        yield


def running(
    thread: Executor | None, call: Callable[..., Result], *arguments: Any
) -> Callable[[], Result]:
    """A call that may run in a thread; what is returned waits for its result."""
    if thread is None:
        return partial(call, *arguments)
    return thread.submit(call, *arguments).result


def _cut(
    indptr: Tensor, entries: Sequence[Tensor], sizes: Sequence[int]
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Rows of several batches, one after the other, as those of each."""
    first = 0
    for size in sizes:
        begin, end = int(indptr[first]), int(indptr[first + size])
        yield indptr[first : first + size + 1] - begin, [array[begin:end] for array in entries]
        first += size
