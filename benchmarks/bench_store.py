"""Reading features from a disk for mini-batches: cache rules, the optimum, and mapped files.

Neighbour sampling says which rows each batch needs. Every way of getting them begins with an empty
cache, reads the same batches, and takes its turn with the others:

- a direct reader behind a cache with each rule: the system's page cache holds nothing of the file;
- packed: a pass over the file before each epoch writes the rows of each batch in one stretch (what
  it reads is counted, what it writes is in the seconds alone);
- a mapped file. (a) cold: its page cache was dropped before the epoch, and may grow to the whole
  file, as it does where memory is no concern; (b) warm: the page cache holds the whole file, so
  that this is reading memory; (c) bounded: what the page cache holds beyond the size of our cache
  is dropped after each batch, pages at random, while the clock stands still. Only (c) has as little
  memory as the caches. Each with the system's readahead, and (advised) told that reads are random.

Seconds are those of an epoch: the mean of all for a cache, the first for a mapped file.

Bytes are those that the disk was asked for. The optimum is the fewest rows that any rule could read
from an empty cache that knows all batches of all epochs, times their size. Two columns compare: the
seconds of the bounded mapped file (the better of the two), and of the rule "degree", over a way's.

With --hits NAME,… nothing is read: the hit rates of all rules on these graphs, beside the bound.

    python benchmarks/bench_store.py [--hits NAME,…] [--graph rmat18] [--width 256] [--share 4]
        [--num-neighbors 15,10,5] [--batch-size 1024] [--train 0.1] [--epochs 4] [--superbatch 30]
        [--gap 0] [--turns 3] [--ways NAME,…] [--directory build] [--output FILE.md]
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from tempfile import NamedTemporaryFile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "experiments"))

import numpy as np
import torch
from systems.packed_rows import PackedRows
from torch import Tensor

from spgnn.addons.batches import DiskRows, Draw, NeighborSampler
from spgnn.addons.diskbatches import CachedRows, degrees_of
from spgnn.addons.diskbatches.cached_rows import PolicyName, hits
from spgnn.data import open_source
from spgnn.data.generators import rmat
from spgnn.files import atomic_file
from spgnn.sparse import CSR

RULES: tuple[PolicyName, ...] = ("none", "lru", "degree", "belady")
PAGE = mmap.PAGESIZE
Trace = list[Tensor]
Way = Callable[[], tuple[float, int, float]]
"""Read the batches: seconds, bytes read of the disk (0 if unknown), hit rate."""


def adjacency(name: str) -> CSR:
    """Of a data set, or an R-MAT graph of 2^N vertices and 16 edges each."""
    if name.startswith("rmat") and name[4:].isdigit():
        return rmat(int(name[4:]), 16, seed=1).adjacency
    return open_source(name).structure()


def draw(A: CSR, options: argparse.Namespace) -> tuple[Trace, dict[str, Tensor]]:
    """The rows that batches need, epoch after epoch; scores for the rules that go by some."""
    generator = torch.Generator().manual_seed(0)
    n, size = A.shape[0], options.batch_size
    train = torch.randperm(n, generator=generator)[: int(n * options.train)]
    fan_outs = [int(k) for k in options.num_neighbors.split(",")]
    sampler = NeighborSampler(A, fan_outs)
    trace = []
    for epoch in range(options.epochs):
        order = train[torch.randperm(len(train), generator=generator)]
        trace += [
            sampler.sample(seeds, Draw(0, epoch, batch)).nodes
            for batch, seeds in enumerate(order.split(size))
        ]
    degrees = degrees_of(A)
    return trace, {"degree": degrees, "belady": degrees}


class Mapped:
    """A mapped table of rows, and what of it is in memory."""

    def __init__(self, path: str, rows: int, width: int) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._pages = mmap.mmap(self._file, 0, access=mmap.ACCESS_COPY)
        self.table = np.frombuffer(self._pages, np.float32).reshape(rows, width)
        self._begin = self.table.ctypes.data
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._random = np.random.default_rng(0)

    def advise(self, *, random: bool) -> None:
        """Whether the system reads ahead."""
        self._pages.madvise(mmap.MADV_RANDOM if random else mmap.MADV_NORMAL)

    def drop(self, first: int = 0, length: int = 0) -> None:
        """Pages leave the page cache; all of them by default."""
        os.posix_fadvise(self._file, first, length, os.POSIX_FADV_DONTNEED)

    def resident(self) -> np.ndarray:
        """Numbers of the pages that the page cache holds."""
        held = np.zeros(-(-self.table.nbytes // PAGE), np.uint8)
        wrong = self._libc.mincore(
            ctypes.c_void_p(self._begin),
            ctypes.c_size_t(self.table.nbytes),
            ctypes.c_void_p(held.ctypes.data),
        )
        assert wrong == 0, os.strerror(ctypes.get_errno())
        return np.flatnonzero(held & 1)

    def bound(self, nbytes: int) -> None:
        """Drop pages at random until no more than so many bytes are held."""
        self._pages.madvise(mmap.MADV_DONTNEED)  # mapped pages cannot be dropped
        held = self.resident()
        over = len(held) - nbytes // PAGE
        if over > 0:
            for page in np.sort(self._random.choice(held, over, replace=False)).tolist():
                self.drop(page * PAGE, PAGE)

    def close(self) -> None:
        """Give the mapping back."""
        del self.table
        self._pages.close()
        os.close(self._file)


def mapped(path: str, shape: tuple[int, int], trace: Trace, how: str, capacity: int) -> Way:
    """One of the ways to read a mapped file."""

    def read() -> tuple[float, int, float]:
        rows = Mapped(path, *shape)
        try:
            rows.advise(random="advised" in how)
            rows.drop()
            if "warm" in how:
                rows.table.sum()
            seconds = 0.0
            for ids in trace:
                begin = time.perf_counter()
                rows.table.take(ids.numpy(), axis=0)
                seconds += time.perf_counter() - begin
                if "bounded" in how:
                    rows.bound(capacity)
            return seconds, 0, 0.0
        finally:
            rows.close()

    return read


def cached(
    path: str,
    shape: tuple[int, int],
    trace: Trace,
    policy: PolicyName,
    scores: Tensor | None,
    options: argparse.Namespace,
) -> Way:
    """A cache before the file, asked for a superbatch at a time."""
    capacity, size = shape[0] * shape[1] * 4 // options.share, max(1, options.superbatch)

    def read() -> tuple[float, int, float]:
        disk = DiskRows(path, 0, *shape, torch.float32, gap=options.gap)
        rows = CachedRows(disk, policy, capacity, scores=scores)
        began = time.perf_counter()
        for first in range(0, len(trace), size):
            for _ in rows.gather_many(trace[first : first + size]):
                pass
        seconds = (time.perf_counter() - began) / options.epochs
        return seconds, rows.counts.bytes_read, rows.counts.hit_rate

    return read


def packed_epochs(
    path: str, shape: tuple[int, int], trace: Trace, options: argparse.Namespace
) -> Way:
    """Each epoch's batches are packed before it; the rows of most of them stay in memory."""
    capacity, each = shape[0] * shape[1] * 4 // options.share, len(trace) // options.epochs

    def read() -> tuple[float, int, float]:
        disk = DiskRows(path, 0, *shape, torch.float32, gap=options.gap)
        rows = PackedRows(disk, options.directory, 1 << 40, memory_bytes=capacity)
        began = time.perf_counter()
        for first in range(0, len(trace), each):
            rows.pack(trace[first : first + each])
            for ids in trace[first : first + each]:
                rows.gather(ids)
        seconds = (time.perf_counter() - began) / options.epochs
        moved = rows.counts.bytes_read + rows.packing.bytes_read
        return seconds, moved, rows.counts.hit_rate

    return read


@contextmanager
def table_on_disk(directory: str, shape: tuple[int, int]) -> Iterator[str]:
    """A file of random rows, which is removed in the end."""
    generator = np.random.default_rng(0)
    with NamedTemporaryFile(dir=directory, prefix="rows-") as file:
        for first in range(0, shape[0], 1 << 14):
            rows = min(1 << 14, shape[0] - first)
            file.write(generator.random((rows, shape[1]), np.float32).tobytes())
        file.flush()
        os.fsync(file.fileno())
        yield file.name


def disk_speed(path: str, shape: tuple[int, int]) -> str:
    """What the disk gives: rows at random, and all rows."""
    disk = DiskRows(path, 0, *shape, torch.float32, gap=0)
    some = torch.randperm(shape[0], generator=torch.Generator().manual_seed(1))[: shape[0] // 8]
    figures = []
    for ids in (some, torch.arange(shape[0])):
        began = time.perf_counter()
        for piece in ids.split(1 << 15):
            disk.gather(piece)
        figures.append(len(ids) / (time.perf_counter() - began))
    megabytes = figures[1] * 4 * shape[1] / 1e6
    return f"The disk: {figures[0]:,.0f} rows a second at random, {megabytes:,.0f} MB/s in order."


def measure(ways: dict[str, Way], turns: int) -> dict[str, list[tuple[float, int, float]]]:
    """Every way of reading in turn, several times."""
    taken: dict[str, list[tuple[float, int, float]]] = {name: [] for name in ways}
    for turn in range(turns):
        for name, way in ways.items():
            taken[name].append(way())
            print(turn, name, *taken[name][-1], file=sys.stderr, flush=True)
    return taken


def table(
    taken: dict[str, list[tuple[float, int, float]]], best: int, needed: int, row: int
) -> str:
    """Markdown: seconds, hit rate, and bytes over the optimum's."""
    seconds = {name: median(turn[0] for turn in found) for name, found in taken.items()}
    bounded = min((seconds[name] for name in seconds if "bounded" in name), default=0)
    lines = [
        "| rows come from | seconds an epoch, median (min to max) | bounded mapped file's over it "
        "| degree's over it | hit rate | rows read / optimum | bytes read / optimum |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in taken.items():
        spread = f"{min(turn[0] for turn in found):.2f} to {max(turn[0] for turn in found):.2f}"
        line = f"| {name} | {seconds[name]:.2f} ({spread}) | {bounded / seconds[name]:.2f}"
        line += f" | {seconds.get('degree', 0) / seconds[name]:.2f}"
        _, read, rate = found[0]
        if "mapped" in name:
            lines.append(f"{line} | | | |")
        else:
            rows = needed * (1 - rate) / (needed - best)
            lines.append(f"{line} | {rate:.4f} | {rows:.3f} | {read / row / (needed - best):.3f} |")
    lines.append(f"| (the optimum) | | | | {best / needed:.4f} | 1 | 1 |")
    return "\n".join(lines) + "\n"


def hit_rates(name: str, options: argparse.Namespace) -> str:
    """Of all rules on one graph, a line of Markdown; what Belady's gets by superbatches as well."""
    A = adjacency(name)
    trace, scores = draw(A, options)
    slots, needed = A.shape[0] // options.share, sum(map(len, trace))
    found = [f"{name} | {len(trace)} × {needed // len(trace)}"]
    for rule in RULES[1:]:
        ahead = options.superbatch if rule == "belady" else 1
        had = sum(hits(rule, trace, slots, ahead=ahead, scores=scores.get(rule)))
        found.append(f"{had / needed:.4f}")
    best = sum(hits("belady", trace, slots))
    return f"| {' | '.join(found)} | {best / needed:.4f} |\n"


def all_hit_rates(options: argparse.Namespace) -> str:
    """Of all rules on several graphs, Markdown."""
    lines = [
        f"Cache of 1/{options.share} of the rows; {options.num_neighbors}; {options.batch_size} "
        f"seeds of {options.train:g} of the vertices; {options.epochs} epochs; superbatches of "
        f"{options.superbatch}, each announced when the last one is used up.\n\n",
        f"| graph | batches × rows | {' | '.join(RULES[1:])} | the bound |\n",
        "|" + "---|" * (len(RULES) + 2) + "\n",
    ]
    return "".join([*lines, *(hit_rates(name, options) for name in options.hits.split(","))])


def reading(options: argparse.Namespace) -> str:
    """Every way of reading, Markdown."""
    A = adjacency(options.graph)
    trace, scores = draw(A, options)
    shape = A.shape[0], options.width
    slots, needed = shape[0] // options.share, sum(map(len, trace))
    best = sum(hits("belady", trace, slots))
    first = trace[: len(trace) // options.epochs]
    with table_on_disk(options.directory, shape) as path:
        ways = {
            f"mapped, {how}{advised}": mapped(
                path, shape, first, how + advised, slots * 4 * shape[1]
            )
            for how in ("bounded", "cold", "warm")
            for advised in ("", ", advised")
        }
        for rule in RULES:
            ways[rule] = cached(path, shape, trace, rule, scores.get(rule), options)
        ways["packed"] = packed_epochs(path, shape, trace, options)
        ways["belady, no scores"] = cached(path, shape, trace, "belady", None, options)
        chosen = tuple(options.ways.split(","))
        ways = {name: way for name, way in ways.items() if name.startswith(chosen)}
        taken = measure(ways, options.turns)
        speed = disk_speed(path, shape)
    return (
        f"{options.graph}: {shape[0]} rows of {4 * shape[1]} bytes, cache of {slots} rows, "
        f"{len(trace)} batches of {needed // len(trace)} rows "
        f"({options.num_neighbors}; {options.batch_size} seeds; {options.epochs} epochs), "
        f"superbatch {options.superbatch}, gap {options.gap}. {speed}\n\n"
        f"{table(taken, best, needed, 4 * shape[1])}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hits", metavar="NAME,…", help="only count hits on these graphs")
    parser.add_argument("--graph", default="rmat18")
    parser.add_argument("--width", type=int, default=256, help="float32 numbers a row")
    parser.add_argument("--share", type=int, default=4, help="features over cache, in bytes")
    parser.add_argument("--num-neighbors", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--train", type=float, default=0.1, help="share of the vertices")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--superbatch", type=int, default=30, help="batches")
    parser.add_argument(
        "--gap", type=int, default=0, help="bytes that are rather read than skipped"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ways", default="", help="only those that begin with one of these")
    parser.add_argument("--directory", default="build", help="where the features go")
    parser.add_argument("--output", metavar="FILE.md")
    options = parser.parse_args(arguments)
    text = all_hit_rates(options) if options.hits else reading(options)
    print(text, end="")
    if options.output:
        with atomic_file(options.output, f"--output {options.output}") as file:
            file.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
