"""Random reads of a file past the page cache: threads against io_uring.

Rows that lie anywhere in a file are gathered in batches, by a process of its own for each cell, so
that its threads and rings are those of this depth. Cells take turns. What a read takes of the
processor is that of the whole process, in user and system mode, over its reads.

With --beside N threads multiply small matrices meanwhile: how many products they make a second,
over those without any reading, is what reading leaves of the processor.

    python benchmarks/bench_reads.py [--row-bytes 512,1024,4096,65536] [--depths 1,32,64,128]
        [--file-mb 1024] [--batch 20000] [--cell-mb 64] [--turns 5] [--cached] [--beside N]
        [--directory build] [--output FILE.md]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from tempfile import NamedTemporaryFile

import numpy as np
import torch

from spgnn._native import ring_refusal
from spgnn.addons.batches import DiskRows
from spgnn.files import atomic_file

WAYS = {"threads": "0", "io_uring": "1"}


@dataclass(frozen=True)
class Cell:
    """What is read, and how."""

    row_bytes: int
    depth: int
    way: str


class Products:
    """Threads that multiply small matrices, and how many products they made."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(1)
        self._made, self._ends = [0] * threads, False
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def _run(self, number: int) -> None:
        matrix = torch.randn(256, 256)
        while not self._ends:
            matrix @ matrix
            self._made[number] += 1

    @contextmanager
    def running(self) -> Iterator[Products]:
        """Start them, and stop them in the end."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._ends = True
            for thread in self._threads:
                thread.join()

    def rate(self, seconds: float) -> float:
        """Products a second, while nothing else is done."""
        before, began = sum(self._made), time.perf_counter()
        time.sleep(seconds)
        return (sum(self._made) - before) / (time.perf_counter() - began)

    @property
    def made(self) -> int:
        """So far."""
        return sum(self._made)


def gather(cell: Cell, path: str, size: int, options: argparse.Namespace) -> tuple[float, ...]:
    """Reads a second, microseconds of the processor for each, and the share of products left."""
    os.environ["SPGNN_IO_URING"] = WAYS[cell.way]
    rows, width = size // cell.row_bytes, cell.row_bytes // 4
    how = {"gap": 0, "depth": cell.depth, "direct": not options.cached}
    table = DiskRows(path, 0, rows, width, torch.float32, **how)
    reads = min(options.batch, options.cell_mb * 1_000_000 // cell.row_bytes)
    random = np.random.default_rng(os.getpid())
    batches = [torch.from_numpy(random.choice(rows, reads // 4, replace=False)) for _ in range(5)]
    out = torch.empty(reads // 4, width)
    table.gather(batches.pop(), out)  # threads start, and pages of `out` are there
    with Products(options.beside).running() as products:
        alone = products.rate(0.2) if options.beside else 1.0
        before, made = table.counts.rows_read, products.made
        began, worked = time.perf_counter(), time.process_time()
        for ids in batches:
            table.gather(ids, out)
        seconds, processor = time.perf_counter() - began, time.process_time() - worked
        done, made = table.counts.rows_read - before, products.made - made
    return done / seconds, 1e6 * processor / done, made / seconds / alone


def measure(path: str, size: int, options: argparse.Namespace) -> dict[Cell, list[tuple]]:
    """Every cell in turn, several times."""
    forked = multiprocessing.get_context("fork")
    found: dict[Cell, list[tuple]] = {
        Cell(row_bytes, depth, way): []
        for row_bytes in options.row_bytes
        for depth in options.depths
        for way in ("threads", *(() if ring_refusal() else ("io_uring",)))
    }
    for _ in range(options.turns):
        for cell, taken in found.items():
            with forked.Pool(1) as pool:
                taken.append(pool.apply(gather, (cell, path, size, options)))
    return found


def table_of(found: dict[Cell, list[tuple]], options: argparse.Namespace) -> str:
    """Markdown: medians, and io_uring's over the threads' where spgnn has it."""
    # The processor's time for a read, or what reading leaves of it.
    second, digits = (2, 2) if options.beside else (1, 1)
    title = "products left" if options.beside else "µs a read"
    rings = any(cell.way == "io_uring" for cell in found)
    more = "| io_uring | ratio " * rings
    lines = [
        f"| row | depth | reads/s, threads {more}| {title}, threads {more}|",
        "|---" * (8 if rings else 4) + "|",
    ]
    for cell in found:
        if cell.way == "threads":
            line = f"| {cell.row_bytes} | {cell.depth} "
            for i, form in ((0, ",.0f"), (second, f".{digits}f")):
                ways = [cell, Cell(cell.row_bytes, cell.depth, "io_uring")][: 1 + rings]
                each = [median(turn[i] for turn in found[way]) for way in ways]
                line += "".join(f"| {number:{form}} " for number in each)
                line += f"| {each[1] / each[0]:.2f} " if rings else ""
            lines.append(line + "|")
    return "\n".join(lines) + "\n"


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row-bytes", type=numbers, default=[512, 1024, 4096, 65536])
    parser.add_argument("--depths", type=numbers, default=[1, 32, 64, 128])
    parser.add_argument("--file-mb", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=20000, help="reads of a cell at most")
    parser.add_argument("--cell-mb", type=int, default=64, help="megabytes of a cell at most")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cached", action="store_true", help="through the page cache")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="threads that multiply")
    parser.add_argument("--directory", default="build", help="where the file goes")
    parser.add_argument("--output", metavar="FILE.md")
    options = parser.parse_args(arguments)
    refusal = ring_refusal()
    if refusal:
        print(f"threads alone: {refusal}", file=sys.stderr)
    size = options.file_mb << 20
    with NamedTemporaryFile(dir=options.directory, prefix="reads-") as file:
        block = np.random.default_rng(0).bytes(1 << 24)
        for _ in range(size >> 24):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        text = table_of(measure(file.name, size, options), options)
    print(text, end="")
    if options.output:
        with atomic_file(options.output, f"--output {options.output}") as output:
            output.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
