"""Samplers that look at all targets of a hop together, where rows lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.layout import RowLayout
from spgnn.minibatch.ahead import last
from spgnn.minibatch.boundary import Boundary
from spgnn.minibatch.exact import (
    DistributedSampler,
    Drawn,
    Sampled,
    Sampling,
    running,
)
from spgnn.pattern import Pattern
from spgnn.sampling import (
    Draw,
    Hop,
    LaborSampler,
    LadiesSampler,
    NeighborSampler,
    Sample,
    Sampler,
    relabel,
)
from spgnn.sparse import CSR


class GatheringSampler:
    """LABOR and LADIES on several ranks: owners send whole rows, and who wants a batch draws.

    What a target takes depends on the other targets, so nobody can draw for it alone. The rows of a
    vertex come once a batch, whole, and in the order in which one process reads them; then a hop is
    that of the same sampler on a graph of these rows alone.

    Parameters
    ----------
    sampler : {"labor", "ladies"}
    numbers : sequence of int
        What the sampler takes, one a hop.
    block : CSR [own rows, n]
    boundary : Boundary
    ids : Tensor int64 [own + h]
        Original ids of the boundary's columns.
    layout : RowLayout
    comm : Communicator
        All ranks.
    threads : int, optional

    Raises
    ------
    InputError
        If an argument is wrong.
    """

    def __init__(
        self,
        sampler: str,
        numbers: Sequence[int],
        block: CSR,
        boundary: Boundary,
        *,
        ids: Tensor,
        layout: RowLayout,
        comm: Communicator,
        threads: int | None = None,
    ) -> None:
        if sampler not in ("labor", "ladies"):
            raise InputError(
                f"sampler {sampler}: ranks that hold parts know neighbor, labor, ladies, fastgcn"
            )
        self._weighted = block.values is not None
        self._together = Together(sampler, self._weighted, threads)
        self._together.check(numbers)
        self._numbers = [int(number) for number in numbers]
        pattern = boundary.compact(block)
        whole = NeighborSampler(
            pattern, [-1] * len(self._numbers), edge_ids=True, vertex_ids=ids, threads=threads
        )
        # Of each nonzero: its column's id, and its value.
        known = [ids[pattern.indices.long()].view(torch.int32).view(-1, 2)]
        if block.values is not None:
            known.append(block.values.float().view(torch.int32).view(-1, 1))
        self._rows = DistributedSampler(whole, boundary, layout, comm, edges=torch.cat(known, 1))

    def sample(
        self, seeds: Sequence[Tensor], draws: Sequence[Draw], *, resample: bool = False
    ) -> Sampled:
        """As :meth:`DistributedSampler.sample`; all vertices draw anew in each hop. Collective."""
        return last(self.sampling(seeds, draws, resample=resample))

    def sampling(
        self,
        seeds: Sequence[Tensor],
        draws: Sequence[Draw],
        *,
        resample: bool = False,
        thread: Executor | None = None,
    ) -> Sampling:
        """As :meth:`DistributedSampler.sampling`. Collective."""
        asking = self._rows.asking(draws)
        growing = [Growing(batch) for batch in seeds]

        def grow(found: Sequence[Drawn], number: int, hop: int) -> None:
            for one, rows, draw in zip(growing, found, draws, strict=True):
                one.know(rows)
                self._together.grow(one, number, hop, draw)

        for hop, number in enumerate(self._numbers):
            arrive = asking.begun([one.nodes[one.known :] for one in growing], hop, thread)
            yield
            grown = running(thread, grow, arrive(), number, hop)
            yield
            grown()
        return [one.done(weighted=self._weighted) for one in growing]


@dataclass(frozen=True)
class Together:
    """LABOR or LADIES of targets whose whole rows are at hand.

    Attributes
    ----------
    name : {"labor", "ladies"}
    weighted : bool
        Whether entries have values.
    threads : int, optional
    """

    name: str
    weighted: bool = False
    threads: int | None = None

    def grow(self, one: Growing, number: int, hop: int, draw: Draw) -> None:
        """One hop of a batch, of which the rows of all targets are known."""
        targets = len(one.nodes)
        nodes, indices = relabel(one.nodes, one.indptr, one.columns)
        ids = torch.zeros(len(nodes), dtype=torch.int64)
        ids[indices.long()] = one.ids
        empty = one.indptr[-1:].expand(len(nodes) - targets)
        pattern = Pattern.trusted(torch.cat((one.indptr, empty)), indices, (len(nodes), len(nodes)))
        values = one.values if self.weighted else None
        sample = self.sampler(pattern, [number], values, ids, hop).sample(
            torch.arange(targets), draw
        )
        one.take(nodes[sample.nodes], sample.hops[0])

    def check(self, numbers: Sequence[int]) -> None:
        """Refuse numbers that the sampler does not take."""
        none = torch.zeros(1, dtype=torch.int64)
        nothing = Pattern(none, torch.zeros(0, dtype=torch.int32), (0, 0))
        self.sampler(nothing, numbers, None, none[:0], 0)

    def sampler(
        self, pattern: Pattern, numbers: Sequence[int], values: Tensor | None, ids: Tensor, hop: int
    ) -> Sampler:
        """That of a graph of these rows alone."""
        if self.name == "labor":
            return LaborSampler(
                pattern,
                numbers,
                first_hop=hop,
                edge_ids=True,
                vertex_ids=ids,
                threads=self.threads,
            )
        return LadiesSampler(
            pattern,
            numbers,
            values=None if values is None else values.abs(),
            first_hop=hop,
            edge_ids=True,
            vertex_ids=ids,
            threads=self.threads,
        )


class Growing:
    """A batch on its way: its vertices, the whole rows of the first ones, and its hops."""

    def __init__(self, seeds: Tensor) -> None:
        self.nodes, self._seeds, self.known = seeds, len(seeds), 0
        self.indptr = torch.zeros(1, dtype=torch.int64)
        self.columns = torch.zeros(0, dtype=torch.int64)
        self.ids, self.values = self.columns, torch.zeros(0)
        self._hops: list[Hop] = []
        self._edges: list[Tensor] = []

    def know(self, rows: Drawn) -> None:
        """The whole rows of all nodes that were not known."""
        assert rows.edges is not None
        self.known = len(self.nodes)
        self.indptr = torch.cat((self.indptr, rows.indptr[1:] + self.indptr[-1]))
        self.columns = torch.cat((self.columns, rows.columns.long()))
        # A copy: one row alone counts as contiguous, whatever its stride.
        ids = rows.edges[:, :2].clone(memory_format=torch.contiguous_format)
        ids = ids.view(torch.int64).view(-1)
        self.ids = torch.cat((self.ids, ids))
        values = rows.edges[:, 2:].contiguous().view(torch.float32).view(-1)
        self.values = torch.cat((self.values, values))

    def take(self, nodes: Tensor, hop: Hop) -> None:
        """What was drawn; the hop's edges are those of the whole rows."""
        self.nodes = nodes
        assert hop.edge_ids is not None
        before = sum(map(len, self._edges))
        self._edges.append(hop.edge_ids)
        numbers = torch.arange(before, before + len(hop.edge_ids))
        self._hops.append(Hop(hop.indptr, hop.indices, numbers, hop.weights, hop.sources))

    def entries(self) -> list[Tensor]:
        """Of each hop, which entries of the whole rows it has."""
        return self._edges

    def done(self, *, weighted: bool) -> tuple[Sample, Tensor | None]:
        """The sample, and the values of its edges if there are any."""
        sample = Sample(self.nodes, self._seeds, self._hops)
        if weighted:
            return sample, self.values[torch.cat(self._edges)]
        bare = [Hop(h.indptr, h.indices, None, h.weights, h.sources) for h in self._hops]
        return Sample(self.nodes, self._seeds, bare), None
