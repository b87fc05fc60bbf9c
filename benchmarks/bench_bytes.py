"""Bytes an epoch of the busiest rank: the best exact schemes against ICPP'24's.

A rank's bytes are the larger of those that it sends and those that it receives in an epoch.

The baseline is what the paper runs: 1D, (A·H)·W in every layer, columns by all-to-allv, METIS. Its
model as well: 300 features, two hidden layers of 16, 24 classes. All are counted on the plans of 64
ranks, which are those that ranks make, to the byte.

    python benchmarks/bench_bytes.py [--sets NAME,…] [--ranks P] [--cache DIR] [--output FILE.md]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

from spgnn.addons.plan import predict
from spgnn.addons.plan.graphs import Dataset, Partitions, cache_directory
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.data.generators import rmat
from spgnn.data.source import GraphSource, MemorySource
from spgnn.files import atomic_file
from spgnn.progress import ProgressBar

WIDTHS = (300, 16, 16, 24)
SETS = (
    "amazon-computers,coauthor-physics,soc-slashdot0902,tolokers,rmat14,rmat15,rmat16,"
    "crates,nell,reddit-sayit"
)


def schemes(ranks: int) -> dict[str, tuple[TrainConfig, str, str]]:
    """Name to configuration, partitioner and its objective."""
    base = TrainConfig.of(layers=len(WIDTHS) - 1, hidden=WIDTHS[1], prune=False, cover="column")
    alone = base.but(algo="feature", c=ranks) if ranks > 1 else base
    covered = base.but(cover="minimum")
    halo = covered.but(recompute_halo=True)
    return {
        "paper": (base.but(order="paper"), "metis", "both"),
        "order, cover": (covered, "gvb", "cover"),
        "… recomputed halo": (halo, "gvb", "cover"),
        "feature": (alone, "block", "both"),
        "feature, recomputed halo": (alone.but(recompute_halo=True), "gvb", "cover"),
        "… pruned": (halo.but(prune=True), "gvb", "cover"),
    }


def opened(name: str) -> GraphSource:
    """A data set, or an R-MAT graph of 2^N vertices and 16 edges each."""
    if name.startswith("rmat") and name[4:].isdigit():
        return MemorySource(rmat(int(name[4:]), 16, seed=1))
    return open_source(name, os.environ.get("SPGNN_DATA"))


def measure(name: str, ranks: int, cache: Path) -> dict[str, int]:
    """Bytes of the busiest rank, by scheme."""
    made_up = TrainConfig.of(random_features=WIDTHS[0], random_classes=WIDTHS[-1])
    dataset = Dataset.of(opened(name), made_up)
    widths = {"features": WIDTHS[0], "classes": WIDTHS[-1]}
    dataset = replace(dataset, **widths, feature_nonzeros=None)
    found = {}
    with ProgressBar() as progress:
        partitions = Partitions(dataset, cache, progress=progress)
        for scheme, (config, method, objective) in schemes(ranks).items():
            parts = config.distribution.parts(ranks)
            labels = partitions.labels(method, objective, parts) if parts > 1 else None
            price = predict(dataset, labels, config, ranks)
            found[scheme] = int(price.volume["busiest_bytes"])
    return found


def table(measured: dict[str, dict[str, int]], ranks: int) -> str:
    """Markdown: bytes of the baseline, and how many times fewer the others move."""
    names = [name for name in schemes(ranks) if name != "paper"]
    lines = [
        f"| graph | paper, bytes | {' | '.join(names)} | best without pruning |",
        "|" + "---|" * (len(names) + 3),
    ]
    ratios: dict[str, list[float]] = {name: [] for name in [*names, "best"]}
    for graph, sent in measured.items():
        row = []
        for name in names:
            ratio = sent["paper"] / max(sent[name], 1)
            ratios[name].append(ratio)
            row.append(f"{ratio:.1f}")
        best = max(sent["paper"] / max(sent[name], 1) for name in names if "pruned" not in name)
        ratios["best"].append(best)
        lines.append(f"| {graph} | {sent['paper']:,} | {' | '.join(row)} | {best:.1f} |")
    means = " | ".join(f"{geometric_mean(found):.1f}" for found in ratios.values())
    return "\n".join([*lines, f"| geometric mean | | {means} |"]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--cache", help="of partitions")
    parser.add_argument("--output", metavar="FILE.md")
    options = parser.parse_args(arguments)
    measured = {}
    for name in options.sets.split(","):
        measured[name] = measure(name, options.ranks, cache_directory(options.cache))
        print(name, measured[name], file=sys.stderr, flush=True)
    text = table(measured, options.ranks)
    print(text, end="")
    if options.output:
        with atomic_file(options.output, f"--output {options.output}") as file:
            file.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
