"""Steps in which every rank of a distributed graph gets a batch of its own, sampled together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches.batch import Batch
from spgnn.addons.batches.growth import ClusterGrowth, RankSampler, Sampled
from spgnn.addons.batches.modes import BatchOptions, Mode, Strategy
from spgnn.addons.batches.rank_graph import Boundary, Metadata, RankGraph, mask_of
from spgnn.addons.batches.remote_rows import take
from spgnn.addons.batches.sampled_graph import GraphTables
from spgnn.addons.batches.sampling import Draw, Sample, SampleCounts, union_of
from spgnn.addons.batches.threads import in_turns, last
from spgnn.comm import Communicator
from spgnn.data import RankShare
from spgnn.errors import InputError
from spgnn.hashing import uniform
from spgnn.nn import UNKNOWN
from spgnn.options import Record, key
from spgnn.partition import partition
from spgnn.sparse import CSR

Inputs = tuple[Tensor, Tensor]
"""Seeds of a batch, rows of the whole graph, and what the batch calls them."""
Finish = Callable[[], list[Batch | None]]


def seed_order(ids: Tensor, seed: int, epoch: int, clusters: Tensor | None = None) -> Tensor:
    """Places of some vertices in the order of an epoch, which original ids alone decide.

    With `clusters`, an int64 of each, vertices of one follow each other.
    """
    keys = [ids.numpy(), uniform(ids.numpy(), seed, f"order of epoch {epoch}")]
    if clusters is not None:
        keys += [clusters.numpy(), uniform(clusters.numpy(), seed, f"clusters of epoch {epoch}")]
    return torch.from_numpy(np.lexsort(keys))


def steps_of(inputs: int, batch_size: int, ranks: int, *, drop_last: bool) -> int:
    """Steps of an epoch; each is a batch of every rank (the last perhaps not)."""
    full, rest = divmod(inputs, batch_size * ranks)
    return full + (rest > 0 and not drop_last)


class RankBatches(Strategy):
    """Batches of a graph whose ranks hold their own rows alone; calls are collective.

    Several steps are sampled at once, hop by hop; features, labels and ids of all their vertices
    come in one exchange, each row once. With prefetching the next steps are sampled before these
    are handed over: their dense features travel in the meantime, and this rank's own part of
    sampling runs in a thread. As many superbatches are under way as sampling has steps, two a hop.
    """

    def __init__(
        self,
        ranks: RankGraph,
        sampler: RankSampler,
        steps: int,
        inputs: Callable[[int], list[Inputs | None]],
        options: BatchOptions,
        *,
        is_whole: bool = False,
    ) -> None:
        self.ranks, self.sampler, self.steps, self.inputs = ranks, sampler, steps, inputs
        self.options, self.is_whole = options, is_whole
        self.counts, self.sampled = ranks.counts, SampleCounts()

    def epoch(self, epoch: int) -> Iterator[Batch | None]:
        """Batches of this rank; ``None`` in a step that has none for it."""
        inputs, size = self.inputs(epoch), self.options.together.size
        everything = range(self.steps)
        groups = [everything[first : first + size] for first in everything[::size]]
        if not self.options.prefetch:
            for steps in groups:
                yield from last(self._work(epoch, steps, inputs, None))()
            return
        with ThreadPoolExecutor(1, "spgnn-sample") as thread:
            works = (self._work(epoch, steps, inputs, thread) for steps in groups)
            # What is under way writes into memory of ours.
            with closing(in_turns(works, lambda finish: finish())) as ready:
                for finish in ready:
                    yield from finish()

    def batch(self, epoch: int, step: int) -> Batch | None:
        """The batch of this rank in any step."""
        (one,) = last(self._work(epoch, range(step, step + 1), self.inputs(epoch), None))()
        return one

    def _work(
        self,
        epoch: int,
        steps: Sequence[int],
        inputs: Sequence[Inputs | None],
        thread: Executor | None,
    ) -> Generator[None, None, Finish]:
        """The batches of some steps, in steps that are collective, until features are under way."""
        seed = self.options.seed
        chosen = [(step, one) for step in steps if (one := inputs[step]) is not None]
        sampling = self.sampler.sampling(
            [seeds for _, (seeds, _) in chosen],
            [Draw(seed, epoch, step) for step, _ in chosen],
            thread,
        )
        seconds, started = 0.0, perf_counter()
        while True:
            try:
                next(sampling)
            except StopIteration as done:
                samples = done.value
                break
            seconds += perf_counter() - started
            yield
            started = perf_counter()
        some = [one for one, _ in samples if one.seeds]
        self.sampled.add(some, seconds + perf_counter() - started)
        return self._completed(epoch, steps, chosen, samples)

    def _completed(
        self,
        epoch: int,
        steps: Sequence[int],
        chosen: Sequence[tuple[int, Inputs]],
        samples: Sampled,
    ) -> Finish:
        """Fetch what the vertices of some steps' samples are; the result waits. Collective."""
        union, places = union_of([sample.nodes for sample, _ in samples])
        arrive, metadata = self.ranks.fetch(union)

        def finish() -> list[Batch | None]:
            x, batches = arrive(), dict.fromkeys(steps)
            for (step, (_, input_id)), drawn, mine in zip(chosen, samples, places, strict=True):
                rows = metadata.of(mine)
                batches[step] = self._batch(epoch, step, input_id, drawn, rows, take(x, mine))
            return list(batches.values())

        return finish

    def _batch(
        self,
        epoch: int,
        step: int,
        input_id: Tensor,
        drawn: tuple[Sample, Tensor | None],
        rows: Metadata,
        x: Tensor | CSR | None,
    ) -> Batch:
        """A batch of a sample, and of the metadata of its vertices."""
        sample, edges = drawn
        tables = GraphTables(
            vertices={} if rows.y is None else {"y": rows.y},
            edges={} if edges is None else self.ranks.edges.unpacked(edges).columns,
            vertex_ids=rows.ids,
            known_degrees=rows.degrees,
            numbers_edges=False,
        )
        number = step * self.ranks.comm.size + self.ranks.comm.rank
        draw = Draw(self.options.seed, epoch, step, number, epoch * self.steps + step)
        numbered = replace(sample, nodes=torch.arange(len(sample.nodes)), draw=draw)
        batch = Batch(tables, numbered, x, input_id, of_graph=self.options.of_graph)
        batch.n_id = rows.ids
        return batch


def step_inputs(
    rows: Tensor, ids: Tensor, options: BatchOptions, steps: int, shared: Communicator | None
) -> Callable[[int], list[Inputs | None]]:
    """Seeds of each step of an epoch, of vertices that are all ranks' (`shared`) or own ones."""
    size = options.batch_size

    def inputs(epoch: int) -> list[Inputs | None]:
        order = torch.arange(len(rows))
        if options.shuffle:
            order = seed_order(ids, options.seed, epoch)
        parts = []
        for step in range(steps):
            number = step if shared is None else step * shared.size + shared.rank
            mine = order[number * size : (number + 1) * size]
            full = len(mine) == size or not options.drop_last
            parts.append((rows[mine], ids[mine]) if len(mine) and full else None)
        return parts

    return inputs


class Exact(Mode):
    """The batches of one process."""

    samplers = None
    own_seeds: ClassVar[bool] = False

    def strategy(self, share: RankShare, comm: Communicator, options: BatchOptions) -> RankBatches:
        """The batches of this rank. Collective."""
        options.check_agreement(comm, own_seeds=self.own_seeds)
        own = mask_of(share, options.input_nodes, comm)
        ranks = RankGraph.build(share, comm)
        draws: dict[str, Any] = {"replace": options.replace, "resample": options.resample}
        sampler = RankSampler(ranks, str(options.sampler), options.num_neighbors, **draws)
        size = options.batch_size
        if self.own_seeds:
            rows, ids = own.nonzero()[:, 0] + ranks.boundary.first, ranks.metadata.ids[own]
            steps = comm.agree(steps_of(len(rows), size, 1, drop_last=options.drop_last))
        else:
            rows, ids = ranks.inputs(own)
            steps = steps_of(len(rows), size, comm.size, drop_last=options.drop_last)

        inputs = step_inputs(rows, ids, options, steps, None if self.own_seeds else comm)
        return RankBatches(ranks, sampler, steps, inputs, options, is_whole=not self.own_seeds)


class OwnSeeds(Exact):
    """Exact batches of each rank's own seeds, which move less, as in DistDGL."""

    @dataclass(frozen=True)
    class Keys(Record):
        """Its options."""

        section = "distribution"
        seeds: Annotated[
            Literal["all", "own"],
            key(
                "exact: where a rank's batches begin; own: at its part's training vertices, which "
                "moves less, as in DistDGL; all: at anyone's, as on one process"
            ),
        ] = "all"

    keys = Keys
    extends = "exact"
    own_seeds = True

    @classmethod
    def describe(cls, batches: str, options: Any, ranks: int) -> str:
        """In words."""
        return f"{batches} of their own"


@dataclass(frozen=True)
class Clusters(Record, Mode):
    """Batches of whole clusters of each rank's part of the graph, with their boundary."""

    section = "distribution"
    clusters: Annotated[int, key("of each rank's part", low=1)] = 16
    clusters_a_batch: Annotated[int, key("of --distributed cluster", low=1)] = 1
    boundary: Annotated[int, key("hops around clusters that belong to a batch", "HOPS")] = 1

    @classmethod
    def of(cls, options: Any, model: Any) -> Clusters:
        """From options of the training command."""
        return cls(options.clusters, options.clusters_a_batch, options.boundary)

    @classmethod
    def describe(cls, batches: str, options: Any, ranks: int) -> str:
        """In words."""
        return (
            f"{options.clusters_a_batch} of {options.clusters} clusters × {ranks} and "
            f"{options.boundary} hops around them"
        )

    def strategy(self, share: RankShare, comm: Communicator, options: BatchOptions) -> RankBatches:
        """Steps that have no clusters left for a rank are its last. Collective."""
        layers = len(options.num_neighbors)
        options.check_agreement(comm, clusters=self)
        mask, y = share.data.train_mask, share.data.y
        if mask is None or y is None:
            raise InputError(f"{share.meta.name}: cluster batches need labels and a training mask")
        y = y.clone()
        y[~mask] = float("nan") if y.is_floating_point() else UNKNOWN
        ranks = RankGraph.build(replace(share, data=replace(share.data, y=y)), comm)
        growth = partial(ClusterGrowth, hops=self.boundary + 1, layers=layers)
        sampler = RankSampler(ranks, "neighbor", [-1] * (self.boundary + 1), growth=growth)
        labels = cluster_labels(ranks.block, ranks.boundary, self.clusters, options.seed)
        sizes = torch.bincount(labels).tolist()
        members = [part for part in labels.argsort(stable=True).split(sizes) if len(part)]
        steps = comm.agree(-(-len(members) // self.clusters_a_batch))

        def inputs(epoch: int) -> list[Inputs | None]:
            numbers, each = np.arange(len(members), dtype=np.int64), self.clusters_a_batch
            drawn = uniform(numbers, options.seed, f"clusters {epoch}")
            order = [members[one] for one in drawn.argsort(kind="stable").tolist()]
            parts: list[Inputs | None] = [None] * steps
            for step, first in enumerate(range(0, len(order), each)):
                own = torch.cat(order[first : first + each])
                parts[step] = own + ranks.boundary.first, own
            return parts

        return RankBatches(ranks, sampler, steps, inputs, replace(options, superbatch=1))


Clusters.keys = Clusters


def cluster_labels(block: CSR, boundary: Boundary, count: int, seed: int = 0) -> Tensor:
    """Clusters, int64 [own rows], of a rank's own vertices, without communication."""
    if not boundary.own:
        return torch.zeros(0, dtype=torch.int64)
    compact = CSR(boundary.compact(block)).to_scipy()[:, : boundary.own]
    labels, _ = partition(compact, count, seed=seed, balance=("vertices",), minimum=False)
    return torch.from_numpy(labels).long()
