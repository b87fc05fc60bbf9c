"""Stages of superbatches on one disk: one after the other with all of the memory, or at once.

Batches of a graph whose neighbours and features lie on a disk, of two epochs, without training. The
caches have the same memory in all: where stages take turns each has all of it, and loads or fills
its cache in each superbatch; where the next superbatch is sampled while features of this one are
read, the neighbours' cache has a share of it. Ways take turns. The second epoch is measured.

    python benchmarks/bench_superbatch.py [--graph rmat16] [--width 128] [--share 8]
        [--num-neighbors 10,10] [--batch-size 250] [--train 0.5] [--superbatch 40] [--turns 3]
        [--workers 2] [--directory build]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from spgnn import NeighborLoader
from spgnn.addons.batches import DiskRows
from spgnn.addons.diskbatches import CachedRows, DiskPattern, DiskSuperbatch, degrees_of
from spgnn.data import open_shards, open_source, write_shards
from spgnn.data.generators import rmat


def measure(folder: Path, overlap: bool, part: float, policy: Any, o: argparse.Namespace) -> str:
    """Seconds of an epoch, and reads of neighbours and of features, as a line of Markdown."""
    shards = open_shards(folder / "graph")
    indptr = torch.tensor(shards.pattern().indptr)
    n = len(indptr) - 1
    memory = n * o.width * 4 // o.share
    neighbours, features = (
        (int(part * memory), int((1 - part) * memory)) if overlap else (memory, memory)
    )
    place = shards.place(0, "indices")
    assert place is not None
    pattern = DiskPattern(*place, indptr, n)
    pattern = pattern.cached(policy, neighbours, degrees_of(pattern), folder)
    disk = DiskRows(folder / "x", 0, n, o.width, torch.float32)
    rows = CachedRows(disk, "belady", features)
    train = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: int(n * o.train)]
    loader = NeighborLoader(
        str(folder / "graph"),
        [int(count) for count in o.num_neighbors.split(",")],
        train,
        batch_size=o.batch_size,
        shuffle=True,
        store=rows,
        structure=pattern,
        superbatch=DiskSuperbatch(o.superbatch, folder, overlap),
        num_workers=o.workers,
    )
    for _ in loader:
        pass
    before = pattern.counts.record(), rows.counts.record()
    began = time.perf_counter()
    for _ in loader:
        pass
    seconds = time.perf_counter() - began
    after = pattern.counts.record(), rows.counts.record()
    reads = [now["reads"] - then["reads"] for then, now in zip(before, after, strict=True)]
    moved = [
        now["bytes_read"] - then["bytes_read"] for then, now in zip(before, after, strict=True)
    ]
    name = f"at once, {part:.0%} for neighbours" if overlap else "one after the other"
    print(name, policy, f"{seconds:.2f} s", file=sys.stderr, flush=True)
    figures = " | ".join(f"{r:,} | {m / 1e6:,.1f}" for r, m in zip(reads, moved, strict=True))
    return f"{name}, {policy}|{seconds}|{figures}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="rmat16")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--share", type=int, default=8, help="features over memory, in bytes")
    parser.add_argument("--num-neighbors", default="10,10")
    parser.add_argument("--batch-size", type=int, default=250)
    parser.add_argument("--train", type=float, default=0.5, help="share of the vertices")
    parser.add_argument("--superbatch", type=int, default=40, help="batches")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="threads that sample")
    parser.add_argument("--directory", default="build")
    o = parser.parse_args(arguments)
    graph = (
        rmat(int(o.graph[4:]), 16, seed=1)
        if o.graph.startswith("rmat")
        else open_source(o.graph).graph()
    )
    Path(o.directory).mkdir(exist_ok=True)
    with TemporaryDirectory(dir=o.directory) as name:
        folder = Path(name)
        write_shards(replace(graph, x=None), None, 1, folder / "graph")
        numbers = np.random.default_rng(0).random((graph.vertices, o.width), np.float32)
        numbers.tofile(folder / "x")
        ways = [
            (overlap, part, policy)
            for policy in ("ratio", "degree")
            for overlap, part in ((False, 1.0), (True, 0.1), (True, 0.25))
        ]
        taken: dict[tuple[bool, float, str], list[list[str]]] = {way: [] for way in ways}
        for _ in range(o.turns):
            for way in ways:
                taken[way].append(measure(folder, *way, o).split("|", 2))
    print(
        "| stages, neighbours' cache | seconds an epoch | reads of neighbours | MB "
        "| reads of features | MB |\n|---|---|---|---|---|---|"
    )
    for turns in taken.values():
        print(f"| {turns[0][0]} | {median(float(t[1]) for t in turns):.2f} | {turns[0][2]} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
