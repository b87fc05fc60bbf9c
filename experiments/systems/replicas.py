"""Parts with replicas: a rank holds all that batches of its own training vertices can ask for.

PaGraph (Lin et al., SoCC 2020): the in-neighbourhoods of a rank's training vertices, of as many
hops as the model has layers, are fetched once. From then on ranks sample, and gather features,
without each other; only gradients travel. Batches are those of the whole graph with these seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from spgnn.addons.batches import (
    BatchOptions,
    MemoryRows,
    Mode,
    NeighborLoader,
    RankGraph,
    Requests,
    SampledGraph,
    Strategy,
    mask_of,
    offsets_of,
)
from spgnn.comm import Communicator
from spgnn.data import RankShare
from spgnn.errors import InputError
from spgnn.pattern import Pattern, index_dtype
from spgnn.registry import SAMPLERS
from spgnn.sparse import CSR, take_rows


class _PartLoader(NeighborLoader):
    """Batches of what a rank's seeds reach; all ranks have as many steps."""

    most: int | None = None

    @property
    def steps(self) -> int:
        """Steps of an epoch: batches of the rank that has most."""
        return self.batches if self.most is None else self.most


class ReplicatedBatches(Strategy):
    """Batches of a rank's own training vertices, from all that they can reach.

    Ranks may have different numbers of batches; `steps` are the most. In a step all draw alike, so
    a vertex that two of them reach has the same neighbours.

    Attributes
    ----------
    replicas : dict
        Vertices that each rank holds; their number over that of the graph, ``factor``; bytes of
        their rows and features on all ranks, and of those that others sent.
    """

    def __init__(
        self, share: RankShare, comm: Communicator, options: BatchOptions, seeds: Tensor
    ) -> None:
        hops = len(options.num_neighbors)
        graph, seeds, self.replicas = replicated(share, seeds, comm, hops)
        self.loader = _PartLoader(graph, **vars(options) | {"input_nodes": seeds})
        batches = self.loader.batches
        self.steps, self._batches = comm.agree(batches, "max"), comm.agree(batches, "sum")
        self.loader.most = self.steps
        self.counts, self.sampled = self.loader.counts, self.loader.sampled

    def epoch(self, epoch: int) -> Iterator[Any]:
        """Batches of this rank, and no ``None`` after them."""
        self.loader.epoch = epoch
        return iter(self.loader)

    def report(self) -> dict[str, Any]:
        """How much of the graph ranks hold."""
        return {"replicas": self.replicas, "batches_per_epoch": self._batches}


class Replicated(Mode):
    """Batches of each rank's own seeds, of a graph that has all that they reach."""

    samplers = None

    @classmethod
    def check(cls, config: Any) -> None:
        """A sampler must draw from the rows that are there."""
        by_rows = [name for name in SAMPLERS if SAMPLERS[name].needs != "graph"]
        if config.sampling.sampler not in by_rows:
            raise InputError(
                f"--distributed replicated needs --sampler {' or '.join(by_rows)}, "
                f"not {config.sampling.sampler}"
            )

    @classmethod
    def describe(cls, batches: str, options: Any, ranks: int) -> str:
        """In words."""
        return f"{batches} (replicated)"

    def strategy(
        self, share: RankShare, comm: Communicator, options: BatchOptions
    ) -> ReplicatedBatches:
        """The batches of this rank. Collective."""
        own = mask_of(share, options.input_nodes, comm).nonzero()[:, 0]
        return ReplicatedBatches(share, comm, options, own + share.layout.range(comm.rank)[0])


def replicated(
    share: RankShare, seeds: Tensor, comm: Communicator, hops: int
) -> tuple[SampledGraph, Tensor, dict[str, Any]]:
    """The graph that seeds, rows of the whole one, reach; their numbers in it. Collective.

    Rows of the outermost vertices are not there; their degrees are those of the whole graph.
    """
    ranks = RankGraph.build(share, comm)
    nodes, frontier = seeds, seeds
    rows, received = [], 0
    for _ in range(hops):
        before = comm.ledger.of("alltoall").received_bytes
        requests = Requests(frontier, ranks.layout, comm)
        block = requests.respond(take_rows(ranks.block, requests.requested))
        received += comm.ledger.of("alltoall").received_bytes - before
        assert isinstance(block, CSR)
        rows.append((frontier, block))
        reached = block.indices.long().unique()
        frontier = reached[~torch.isin(reached, nodes)]
        nodes = torch.cat((nodes, frontier))
    nodes = nodes.sort().values
    arrive, metadata = ranks.fetch(nodes)
    x = arrive()
    A = _rows_of(nodes, rows, weighted=ranks.block.values is not None)
    vertices = {"n_id": metadata.ids} | ({} if metadata.y is None else {"y": metadata.y})
    graph = SampledGraph(
        name=share.meta.name,
        pattern=A.pattern,
        x=x if isinstance(x, CSR) else MemoryRows(x),
        vertices=vertices,
        edges={} if A.values is None else {"edge_weight": A.values},
        vertex_ids=metadata.ids,
        known_degrees=metadata.degrees,
    )
    counts = torch.zeros(comm.size, dtype=torch.int64)
    counts[comm.rank] = len(nodes)
    comm.all_reduce(counts).wait()
    report = {
        "vertices": counts.tolist(),
        "factor": int(counts.sum()) / share.layout.rows,
        "bytes": comm.agree(A.nbytes + x.nbytes, "sum"),
        "received_bytes": comm.agree(received + ranks.counts.bytes_read, "sum"),
    }
    return graph, torch.searchsorted(nodes, seeds), report


def _rows_of(nodes: Tensor, rows: Sequence[tuple[Tensor, CSR]], *, weighted: bool) -> CSR:
    """A square matrix of some vertices, rising, of rows of some of them; others are empty."""
    lengths = torch.zeros(len(nodes), dtype=torch.int64)
    places = torch.cat([torch.searchsorted(nodes, some) for some, _ in rows])
    own = torch.cat([block.row_lengths for _, block in rows])
    lengths[places] = own
    # Entries in the order of their rows.
    order = places.repeat_interleave(own).argsort(stable=True)
    columns = torch.searchsorted(nodes, torch.cat([block.indices.long() for _, block in rows]))
    n = len(nodes)
    pattern = Pattern.trusted(offsets_of(lengths), columns[order].to(index_dtype(n)), (n, n))
    if not weighted:
        return CSR(pattern)
    values = torch.cat([block.values for _, block in rows if block.values is not None])
    return CSR(pattern, values[order])
