"""Semi-external partitioning of a generated graph: time, anonymous memory, volume.

Generates a graph on disk (or opens it if it is there), partitions it by the given methods, and
prints one row for each as a Markdown table, with the bar of the issue beside it:

    python benchmarks/bench_stream.py DIRECTORY --shape papers --scale 0.1 --parts 256
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

from spgnn.data.generators import SHAPES, generate_block_model, generate_rmat
from spgnn.data.shards import ShardDirectory, open_shards
from spgnn.partition import partition
from spgnn.progress import ProgressBar

GENERATORS = {"block-model": generate_block_model, "rmat": generate_rmat}


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
        while not self._stop.wait(0.1):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    self.bytes = max(self.bytes, int(line.split()[1]) * 1024)


def graph_at(options: argparse.Namespace, progress: ProgressBar) -> ShardDirectory:
    path = Path(options.directory)
    if path.exists():
        return open_shards(path)
    vertices, nonzeros = (round(options.scale * size) for size in SHAPES[options.shape])
    begin, begin_cpu = time.perf_counter(), time.process_time()
    graph = GENERATORS[options.model](path, vertices, nonzeros, progress=progress)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    print(f"generated in {seconds:.0f} s ({cpu:.0f} s of CPU)", flush=True)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", help="of the graph on disk; made if it does not exist")
    parser.add_argument("--shape", choices=SHAPES, default="papers")
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--model", choices=GENERATORS, default="block-model")
    parser.add_argument("--parts", type=int, default=256)
    parser.add_argument("--methods", default="random,block,stream:fast,stream")
    options = parser.parse_args()
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
