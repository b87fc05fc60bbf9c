"""The tables and figures of the Ginex paper, one command each; docs/guides/feature-store.md.

python experiments/ginex.py compare            three systems end to end: Figures 14 and 15
python experiments/ginex.py sweeps             Figures 16 to 19, predicted from counts of reads
python experiments/ginex.py sweep-superbatch   and -width, -memory, -batch: one each, measured
python experiments/ginex.py stages             where a mapped pipeline waits: Figures 4 and 6
python experiments/ginex.py misses             of a static cache and of the best: Figure 5
python experiments/ginex.py changesets         in three passes, by torch: Figures 12 and 13
python experiments/ginex.py cost               beside DistDGL on eight ranks: Tables 3 and 4
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import systems  # noqa: F401
import torch
from distgnn_mb import DISTDGL, on_rank
from paper.changesets import changesets
from paper.output import Output, can_draw, finished, show
from torch import Tensor

from spgnn import NeighborLoader, _native
from spgnn.addons.batches import Counts, DiskRows, Rows, SampledGraph, Wait, on_disk
from spgnn.addons.diskbatches import (
    BatchTrainer,
    CachedRows,
    Dataset,
    DiskPattern,
    MiniBatchConfig,
    VertexBatches,
    degrees_of,
    hits,
    open_dataset,
)
from spgnn.comm import SoloCommunicator
from spgnn.command import run
from spgnn.data import load_dataset, open_shards, write_shards
from spgnn.data.shards import ShardDirectory
from spgnn.direct import as_bytes
from spgnn.errors import InputError, check_choice
from spgnn.layout import Int64Array
from spgnn.options import Record, flag, positional, read_options
from spgnn.progress import Progress, ProgressBar
from spgnn.testing import run_ranks

PAGE = 4096
# Table 3: dollars an hour of eight nodes of DistDGL, and of Ginex's one; their links.
PRICES, PRICE = {"Friendster": 18.83, "Twitter": 17.94}, 1.36
NODES, GIGABITS = 8, 16
# Of the disk of benchmarks/results/store.md: random reads a second, and bytes.
READS, BANDWIDTH = 90_000, 1.164e9
MEMORY = 10e9  # bytes a second that are copied
SPLITS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the memory for neighbours, as in the paper's section 5.1
SYSTEMS = ("pyg+", "ali+pg", "ginex-pg", "ginex")
SHARES = (0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the features in memory, of Figure 5


@dataclass(frozen=True)
class Options(Record):
    """Options of all figures. Memory is that of both caches together."""

    command: Annotated[str, positional("the figure")]
    output: Annotated[str, flag("where it goes", "DIR")] = "ginex"
    dataset: Annotated[str, flag("the graph; expanded as the paper expands its own", "NAME")] = (
        "expanded-8-coauthor-physics"
    )
    data_dir: Annotated[str | None, flag("where named sets live", "DIR")] = None
    directory: Annotated[str, flag("graph and features lie there for a while", "DIR")] = "."
    width: Annotated[int, flag("float32 numbers a row of features", low=1)] = 256
    model: Annotated[str, flag("sage; or gcn, of two hops in the paper")] = "sage"
    hidden: Annotated[int, flag("small, as a processor computes here, not a GPU", low=1)] = 16
    num_neighbors: Annotated[str, flag("of each vertex, the seeds' hop first", "N,N,…")] = (
        "10,10,10"
    )
    batch_size: Annotated[int, flag("seeds of a batch", low=1)] = 32
    batches: Annotated[int, flag("of an epoch; the second one is measured", low=4)] = 100
    superbatch: Annotated[int, flag("batches that Ginex looks ahead", low=1)] = 100
    features_over_memory: Annotated[int, flag("bytes of one over the other's", low=1)] = 4
    turns: Annotated[int, flag("of which compare shows the median", low=1)] = 1
    seed: Annotated[int, flag("of features, sampling and training")] = 0


class PagedRows(Rows):
    """A table of rows as a mapped file gives it: through the pages of 4 KiB that were used last.

    The page cache of the system grows until it meets the needs of other programs, so ours does not
    take part: pages are read directly, many at once, and the last used ones stay.
    """

    def __init__(self, disk: DiskRows, memory: int) -> None:
        super().__init__(disk.rows, disk.width, disk.dtype)
        pages = -(-disk.rows * disk.row_bytes // PAGE)
        with disk.path.open("r+b") as file:
            file.truncate(pages * PAGE)  # the last page is a whole one
        table = DiskRows(disk.path, 0, pages, PAGE // 8, torch.int64, gap=0)
        self.pages = CachedRows(table, "lru", memory)

    @property
    def counts(self) -> Counts:
        return self.pages.counts

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Wait:
        """Gathers at once."""
        begins = ids * self.row_bytes
        first, last = begins // PAGE, (begins + self.row_bytes - 1) // PAGE
        most = int((last - first).max(initial=0)) + 1
        pages = np.unique(np.minimum(first[:, None] + np.arange(most), last[:, None]))
        held = self.pages.gather(torch.from_numpy(pages))
        # The pages of a row follow each other among the distinct ones as well.
        source = np.searchsorted(pages, first) * PAGE + begins - first * PAGE
        places = np.arange(len(ids)) if places is None else places
        lengths = np.full(len(ids), self.row_bytes)
        _native.copy_stretches(
            as_bytes(held), source, lengths, places * self.row_bytes, as_bytes(out)
        )
        return lambda: None

    def gather_many(self, ids: Sequence[Tensor]) -> Generator[Tensor, None, None]:
        """One after another: nothing is known beforehand."""
        yield from map(self.gather, ids)


class Stages:
    """Seconds of the training thread: in batches' steps, and waiting for batches.

    Ginex makes a superbatch before it trains on its first batch, so what it waits for that one is
    its inspector (samples, changesets) and the switch to the executor.
    """

    def __init__(self, trainer: BatchTrainer, superbatch: int) -> None:
        self.waits, self.compute, self._every = list[float](), 0.0, superbatch
        self._last = 0.0
        trainer.task.model.register_forward_pre_hook(self._begin)
        trainer.optimizer.register_step_post_hook(self._end)

    def restart(self) -> None:
        """An epoch begins."""
        self.waits, self.compute, self._last = [], 0.0, perf_counter()

    def _begin(self, *_: Any) -> None:
        now = perf_counter()
        self.waits.append(now - self._last)
        self._last = now

    def _end(self, *_: Any) -> None:
        now = perf_counter()
        self.compute += now - self._last
        self._last = now

    @property
    def record(self) -> dict[str, float]:
        """Seconds by stage."""
        inspect = sum(self.waits[:: self._every], 0.0) if self._every > 1 else 0.0
        return {
            "inspect": inspect,
            "data preparation": sum(self.waits) - inspect,
            "compute": self.compute,
        }


def clocked(x: Rows) -> list[float]:
    """Have the seconds noted that whoever gathers many rows of a table spends there."""
    seconds, gather_many = list[float](), x.gather_many

    def noted(ids: Sequence[Tensor]) -> Generator[Tensor, None, None]:
        rows = gather_many(ids)
        while True:
            began = perf_counter()
            found = next(rows, None)
            seconds.append(perf_counter() - began)
            if found is None:
                return
            yield found

    x.gather_many = noted  # type: ignore[method-assign]
    return seconds


@dataclass(frozen=True)
class Case:
    """One run: a system and the sizes that it is measured at."""

    system: str
    neighbours: float  # their share of the memory, where it is divided
    width: int
    features_over_memory: int
    batch_size: int
    superbatch: int
    batches: int


class Bench:
    """The graph on a disk, and what runs on it."""

    def __init__(self, options: Options, directory: Path, progress: Progress) -> None:
        self.options, self.progress, self._directory = options, progress, directory
        progress(f"writing {options.dataset}", 0, 1)
        self._graph = directory / "graph"
        graph = replace(load_dataset(options.dataset, options.data_dir, options.seed), x=None)
        write_shards(graph, None, 1, self._graph)
        self.graph, self.vertices, self.edges = graph, graph.vertices, graph.edges
        self.tuned = cache(self._tuned)

    def case(self, system: str, **other: Any) -> Case:
        """As the options say, but for some."""
        how = self.options
        sizes = how.width, how.features_over_memory, how.batch_size, how.superbatch, how.batches
        return replace(Case(system, 0.0, *sizes), **other)

    def memory(self, case: Case) -> int:
        """Bytes of both caches, whatever the width of the case."""
        return self.vertices * self.options.width * 4 // case.features_over_memory

    @contextmanager
    def dataset(self, case: Case) -> Iterator[tuple[MiniBatchConfig, Dataset]]:
        """What the system of a case trains on."""
        how, memory = self.options, self.memory(case)
        parts = int((1 - case.neighbours) * memory), int(case.neighbours * memory)
        flags: dict[str, Any] = {"store": "disk", "structure": "disk"}
        if case.system == "ali+pg":
            flags |= {"cache": parts[0], "structure_cache": parts[1]}
            flags |= {"cache_policy": "degree" if parts[0] else "none"}
            if parts[1]:
                flags["structure_policy"] = "ratio"
        elif case.system != "pyg+":
            policy = "degree" if case.system == "ginex-pg" else "belady"
            flags |= {"cache": memory, "cache_policy": policy}
            flags |= {"superbatch": case.superbatch}
        config = MiniBatchConfig.of(
            dataset=str(self._graph),
            random_features=case.width,
            random_classes=16,
            store_dir=str(self._directory),
            model=how.model,
            hidden=how.hidden,
            num_neighbors=how.num_neighbors,
            batch_size=case.batch_size,
            seed=how.seed,
            **flags,
        )
        config.check(1)
        config = config.settled()
        with open_dataset(config, 1) as dataset:
            graph = dataset.graph
            if case.system == "pyg+":
                graph = self._paged(graph, *parts)
            generator = torch.Generator().manual_seed(how.seed)
            some = torch.randperm(len(dataset.seeds), generator=generator)
            seeds = dataset.seeds[some[: case.batches * case.batch_size]]
            yield config, replace(dataset, graph=graph, seeds=seeds)

    def _paged(self, graph: SampledGraph, features: int, neighbours: int) -> SampledGraph:
        """The same, of pages that were used last."""
        shards, x = open_shards(self._graph), graph.x
        assert isinstance(shards, ShardDirectory)
        assert isinstance(x, DiskRows)
        place = shards.place(0, "indices")
        assert place is not None
        indptr, dtype = graph.pattern.indptr, torch.int32
        pattern = DiskPattern(*place, indptr, self.vertices, dtype=dtype, block_bytes=PAGE)
        if neighbours >= PAGE:
            pattern = pattern.cached("lru", neighbours)
        return replace(on_disk(graph, pattern), x=PagedRows(x, features))

    def run(self, case: Case) -> dict[str, Any]:
        """An epoch in which caches fill, and one that is measured."""
        named = f"{case.system}, {case.neighbours:.0%} of the memory for neighbours"
        with self.dataset(case) as (config, dataset):
            comm = SoloCommunicator()
            trainer = BatchTrainer(VertexBatches(config, comm, dataset), config, comm)
            stages = Stages(trainer, case.superbatch if case.system.startswith("ginex") else 1)
            loader, x, pattern = trainer.task.loader, dataset.graph.x, dataset.graph.pattern
            assert isinstance(x, Rows)
            assert isinstance(pattern, DiskPattern)
            gathering, planning = clocked(x), 0.0
            for epoch in range(2):
                self.progress(named, epoch, 2)
                before = x.counts.record(), pattern.counts.record()
                sampling = loader.sampled.seconds
                stages.restart()
                gathering.clear()
                began, worked = perf_counter(), process_time()
                loss = float(trainer.train_epoch(epoch))
                seconds, worked = perf_counter() - began, process_time() - worked
            after = x.counts.record(), pattern.counts.record()
            if isinstance(x, CachedRows) and x.policy == "belady":
                trace, ahead = list(loader.trace(1)), case.superbatch
                began = perf_counter()
                hits("belady", trace, x.slots, ahead=ahead)
                planning = perf_counter() - began
            rows, blocks = (
                {name: count - then[name] for name, count in now.items()}
                for now, then in zip(after, before, strict=True)
            )
        count = trainer.steps_per_epoch
        reads = sum(table.get("reads", table["rows_read"]) for table in (rows, blocks))
        nbytes = rows["bytes_read"] + blocks["bytes_read"]
        return {
            **vars(case),
            "memory_bytes": self.memory(case),
            "seconds": seconds,
            "processor": worked,
            **stages.record,
            "sample": loader.sampled.seconds - sampling,
            "plan": planning,
            "gather": sum(gathering),
            "miss_rate": 1 - rows["hits"] / max(rows["rows_needed"], 1),
            "neighbours_miss_rate": 1 - blocks["hits"] / max(blocks["rows_needed"], 1),
            "reads": reads / count,
            "megabytes": nbytes / count / 1e6,
            "disk_seconds": max(reads / READS, nbytes / BANDWIDTH),
            "loss": loss,
        }

    def _tuned(self, system: str) -> float:
        """The share of neighbours with which the disk works least, of the paper's five."""
        batches = self.options.batches // 4
        cases = [self.case(system, neighbours=split, batches=batches) for split in SPLITS]
        return min(cases, key=lambda case: float(self.run(case)["disk_seconds"])).neighbours

    @property
    def caption(self) -> str:
        """What a figure says of its data."""
        how = self.options
        return (
            f"{how.dataset}: {self.vertices:,} vertices, {self.edges:,} edges; {how.num_neighbors} "
            f"neighbours, {how.batch_size} seeds a batch; "
            f"memory 1/{how.features_over_memory} of the features"
        )


STAGES = ("inspect", "data preparation", "compute")
THREADS = ("sample", "plan", "gather")  # in threads of their own; plan is measured alone


def compare(bench: Bench, output: Output) -> None:
    """Seconds by stage of every system, and of Ginex with a static cache."""
    records, splits = [], {name: bench.tuned(name) for name in SYSTEMS[:2]}
    for system in SYSTEMS:
        case = bench.case(system, neighbours=splits.get(system, 0.0))
        turns = [bench.run(case) for _ in range(bench.options.turns)]
        records.append(sorted(turns, key=lambda turn: turn["seconds"])[len(turns) // 2])
    fastest = records[-1]
    for record in records:
        record["ginex_is_faster"] = record["seconds"] / fastest["seconds"]
        record["by the disk"] = record["disk_seconds"] / fastest["disk_seconds"]
    output.write_csv(records)
    names = (
        "system",
        "neighbours",
        "seconds",
        *STAGES,
        *THREADS,
        "miss_rate",
        "reads",
        "disk_seconds",
    )
    show(
        bench.caption,
        [{n: r[n] for n in (*names, "ginex_is_faster", "by the disk")} for r in records],
    )
    print("The paper, 5.2: 1.83 to 2.67 times pyg+, on average 2.11; 1.23 to 1.57 times ali+pg")
    bars = {record["system"]: {name: record[name] for name in STAGES} for record in records}
    if can_draw():
        output.draw_stacks({"Figures 14 and 15": bars}, "seconds an epoch", bench.caption)


@dataclass(frozen=True)
class Sweep:
    """A figure over the values of one option."""

    name: str
    figure: int
    values: Callable[[Options], list[int]]
    what: str
    paper: str


RATIOS = {"speedup": "seconds", "by the disk": "disk_seconds"}
SWEEPS = {
    f"sweep-{which.what.split()[-1]}": which
    for which in (
        Sweep(
            "superbatch",
            16,
            lambda o: [o.superbatch * k // 4 for k in (1, 2, 4, 8)],
            "superbatch",
            "twice the usual superbatch takes 3.2 to 7.2 % less time",
        ),
        Sweep(
            "width",
            17,
            lambda o: [o.width // 2, o.width, 2 * o.width, 3 * o.width],
            "width",
            "gaps shrink up to width 512, and grow at 768, whose rows cross pages",
        ),
        Sweep(
            "features_over_memory",
            18,
            lambda o: [o.features_over_memory * k // 2 for k in (4, 2, 1)],
            "features over memory",
            "the gap between the caches shrinks with the memory",
        ),
        Sweep(
            "batch_size",
            19,
            lambda o: [o.batch_size * k // 4 for k in (1, 2, 4, 8)],
            "batch",
            "ginex is ahead of ali+pg but at a quarter of the usual batch",
        ),
    )
}


def sweep(
    which: Sweep, bench: Bench, output: Output, at: Predictions | None = None
) -> list[dict[str, Any]]:
    """Seconds at each value; splits are those that are fastest at the usual sizes."""
    usual, alone = getattr(bench.options, which.name), which.name == "superbatch"
    batches = 2 * usual if alone else bench.options.batches // 2
    rivals = ("ginex",) if alone else ("pyg+", "ali+pg", "ginex")
    splits = {} if at else {name: bench.tuned(name) for name in rivals[:-1]}
    records, ratios = list[dict[str, Any]](), dict(list(RATIOS.items())[: 1 if at else None])
    for value in dict.fromkeys(max(1, value) for value in which.values(bench.options)):
        sizes: dict[str, Any] = {"batches": batches, which.name: value}
        found = [
            (at or bench).run(bench.case(name, neighbours=splits.get(name, 0.0), **sizes))
            for name in rivals
        ]
        for record in found:
            for name, measure in ratios.items():
                record[name] = found[0][measure] / record[measure]
        records += found
    if alone:
        (default,) = [record for record in records if record["superbatch"] == usual]
        for record in records:
            record |= {name: default[key] / record[key] for name, key in ratios.items()}
    output.write_csv(records)
    more = ("miss_rate", "reads") if at else (*STAGES, "miss_rate", "disk_seconds")
    names = which.name, "system", "seconds", *more, *ratios
    base = "the usual superbatch" if alone else "pyg+"
    title = (
        f"Figure {which.figure}{', predicted' if at else ''}, speedup over {base}. {bench.caption}"
    )
    show(title, [{name: record[name] for name in names} for record in records])
    print(f"The paper, 5.4: {which.paper}")
    if can_draw():
        lines = {
            name: [(r[which.name], r["speedup"]) for r in records if r["system"] == name]
            for name in rivals
        }
        panels = {f"Figure {which.figure}": lines}
        output.draw_lines(panels, f"speedup over {base}", bench.caption, which.what)
    return records


def stages(bench: Bench, output: Output) -> None:
    """What a mapped pipeline waits for, its misses as time goes by; each stage alone, and both."""
    case = bench.case("pyg+", neighbours=0.25)
    record = bench.run(case)
    with bench.dataset(case) as (config, dataset):
        loader = VertexBatches(config, SoloCommunicator(), dataset).loader
        x = dataset.graph.x
        assert isinstance(x, PagedRows)
        began = perf_counter()
        trace = list(loader.trace(0))
        sample, misses = perf_counter() - began, []
        began = perf_counter()
        for ids in trace:
            then = x.counts.record()
            x.gather(ids)
            now = x.counts.record()
            asked, hit = (now[name] - then[name] for name in ("rows_needed", "hits"))
            misses.append(1 - hit / max(asked, 1))
        gather = perf_counter() - began
        loader.epoch = 1
        began = perf_counter()
        for _ in loader:
            pass
        both = perf_counter() - began
    alone = {"sample": sample, "gather": gather, "sample and gather at once": both}
    records = [
        *({"figure": "4a", "of": name, "value": record[name]} for name in STAGES[1:]),
        *({"figure": "4b", "of": f"batch {i}", "value": miss} for i, miss in enumerate(misses)),
        *({"figure": "6", "of": name, "value": s / len(trace)} for name, s in alone.items()),
    ]
    output.write_csv(records)
    title = f"Seconds an epoch (4a), misses of pages (4b), seconds a batch (6). {bench.caption}"
    last = max(len(misses) - 3, 0)
    show(title, [r for i, r in enumerate(records) if r["figure"] != "4b" or i - 2 >= last])
    prepared = record["data preparation"] / (record["data preparation"] + record["compute"])
    print(f"{prepared:.0%} of the time is data preparation (the paper, 2.3: more than 90 %)")
    if can_draw():
        output.draw_stacks(
            {
                "Figure 4a": {"pyg+": {name: record[name] for name in STAGES[1:]}},
                "Figure 6": {name: {name: s / len(trace)} for name, s in alone.items()},
            },
            "seconds an epoch; a batch",
            bench.caption,
        )


def misses(bench: Bench, output: Output) -> None:
    """Misses of PaGraph's cache and of the best one, by size; nothing is read."""
    records = list[dict[str, Any]]()
    with bench.dataset(bench.case("ginex")) as (config, dataset):
        loader = VertexBatches(config, SoloCommunicator(), dataset).loader
        trace = [ids for epoch in range(2) for ids in loader.trace(epoch)]
        scores = degrees_of(dataset.graph.pattern)
    needed = sum(map(len, trace))
    for share in SHARES:
        slots = int(share * bench.vertices)
        for rule, named in (("degree", "PaGraph"), ("belady", "optimum")):
            found = sum(hits(rule, trace, slots, scores=scores))  # type: ignore[arg-type]
            records.append({"cache": named, "share": share, "miss_rate": 1 - found / needed})
    output.write_csv(records)
    show(f"Figure 5. {bench.caption}", records)
    if can_draw():
        lines = {
            name: [(r["share"], r["miss_rate"]) for r in records if r["cache"] == name]
            for name in ("PaGraph", "optimum")
        }
        what = "share of the features in memory"
        output.draw_lines({"Figure 5": lines}, "miss rate", bench.caption, what)


def _measured(which: Sweep, bench: Bench, output: Output) -> None:
    sweep(which, bench, output)


class Predictions:
    """Seconds that features take in the second epoch: exact counts of reads, at a disk's rates.

    A miss reads the pages of its row, as in the paper's section 5.4; hits and misses are copied.
    Nothing is read, and no memory is for neighbours. So figures do not depend on the machine.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench, self.trace = bench, cache(self._trace)
        self._scores = degrees_of(bench.graph.adjacency.pattern)

    def _trace(self, batches: int, batch_size: int) -> list[Int64Array]:
        """Vertices of the batches of two epochs."""
        how, graph = self._bench.options, self._bench.graph
        generator = torch.Generator().manual_seed(how.seed)
        seeds = torch.randperm(graph.vertices, generator=generator)[: batches * batch_size]
        fanouts = [int(count) for count in how.num_neighbors.split(",")]
        loader = NeighborLoader(graph, fanouts, seeds, batch_size=batch_size, shuffle=True)
        return [batch.n_id.numpy() for _ in range(2) for batch in loader]

    def run(self, case: Case) -> dict[str, Any]:
        """The case, misses, reads of pages a batch, and seconds."""
        trace, row = self.trace(case.batches, case.batch_size), 4 * case.width
        memory = self._bench.memory(case)
        needed: list[Int64Array]
        if case.system == "pyg+":
            most = np.arange((row + PAGE - 2) // PAGE + 1)  # pages that a row may lie in
            needed = []
            for ids in trace:
                first, last = ids * row // PAGE, (ids * row + row - 1) // PAGE
                needed.append(np.unique(np.minimum(first[:, None] + most, last[:, None])))
            kept = hits("lru", needed, memory // PAGE)
            each = 1.0
        else:
            needed = trace
            rule: Any = "belady" if case.system == "ginex" else "degree"
            ahead, scores = case.superbatch, self._scores
            kept = hits(rule, needed, memory // row, ahead=ahead, scores=scores)
            begins = np.arange(self._bench.vertices) * row
            each = float(((begins + row - 1) // PAGE - begins // PAGE + 1).mean())
        second = slice(len(trace) // 2, None)
        asked, found = sum(map(len, needed[second])), sum(kept[second])
        copied = row * sum(map(len, trace[second])) / MEMORY
        reads = (asked - found) * each
        seconds = reads / READS + copied
        rates = {"miss_rate": 1 - found / asked, "reads": reads / case.batches}
        return {**vars(case), **rates, "seconds": seconds}


def sweeps(bench: Bench, output: Output) -> None:
    """Figures 16 to 19, predicted."""
    predictions, records = Predictions(bench), list[dict[str, Any]]()
    for name, which in SWEEPS.items():
        figure = Output(output.csv.parent, f"predicted-{name}")
        found = sweep(which, bench, figure, predictions)
        records += [{"figure": which.figure, **record} for record in found]
        output.written |= figure.written
    output.write_csv(records)


def changes(bench: Bench, output: Output) -> None:
    """Figures 12 and 13, of one superbatch: rows that change, and as many reads as Belady's."""
    how, records = bench.options, list[dict[str, Any]]()
    trace = Predictions(bench).trace(how.superbatch, how.batch_size)[: how.superbatch]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    entries = bench.memory(bench.case("ginex")) // (4 * how.width)
    began = perf_counter()
    state, each = changesets(
        [torch.from_numpy(i).to(device) for i in trace], bench.vertices, entries
    )
    for number, change in enumerate(each):
        counts = {"in": len(change.in_ids), "out": len(change.out_ids), "misses": change.misses}
        records.append({"iteration": number, "rows": len(trace[number]), **counts})
    seconds = perf_counter() - began
    output.write_csv(records)
    show(f"Changesets. {bench.caption}", records[:: max(len(records) // 8, 1)])
    reads = len(state) + sum(record["misses"] for record in records)
    ours = sum(map(len, trace)) - sum(hits("belady", trace, entries))
    print(
        f"{reads} rows are read; by the cache of `gather_many` {ours}. {seconds:.2f} s ({device})"
    )
    if reads != ours:
        raise InputError(f"changesets read {reads} rows, and the optimum is {ours}")


def cost(bench: Bench, output: Output) -> None:
    """Tables 3 and 4: seeds a second and a dollar, beside DistDGL's batches on eight ranks.

    Seconds of ginex are those of the processor and of the disk, one after the other; of ranks those
    of a clock that counts the processor's seconds of each and what its link needs.
    """
    how = bench.options
    ours = bench.run(bench.case("ginex"))
    rate = how.batches * how.batch_size / (ours["processor"] + ours["disk_seconds"])
    flags = {name: getattr(how, name) for name in ("dataset", "data_dir", "model", "hidden")}
    flags |= {name: getattr(how, name) for name in ("num_neighbors", "batch_size", "seed")}
    flags |= {"random_features": how.width, "random_classes": 16, "threads": 1, "epochs": 3}
    flags |= {"balance": "nnz,train", "eval_every": 3} | DISTDGL
    report = run_ranks(on_rank, NODES, flags, GIGABITS, 20e-6)[0]
    theirs = round(0.1 * bench.vertices) / report["epoch_seconds"]["median"]
    records = [
        {
            "prices of": name,
            "hourly cost reduction": price / PRICE,
            "performance": rate / theirs,
            "performance a dollar": rate / theirs * price / PRICE,
        }
        for name, price in PRICES.items()
    ]
    output.write_csv(records)
    show(f"Tables 3 and 4, over DistDGL on {NODES} ranks. {bench.caption}", records)
    print(f"ginex {rate:.0f} seeds a second, DistDGL {theirs:.0f}")
    print("The paper, 5.5: performance 0.20 and 0.43, a dollar 2.76 and 5.71")


COMMANDS: dict[str, tuple[str, Callable[[Bench, Output], None]]] = {
    "compare": ("three systems end to end, and Ginex with a static cache", compare),
    **{
        name: (f"speedups by {which.what}", partial(_measured, which))
        for name, which in SWEEPS.items()
    },
    "sweeps": ("all of these, predicted from exact counts of reads", sweeps),
    "stages": ("what a mapped pipeline waits for", stages),
    "misses": ("of PaGraph's cache and of the best", misses),
    "changesets": ("what enters and leaves the cache", changes),
    "cost": ("seeds a second and a dollar, beside DistDGL", cost),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one figure; returns the exit status."""

    def body() -> None:
        about = "; ".join(f"{name}: {what}" for name, (what, _) in COMMANDS.items())
        given = read_options([Options], arguments, program="ginex.py", about=about)
        options = Options(**given)
        check_choice("COMMAND", options.command, COMMANDS)
        output = Output(Path(options.output), options.command)
        with (
            ProgressBar() as progress,
            TemporaryDirectory(dir=options.directory, prefix="ginex-") as directory,
        ):
            COMMANDS[options.command][1](Bench(options, Path(directory), progress), output)
        finished(output)

    return run(body)


if __name__ == "__main__":
    sys.exit(main())
