"""A time line of disk and compute: what a run out of core reads, writes, computes and waits for.

    python benchmarks/disk_timeline.py FILE.svg [--from SECONDS] [--to SECONDS] ARGUMENTS OF gcn.py

Every read and write of a file is noted, and so is each time that the main thread waits for one;
the rest of the main thread's time it computes, or threads multiply for it. Drawn is the last epoch
of a run of one rank.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from spgnn.direct import DirectFile
from spgnn.kernels import bfloat16
from spgnn.train import Trainer
from spgnn.train.run import main as train

Span = tuple[float, float, int]  # begin and end in seconds, and bytes
LANES = {"reads": "#3b75af", "writes": "#d08a2f", "waits": "#b5403a"}


def noted(call: Callable[..., Any], spans: list[Span], size: Callable[..., int]) -> Any:
    """The function, which appends when it was called, until when it ran, and how many bytes."""

    def run(*args: Any, **options: Any) -> Any:
        begin = perf_counter()
        try:
            return call(*args, **options)
        finally:
            spans.append((begin, perf_counter(), size(*args)))

    return run


def recorded(arguments: list[str]) -> tuple[dict[str, list[Span]], list[Span]]:
    """The spans of a training run, and those of its epochs."""
    lanes: dict[str, list[Span]] = {name: [] for name in LANES}
    epochs: list[Span] = []
    main, result, share = threading.main_thread(), Future.result, bfloat16.at_the_same_time
    multiplying = False

    def shared(make: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
        nonlocal multiplying
        multiplying = True
        try:
            return share(make, parts)
        finally:
            multiplying = False

    def waited(future: Future[Any], timeout: float | None = None) -> Any:
        if multiplying or threading.current_thread() is not main or future.done():
            return result(future, timeout)
        begin = perf_counter()
        try:
            return result(future, timeout)
        finally:
            lanes["waits"].append((begin, perf_counter(), 0))

    DirectFile.read = noted(DirectFile.read, lanes["reads"], lambda *args: args[2])
    DirectFile.write_pages = noted(DirectFile.write_pages, lanes["writes"], lambda *args: args[3])
    Trainer.train_epoch = noted(Trainer.train_epoch, epochs, lambda *args: 0)
    Future.result = waited
    bfloat16.at_the_same_time = shared
    if train(arguments):
        sys.exit(1)
    return lanes, epochs


def covered(spans: list[Span], begin: float, end: float) -> list[tuple[float, float]]:
    """Where at least one of the spans is, within [begin, end): disjoint, in order."""
    merged: list[tuple[float, float]] = []
    for first, last, _ in sorted(spans):
        low, high = max(first, begin), min(last, end)
        if low >= high:
            continue
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def length(pieces: list[tuple[float, float]]) -> float:
    return sum(high - low for low, high in pieces)


def overlap(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> float:
    """Seconds that both have."""
    return length(some) + length(others) - length(covered([(*p, 0) for p in some + others], *EVER))


EVER = float("-inf"), float("inf")


def main() -> None:
    """Run, draw, and print what an epoch's seconds go to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("picture", type=Path, metavar="FILE.svg")
    parser.add_argument("--from", dest="begin", type=float, metavar="SECONDS")
    parser.add_argument("--to", dest="end", type=float, metavar="SECONDS")
    options, arguments = parser.parse_known_args()
    lanes, epochs = recorded(arguments)
    began, ended, _ = epochs[-1]
    shown = {name: covered(spans, began, ended) for name, spans in lanes.items()}
    gaps = [began, *(moment for piece in shown["waits"] for moment in piece), ended]
    computes = [piece for piece in list(pairwise(gaps))[::2] if piece[1] > piece[0]]
    disk = covered(lanes["reads"] + lanes["writes"], began, ended)
    within = [span for name in ("reads", "writes") for span in lanes[name] if span[0] >= began]
    moved = sum(nbytes for _, _, nbytes in within)
    hidden = overlap(disk, computes) / max(length(disk), 1e-9)
    print(
        f"epoch {ended - began:.1f} s: computes {length(computes):.1f} s, waits "
        f"{length(shown['waits']):.1f} s; the disk works {length(disk):.1f} s "
        f"({moved / 1e9:.1f} GB), {hidden:.0%} of it while the main thread computes"
    )

    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.4), layout="constrained")
    axes = figure.subplots()
    rows = {"computes": (computes, "#4f8a4b"), **{n: (shown[n], LANES[n]) for n in LANES}}
    for row, (pieces, colour) in enumerate(rows.values()):
        bars = [(low - began, high - low) for low, high in pieces]
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=colour, rasterized=len(bars) > 2000)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    low = options.begin or 0.0
    high = options.end or ended - began
    axes.set(xlabel="seconds since the epoch began", xlim=(low, high))
    figure.savefig(options.picture)


if __name__ == "__main__":
    main()
