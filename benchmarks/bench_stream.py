"""Semi-external partitioning: time, anonymous memory, volume.

Generates a graph on disk (or opens it if it is there), partitions it by the given methods, and
prints one row for each as a Markdown table:

    python benchmarks/bench_stream.py DIRECTORY --shape papers --scale 0.1 --parts 256

Or partitions graphs in memory (names of partition_graphs.py, symmetric or `--directed`) into 16 and
64 parts by `stream` and by gvb's fast preset, in turns on one thread, with 5 % imbalance:

    SPGNN_DATA=DIR python benchmarks/bench_stream.py --graphs NAME,…
"""

from __future__ import annotations

import argparse
import threading
import time
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean

from partition_graphs import load

from spgnn.data.generators import generate_block_model
from spgnn.data.shards import ShardDirectory, open_shards
from spgnn.partition import partition
from spgnn.partition.problem import Adjacency
from spgnn.progress import ProgressBar
from spgnn.registry import Preset

# The paper's largest graphs: vertices and nonzeros (twice the edges).
SHAPES = {"amazon": (14_249_639, 231_594_310), "papers": (111_059_956, 3_231_371_744)}


class AnonymousPeak:
    """The largest anonymous memory of this process, sampled; mapped files do not count."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()

    def __enter__(self) -> AnonymousPeak:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.bytes = max(self.bytes, self.now())

    @staticmethod
    def now() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        return 0


def graph_at(options: argparse.Namespace, progress: ProgressBar) -> ShardDirectory:
    path = Path(options.directory)
    if path.exists():
        return open_shards(path)
    vertices, nonzeros = (round(options.scale * size) for size in SHAPES[options.shape])
    begin, begin_cpu = time.perf_counter(), time.process_time()
    graph = generate_block_model(path, vertices, nonzeros, progress=progress)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    print(f"generated in {seconds:.0f} s ({cpu:.0f} s of CPU)", flush=True)
    return graph


def figures(graph: Adjacency, parts: int, method: str, preset: Preset) -> tuple[float, ...]:
    """Total and maximum volume, CPU seconds with the report, and MiB beyond the graph."""
    with AnonymousPeak() as peak:
        before, begin = peak.now(), time.process_time()
        _, result = partition(graph, parts, method, preset=preset, imbalance=0.05, threads=1)
        cpu = time.process_time() - begin
    mebibytes = max(peak.bytes - before, 2**20) / 2**20
    return result["total_volume"], result["max_send"], cpu, mebibytes


def compare(names: list[str], directed: bool) -> None:
    """Print a row for each graph and number of parts, and means of the ratios to gvb's fast."""
    print(
        "| graph | parts | stream: total | maximum | CPU s | MiB | gvb fast: total | maximum "
        "| CPU s | MiB |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    ratios: list[list[float]] = []
    for name in names:
        graph = Adjacency.of(load(name, directed=directed))
        for parts in (16, 64):
            # Each in a process of its own, whose memory nothing has used before.
            with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                tasks = [(graph, parts, "stream", "default"), (graph, parts, "gvb", "fast")]
                rows = pool.starmap(figures, tasks, chunksize=1)
            cells = (f"{t:,} | {m:,} | {s:.2f} | {b:.0f}" for t, m, s, b in rows)
            print(f"| {name} | {parts} | {' | '.join(cells)} |", flush=True)
            ratios.append([(a + 1e-9) / (b + 1e-9) for a, b in zip(*rows, strict=True)])
    total, most, cpu, memory = (geometric_mean(column) for column in zip(*ratios, strict=True))
    print(
        f"\nstream / gvb fast, geometric means: total {total:.2f}, maximum {most:.2f}, "
        f"CPU {cpu:.2f}, memory {memory:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "directory", nargs="?", help="of the graph on disk; made if it is not there"
    )
    parser.add_argument("--graphs", help="names of graphs in memory, in place of a directory")
    parser.add_argument("--directed", action="store_true", help="those graphs as they are")
    parser.add_argument("--shape", choices=SHAPES, default="papers")
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--parts", type=int, default=256)
    parser.add_argument("--methods", default="random,block,stream:fast,stream")
    options = parser.parse_args()
    if (options.graphs is None) == (options.directory is None):
        parser.error("give a directory, or --graphs")
    if options.graphs is not None:
        compare(options.graphs.split(","), options.directed)
        return
    with ProgressBar() as progress:
        directory = graph_at(options, progress)
        graph, meta = directory.pattern(), directory.meta
        print(f"{meta.vertices:,} vertices, {meta.edges:,} nonzeros, {directory.made}")
        print(
            "| method | total volume | max send | send imbalance | nnz imbalance | partition s "
            "| CPU s | report s | anonymous GiB |\n|---|---|---|---|---|---|---|---|---|"
        )
        for name in options.methods.split(","):
            method, _, preset = name.partition(":")
            with AnonymousPeak() as peak:
                begin, begin_cpu = time.perf_counter(), time.process_time()
                _, result = partition(
                    graph, options.parts, method, preset=preset or "default", progress=progress
                )
                cpu = time.process_time() - begin_cpu
                report_seconds = time.perf_counter() - begin - result["seconds"]
            print(
                f"| {name} | {result['total_volume']:,} | {result['max_send']:,} "
                f"| {result['send_imbalance']:.1%} | {result['nnz_imbalance']:.1%} "
                f"| {result['seconds']:.1f} | {cpu:.1f} | {report_seconds:.1f} "
                f"| {peak.bytes / 2**30:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
