"""What one rank of a distributed graph has to know to make batches, and what it asks others for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spgnn.comm import Communicator, on_every_rank
from spgnn.data.distribute import RankShare
from spgnn.errors import InputError
from spgnn.graph import DistGraph
from spgnn.layout import RowLayout
from spgnn.minibatch.boundary import Boundary
from spgnn.minibatch.exact import DistributedSampler
from spgnn.minibatch.facts import Facts, loops_of
from spgnn.minibatch.fastgcn import FastGCNHops
from spgnn.minibatch.gathered import GatheringSampler
from spgnn.minibatch.questions import Questions, Table, answered, answered_later, taken
from spgnn.sampling import NeighborSampler
from spgnn.sparse import CSR
from spgnn.store import Counts

Fetched = Callable[[], Tensor | CSR]


@dataclass(frozen=True, eq=False)
class RankGraph:
    """One rank's rows of a graph, with what mini-batches need of the others.

    Attributes
    ----------
    block : CSR [own rows, n]
    x : Tensor, CSR or Rows [own rows, f]
    facts : Facts
        Of own vertices.
    around : Facts
        Of own vertices and of those of the halo.
    boundary : Boundary
    layout : RowLayout
    comm : Communicator
        All ranks.
    counts : Counts
        Rows of features that were asked for, and those that came from other ranks.
    """

    block: CSR
    x: Table
    facts: Facts
    around: Facts
    boundary: Boundary
    layout: RowLayout
    comm: Communicator
    counts: Counts = field(default_factory=Counts)

    @classmethod
    def of(
        cls, graph: DistGraph | RankShare, comm: Communicator, x: Table | None = None
    ) -> RankGraph:
        """Of a distributed graph. Collective.

        Parameters
        ----------
        graph : DistGraph or RankShare
        comm : Communicator
            All ranks.
        x : Tensor, CSR or Rows [own rows, f], optional
            Features of the own vertices, in the place of the graph's.

        Raises
        ------
        InputError
            On all ranks, if there are no features.
        """
        share = graph.share if isinstance(graph, DistGraph) else graph

        def features() -> Table:
            found = share.data.x if x is None else x
            if found is None or share.adjacency is None:
                raise InputError(f"{share.meta.name}: mini-batches need features and the adjacency")
            return found

        table = on_every_rank(comm, features)
        block = share.adjacency
        assert block is not None
        first = share.layout.range(comm.rank)[0]
        loops = bool(comm.agree(int(loops_of(block, first).any())))
        boundary = Boundary.found(block, share.layout, comm)
        facts = Facts.of_share(share, comm.rank, loops=loops)
        around = facts.unpacked(boundary.of_columns(facts.packed(), comm))
        return cls(block, table, facts, around, boundary, share.layout, comm)

    def sampler(
        self,
        num_neighbors: Sequence[int],
        *,
        replace: bool = False,
        threads: int | None = None,
    ) -> DistributedSampler:
        """What draws neighbours of any vertex of the graph."""
        values = self.block.values
        drawing = NeighborSampler(
            self.boundary.compact(self.block),
            list(num_neighbors),
            replace=replace,
            edge_ids=values is not None,
            vertex_ids=self.around.ids,
            threads=threads,
        )
        return DistributedSampler(drawing, self.boundary, self.layout, self.comm, edges=values)

    def named_sampler(
        self, name: str, num_neighbors: Sequence[int], *, replace: bool = False
    ) -> DistributedSampler | GatheringSampler:
        """That, or another sampler. Collective.

        All but neighbor draw anew in each hop.

        Raises
        ------
        InputError
            If an argument is wrong.
        """
        if name == "neighbor":
            return self.sampler(num_neighbors, replace=replace)
        if replace:
            raise InputError(f"sampler {name} knows no replace")
        if name == "fastgcn":
            return self._fastgcn(num_neighbors)
        return GatheringSampler(
            name,
            num_neighbors,
            self.block,
            self.boundary,
            ids=self.around.ids,
            layout=self.layout,
            comm=self.comm,
        )

    def _fastgcn(self, numbers: Sequence[int]) -> DistributedSampler:
        drawing = FastGCNHops(
            numbers,
            self.block,
            self.boundary,
            ids=self.around.ids,
            layout=self.layout,
            comm=self.comm,
        )
        values = self.block.values
        return DistributedSampler(
            drawing, self.boundary, self.layout, self.comm, edges=values, weighted=True
        )

    def fetched(self, rows: Tensor, *, later: bool = False) -> tuple[Fetched, Facts]:
        """Features and facts of any vertices, in one exchange. Collective.

        Parameters
        ----------
        rows : Tensor int64 [k]
            Of the whole graph; each is fetched as often as it is named.
        later : bool
            Whether dense features may still be under way.

        Returns
        -------
        x : callable
            Waits for the features, Tensor or CSR [k, f].
        facts : Facts
        """
        questions = Questions(rows, self.layout, self.comm)
        answer = taken(self.x, questions.asked)
        begun = answered_later(questions, answer) if later else None
        there = None if later else answered(questions, answer)

        def arrived() -> Tensor | CSR:
            x = begun() if begun is not None else there
            assert x is not None
            self.count(rows, x)
            return x

        facts = questions.answered(self.facts.packed()[questions.asked])
        return arrived, self.facts.unpacked(facts)

    def count(self, rows: Tensor, x: Tensor | CSR) -> None:
        """Rows of features are there, each needed once."""
        row_bytes = x.nbytes / max(len(rows), 1)
        remote = int((~self.boundary.is_own(rows)).sum())
        self.counts.add(
            rows_needed=len(rows),
            bytes_needed=x.nbytes,
            rows_read=remote,
            bytes_read=int(remote * row_bytes),
        )

    def inputs(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """The input nodes of all ranks, by original id. Collective.

        Parameters
        ----------
        own : Tensor bool [own rows]
            This rank's.

        Returns
        -------
        rows : Tensor int64 [inputs]
            Of the whole graph.
        ids : Tensor int64 [inputs]
        """
        rows = own.nonzero()[:, 0]
        mine = torch.stack((rows + self.boundary.first, self.facts.ids[rows]), 1)
        sizes = torch.zeros(self.comm.size, dtype=torch.int64)
        sizes[self.comm.rank] = len(mine)
        self.comm.all_reduce(sizes).wait()
        everyone = mine.new_empty(int(sizes.sum()), 2)
        self.comm.all_gather(mine, everyone, sizes.tolist())
        everyone = everyone[everyone[:, 1].argsort()]
        return everyone[:, 0].contiguous(), everyone[:, 1].contiguous()


def mask_of(graph: DistGraph | RankShare, input_nodes: Tensor | str, comm: Communicator) -> Tensor:
    """The own vertices that seeds are taken of, bool [own rows]. Collective.

    Parameters
    ----------
    graph : DistGraph or RankShare
    input_nodes : Tensor bool [own rows], or the name of a mask
    comm : Communicator

    Raises
    ------
    InputError
        On all ranks.
    """
    share = graph.share if isinstance(graph, DistGraph) else graph

    def found() -> Tensor:
        mask = (
            getattr(share.data, input_nodes, None) if isinstance(input_nodes, str) else input_nodes
        )
        own = len(share.vertex_ids)
        if not isinstance(mask, Tensor):
            raise InputError(f"input_nodes {input_nodes}: {share.meta.name} has no such mask")
        if mask.dtype != torch.bool or mask.shape != (own,):
            raise InputError(
                f"input_nodes: a mask must be bool [{own}], got {mask.dtype} {list(mask.shape)}"
            )
        return mask.cpu()

    return on_every_rank(comm, found)
