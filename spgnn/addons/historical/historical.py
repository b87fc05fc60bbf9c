"""Batches of a rank's own part of a graph: alone, or with stale embeddings of the halo."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor

from spgnn.addons.batches import (
    Batch,
    BatchOptions,
    Draw,
    GraphTables,
    Hop,
    Metadata,
    Mode,
    RankGraph,
    RankSampler,
    Requests,
    RowEntries,
    RowRequests,
    Sample,
    SampleCounts,
    Strategy,
    in_order,
    mask_of,
    offsets_of,
    relabel,
    rows_of_ranks,
    seed_order,
    take,
)
from spgnn.addons.historical.stale import EmbeddingCache, HaloFeatures, LayerRows, Push
from spgnn.comm import Communicator
from spgnn.command import LARGEST
from spgnn.data import RankShare
from spgnn.errors import InputError, check_choice
from spgnn.files import digest
from spgnn.graph import Block, block_pattern
from spgnn.nn import Stack
from spgnn.options import Record, flag, key
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

Misses = Literal["drop", "fetch"]
PAPER = "1000000,2,1,2000,features"  # section 4.4 of DistGNN-MB: cs, ls, d, nc


class Local(Mode):
    """Batches of a rank's own part; nothing is known of others' vertices."""

    @classmethod
    def check(cls, config: Any) -> None:
        """Each layer's rows must be those of the layer before alone."""
        if config.model.jk != "none":
            raise InputError(f"--distributed {config.distribution.distributed} needs --jk none")

    @classmethod
    def describe(cls, batches: str, options: Any, ranks: int) -> str:
        """In words."""
        return f"{batches} (local)"

    def strategy(self, share: RankShare, comm: Communicator, options: BatchOptions) -> PartBatches:
        """The batches of this rank. Collective."""
        return PartBatches(share, comm, options)


@dataclass(frozen=True)
class History(Local):
    """Stale embeddings of other ranks' vertices: how many are kept, and how they get there."""

    @dataclass(frozen=True)
    class Keys(Record):
        """Its options."""

        section = "distribution"
        historical: Annotated[
            str | None,
            flag(
                "rows of each layer's cache; iterations that a row lives, and after which it may "
                "be used; most rows sent to a peer for each layer; features: push them too. paper: "
                "DistGNN-MB's 1000000,2,1,2000,features",
                "SIZE,LIFE,DELAY,PUSH",
            ),
        ] = None
        misses: Annotated[
            Literal["drop", "fetch"], key("rows that are not in a cache: left out, or made here")
        ] = "drop"
        past: Annotated[
            Literal["float32", "bfloat16"], key("of historical rows, sent and kept")
        ] = "float32"

    keys = Keys
    size: int  # rows of each layer's cache
    life: int  # iterations after its arrival that a row may be used in
    delay: int  # rows of iteration k are used from iteration k + delay on, at least 1
    push: int  # most rows a peer, layer and iteration; of more, a sample by degree
    misses: Misses = "drop"  # rows in no cache: left out with their edges, or made here
    dtype: torch.dtype = torch.float32  # of the rows that are sent and kept
    features: bool = False  # pushed too, and age, as in the paper; else fetched once
    widths: Sequence[int] = ()  # of each layer's outputs but the last's: `hidden_widths`

    def __post_init__(self) -> None:
        check_choice("misses", self.misses, get_args(Misses))

    @classmethod
    def of(cls, options: Any, model: Any) -> History:
        """From options of the training command."""
        dtype = torch.bfloat16 if options.past == "bfloat16" else torch.float32
        return cls.parse(options.historical, options.misses, dtype, hidden_widths(model))

    @classmethod
    def check(cls, config: Any) -> None:
        """As of local batches; and the rows must be described."""
        text = config.options.historical
        if text is None:
            raise InputError("--distributed historical and --historical need each other")
        cls.parse(text)
        super().check(config)

    @classmethod
    def describe(cls, batches: str, options: Any, ranks: int) -> str:
        """In words."""
        rows = f"{options.historical}, {options.misses}, {options.past}"
        return f"{batches}, stale rows {rows} (historical)"

    def strategy(self, share: RankShare, comm: Communicator, options: BatchOptions) -> PartBatches:
        """The batches of this rank. Collective."""
        return PartBatches(share, comm, options, self)

    @classmethod
    def parse(
        cls,
        text: str,
        misses: Misses = "drop",
        dtype: torch.dtype = torch.float32,
        widths: Sequence[int] = (),
    ) -> History:
        """From ``SIZE,LIFE,DELAY,PUSH[,features]`` or ``paper``; an InputError says what is wrong.

        ``paper`` are the settings of DistGNN-MB's section 4.4. Without ``features`` those of the
        halo are fetched once: unlike embeddings they never change, and are then never missed.
        """
        words = (PAPER if text == "paper" else text).split(",")
        features = words[4:] == ["features"]
        numbers = words[:4] if features else words
        if len(numbers) != 4 or not all(word.strip().isdecimal() for word in numbers):
            raise InputError(
                f"--historical {text}: SIZE,LIFE,DELAY,PUSH[,features], or paper: {PAPER}"
            )
        size, life, delay, push = map(int, numbers)
        if delay < 1:
            raise InputError(f"--historical {text}: DELAY must be at least 1")
        if max(size, life, delay, push) > LARGEST:
            raise InputError(f"--historical {text}: numbers must be at most {LARGEST}")
        return cls(size, life, delay, push, misses, dtype, features, tuple(widths))


@dataclass(frozen=True, eq=False)
class PartialHop:
    """The sampled matrix of one layer; some of its columns are rows of a cache."""

    nodes: Tensor  # int64 [m]: vertices of its columns, its rows first
    num_required: int  # columns that the layer before has to make, or whose features are needed
    slots: Tensor  # int64 [m − num_required]: of the others in the layer's cache
    order: Tensor | None  # which of the rows [fresh, cached] each column is; None: in order
    hop: Hop  # its rows and columns; weights of the sampler
    edges: Metadata | None  # what is known of its edges

    @property
    def required(self) -> Tensor:
        """Vertices that the layer before has to make."""
        if self.order is None:
            return self.nodes[: self.num_required]
        return self.nodes[self.order < self.num_required]

    def join(self, fresh: Tensor, stale: Tensor) -> Tensor:
        """All columns, of fresh ones and those of the cache."""
        rows = torch.cat((fresh, stale.to(fresh.dtype)))
        return rows if self.order is None else rows[self.order]


class PartialBlock(Block):
    """A block some of whose columns are rows of a cache: the layer before makes the others."""

    def __init__(self, complete: Callable[[Tensor], Tensor], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.complete = complete


_Sampled = tuple[list[PartialHop], Tensor, Draw]
"""The layers of a batch, which inputs its seeds are, and its draw."""


class PartBatches(Strategy):
    """Batches of each rank's own vertices (DistGNN-MB, Vasimuddin et al. 2022). Collective."""

    def __init__(
        self,
        share: RankShare,
        comm: Communicator,
        options: BatchOptions,
        history: History | None = None,
    ) -> None:
        hops = len(options.num_neighbors)
        if history is not None and len(history.widths) != hops - 1:
            raise InputError(f"{hops} hops need {hops - 1} widths, got {len(history.widths)}")
        options.check_agreement(comm, history=history)
        self.history, self.options, self._comm = history, options, comm
        self._fetches = history is not None and history.misses == "fetch"
        mask = mask_of(share, options.input_nodes, comm)
        self.ranks = ranks = RankGraph.build(share, comm)
        self.counts, self.sampled = ranks.counts, SampleCounts()
        self._inputs = mask.nonzero()[:, 0]
        self.steps = comm.agree(-(-len(self._inputs) // options.batch_size))
        draws: dict[str, Any] = {"replace": options.replace, "resample": options.resample}
        self.sampler = RankSampler(ranks, "neighbor", options.num_neighbors, **draws)
        self.caches: list[HaloFeatures | EmbeddingCache] = []  # of each layer's inputs
        self._embeddings: list[EmbeddingCache] = []  # those of rows that are pushed
        self.push: Push | None = None
        if history is not None:
            self._make_caches(history, mask)
        self._around = ranks.around.packed()
        self._outputs: list[LayerRows] = []
        self.iteration = 0

    def _make_caches(self, history: History, seeds: Tensor) -> None:
        ranks, pushed = self.ranks, list(history.widths)
        halo, life = len(ranks.boundary.halo), history.life + history.delay
        if history.features:
            if isinstance(ranks.x, CSR):
                raise InputError("--historical: features are pushed if dense, and these are sparse")
            pushed.insert(0, ranks.x.shape[1])
        else:
            self.caches = [HaloFeatures(ranks, seeds, self.sampler.hops, history.size)]
        self._first_pushed = len(self.caches)
        self._embeddings = [
            EmbeddingCache(halo, width, history.size, life, history.dtype) for width in pushed
        ]
        self.caches += self._embeddings
        how = {"delay": history.delay, "most": history.push, "seed": self.options.seed}
        how["pause"] = max(history.life // 2, 1)  # a row that is there lives on for a while
        ids, degrees = ranks.metadata.ids, ranks.block.row_lengths
        more: dict[str, Any] = {"ids": ids, "degrees": degrees, "comm": self._comm, **how}
        self.push = Push(ranks.boundary, pushed, history.dtype, **more)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Batches of this rank."""
        size, seed = self.options.batch_size, self.options.seed
        order = torch.arange(len(self._inputs))
        if self.options.shuffle:
            order = seed_order(self.ranks.metadata.ids[self._inputs], seed, epoch)
        first = self.iteration

        def sample(step: int) -> _Sampled:
            number = step * self._comm.size + self._comm.rank
            draw = Draw(seed, epoch, step, number, epoch * self.steps + step)
            inputs = self._inputs[order[step * size : (step + 1) * size]]
            started = perf_counter()
            seeds = inputs + self.ranks.boundary.first
            hops = self.sample(seeds, draw, first + step)
            sample = Sample(hops[0].nodes, len(seeds), [hop.hop for hop in hops])
            self.sampled.add([sample], perf_counter() - started)
            return hops, inputs, draw

        def finish(sampled: Sequence[_Sampled]) -> Generator[Batch, None, None]:
            yield from (self.batch(*one) for one in sampled)

        # Neither stale rows nor other ranks may have a say in what is made ahead.
        ahead = self.options.prefetch if self.history is None else 0
        batches = in_order(sample, finish, self.steps, threads=1 if ahead else 0, ahead=ahead)
        with closing(batches):
            for _ in range(self.steps):
                now, self.iteration = self.iteration, self.iteration + 1
                self._clocked(self.begin, now)
                yield next(batches)
                self._clocked(self.end, now)

    def begin(self, iteration: int) -> None:
        """Take in the rows that may be used from this iteration on. Collective."""
        if self.push is None:
            return
        for number, then, halo, rows in self.push.arrived(iteration):
            self._embeddings[number].put(halo, rows, then)
            if self._first_pushed + number == 0:
                self.ranks.counts.add(rows_read=len(rows), bytes_read=rows.nbytes)
        none = torch.zeros(0, dtype=torch.int64)
        self._outputs = [(none, cache.rows(none)) for cache in self._embeddings]

    def end(self, iteration: int) -> None:
        """Send the rows that this iteration made. Collective."""
        if self.push is not None:
            self.push.begin(iteration, self._outputs)

    def _clocked(self, pushing: Callable[[int], None], iteration: int) -> None:
        ledger = self._comm.ledger
        traffic, started = ledger.of("alltoall"), ledger.clock()
        blocked = traffic.seconds
        pushing(iteration)
        seconds = ledger.clock() - started
        if self.push is not None:
            self.pushed = self.pushed[0] + seconds, self.pushed[1] + traffic.seconds - blocked

    def close(self) -> None:
        """Wait for rows that are still on their way, when training is over. Collective."""
        if self.push is not None:
            self.push.drain()

    def state(self) -> dict[str, Any]:
        """Stale rows of this rank, and those that are on their way; nothing without a history."""
        if self.push is None:
            return {}
        return {
            "vertices": self._vertices,
            "iteration": self.iteration,
            "caches": [cache.state() for cache in self._embeddings],
            "push": self.push.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state` of this rank. Collective."""
        assert self.push is not None

        def check() -> None:
            if state.get("vertices") != self._vertices:
                raise InputError("its stale rows are of another partition")

        self._comm.on_every_rank(check)
        self.iteration = state["iteration"]
        for cache, rows in zip(self._embeddings, state["caches"], strict=True):
            cache.load(rows)
        self.push.load(state["push"])

    @property
    def _vertices(self) -> str:
        """A fingerprint of the vertices whose rows lie here, or are asked for."""
        ids = self.ranks.metadata.ids
        return digest(ids.numpy().tobytes(), self.ranks.boundary.halo.numpy().tobytes())

    def sample(self, seeds: Tensor, draw: Draw, iteration: int) -> list[PartialHop]:
        """The layers of one batch, the outermost first. Collective if misses are fetched."""
        asking = RowRequests(self.sampler, [draw]) if self._fetches else None
        hops: list[PartialHop] = []
        targets, count = seeds, self.sampler.hops
        for number in range(count):
            if asking is None:
                drawn = self.sampler.own(targets - self.ranks.boundary.first, number, draw)
            else:
                (drawn,) = asking.rows_of([targets], number)
            layer = count - 1 - number
            cache = self.caches[layer] if self.caches else None
            hops.append(self._hop(targets, drawn, cache, iteration))
            targets = hops[-1].required
        return hops[::-1]

    def complete(self, layer: int, hop: PartialHop, fresh: Tensor) -> Tensor:
        """Columns of a layer, [m, f]: outputs of the layer before, and stale rows, constants."""
        if not self.caches:
            return fresh
        self._keep_for_push(layer, hop, fresh)
        stale = self.caches[layer].rows(hop.slots)
        assert isinstance(stale, Tensor)
        return hop.join(fresh, stale)

    def _keep_for_push(self, layer: int, hop: PartialHop, fresh: Tensor) -> None:
        """Note inputs of a layer, those of own vertices, for its peers."""
        own = self.ranks.boundary.is_own(hop.required)
        vertices = hop.required[own] - self.ranks.boundary.first
        self._outputs[layer - self._first_pushed] = (vertices, fresh.detach()[own])

    def _hop(
        self,
        targets: Tensor,
        drawn: RowEntries,
        cache: EmbeddingCache | HaloFeatures | None,
        iteration: int,
    ) -> PartialHop:
        """A sampled hop without the vertices that are neither made here nor cached."""
        boundary = self.ranks.boundary
        nodes, indices = relabel(targets, drawn.indptr, drawn.columns)
        others = (~boundary.is_own(nodes)).nonzero()[:, 0]
        halo = boundary.number(nodes[others])
        slots = torch.full_like(nodes, -1)
        if cache is not None:
            slots[others[halo >= 0]] = cache.find(halo[halo >= 0], iteration)
        fresh = slots < 0
        if not self._fetches:
            fresh[others] = False
        # The targets come first, and otherwise those that are made.
        first, second = fresh.nonzero()[:, 0], (slots >= 0).nonzero()[:, 0]
        columns, order = torch.cat((first, second)), None
        if bool((slots[: len(targets)] >= 0).any()):
            after = len(targets) + torch.arange(len(columns))
            order = torch.where(columns < len(targets), columns, after).argsort()
            columns = columns[order]
        place = torch.full_like(nodes, -1)
        place[columns] = torch.arange(len(columns))
        indices = place[indices.long()]
        stays = indices >= 0
        before = offsets_of(stays)
        weights = None if drawn.weights is None else drawn.weights[stays]
        hop = Hop(before[drawn.indptr], indices[stays].int(), None, weights, len(columns))
        packed = drawn.edges
        edges = None if packed is None else self.ranks.edges.unpacked(packed[stays])
        stale = slots[columns]
        return PartialHop(nodes[columns], len(first), stale[stale >= 0], order, hop, edges)

    def batch(self, hops: list[PartialHop], inputs: Tensor, draw: Draw) -> Batch:
        """The batch of some layers. Collective if misses are fetched."""
        metadata = self._metadata([hop.nodes for hop in hops])
        layers = list[Block]()
        for number, (hop, rows) in enumerate(zip(hops, metadata, strict=True)):
            block = PartialBlock(
                partial(self.complete, number, hop),
                block_pattern(hop.hop.indptr, hop.hop.indices, hop.hop.sources),
                rows.ids,
                edge_weight=None if hop.edges is None else hop.edges.edge_weight,
                attributes=None if hop.edges is None else hop.edges.columns,
                factors=hop.hop.weights,
                degrees=partial(getattr, rows, "degrees") if self.options.of_graph else None,
            )
            layers.append(block)
        first = metadata[0]
        vertices = {} if first.y is None else {"y": first.y}
        tables = GraphTables(vertices=vertices, edges={}, vertex_ids=first.ids)
        # Of its layers each has columns of its own.
        sample = Sample(torch.arange(len(first.ids)), len(inputs), [], draw=draw)
        batch = Batch(tables, sample, self._features(hops[0]), inputs)
        batch.n_id, batch.layers = first.ids, layers
        return batch

    def _features(self, hop: PartialHop) -> Tensor | CSR:
        """Features of own vertices, of those kept of the halo, and of those that are fetched."""
        ranks, required = self.ranks, hop.required
        if self._fetches:
            fresh = rows_of_ranks(ranks.x, required, ranks.layout, self._comm)
        else:
            fresh = take(ranks.x, required - ranks.boundary.first)
        ranks.count(required, fresh)
        if not self.caches:
            return fresh
        cached = self.caches[0].rows(hop.slots)
        if isinstance(fresh, Tensor) and isinstance(cached, Tensor):
            if self._first_pushed == 0:
                self._keep_for_push(0, hop, fresh)
            cached = cached.to(fresh.dtype)
        ranks.counts.add(rows_needed=len(hop.slots), bytes_needed=cached.nbytes)
        rows = _stack(fresh, cached)
        return rows if hop.order is None else take(rows, hop.order)

    def _metadata(self, nodes: Sequence[Tensor]) -> list[Metadata]:
        """Metadata of the vertices of each layer."""
        ranks, listed = self.ranks, torch.cat(list(nodes))
        own, number = ranks.boundary.is_own(listed), ranks.boundary.number(listed)
        place = torch.where(own, listed - ranks.boundary.first, number + ranks.boundary.own)
        near = own | (number >= 0)
        if self._fetches:
            rows = self._around.new_empty(len(listed), self._around.shape[1])
            rows[near] = self._around[place[near]]
            requests = Requests(listed[~near], ranks.layout, self._comm)
            others = requests.respond(ranks.metadata.packed()[requests.requested])
            assert isinstance(others, Tensor)
            rows[~near] = others
        else:
            rows = self._around[place]
        return [ranks.metadata.unpacked(part) for part in rows.split([len(n) for n in nodes])]

    def report(self) -> dict[str, Any]:
        """Hit rates of the inputs of layers 0 (features), 1, 2, …, and ages. Collective."""
        if self.push is None:
            return {"historical": None}
        hits = [cache.hits for cache in self.caches]
        counted = torch.tensor([[h.requested, h.hits, h.ages] for h in hits])
        self._comm.all_reduce(counted).wait()
        pushed = torch.tensor([self.push.sent_bytes])
        self._comm.all_reduce(pushed).wait()
        totals = counted.tolist()
        return {
            "historical": {
                "hit_rate": [hits / rows if rows else None for rows, hits, _ in totals],
                "mean_age": [ages / hits if hits else None for _, hits, ages in totals],
                "rows_asked": [rows for rows, _, _ in totals],
                "pushed_bytes": int(pushed),
            }
        }


def _stack(above: Tensor | CSR, below: Tensor | CSR) -> Tensor | CSR:
    """The rows of two tables of one width and kind, one after the other."""
    if isinstance(above, Tensor) and isinstance(below, Tensor):
        return torch.cat((above, below))
    assert isinstance(above, CSR)
    assert isinstance(below, CSR)
    indptr = torch.cat((above.indptr, below.indptr[1:] + above.nnz))
    shape = (above.shape[0] + below.shape[0], above.shape[1])
    values = None
    if above.values is not None and below.values is not None:
        values = torch.cat((above.values, below.values))
    return CSR(Pattern.trusted(indptr, torch.cat((above.indices, below.indices)), shape), values)


def hidden_widths(model: Stack) -> list[int]:
    """The width of each layer's outputs but the last's; an InputError for jumping knowledge."""
    if model.jk_mode is not None:
        raise InputError("historical rows: jumping knowledge (--jk) looks at all layers at once")
    hidden = model.hidden_channels
    return [hidden] * (model.num_layers - 1) if isinstance(hidden, int) else list(hidden)
