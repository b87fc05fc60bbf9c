"""Bytes an epoch that the busiest rank sends: the best exact schemes against ICPP'24's.

The baseline is what the paper runs: 1D, (A·H)·W in every layer, columns by all-to-allv, METIS. Its
model as well: 300 features, two hidden layers of 16, 24 classes. All are counted on the plans of 64
ranks, which are those that ranks make, to the byte.

    python benchmarks/bench_bytes.py [--sets NAME,…] [--ranks P] [--cache DIR] [--output FILE.md]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

from spgnn.data import open_source
from spgnn.data.generators import rmat
from spgnn.data.source import GraphSource, MemorySource
from spgnn.exchange import Algorithm
from spgnn.files import atomic_file
from spgnn.plan import Network, Subject, predict
from spgnn.plan.partitions import Partitions, cache_directory
from spgnn.progress import ProgressBar

WIDTHS = (300, 16, 16, 24)
SETS = (
    "amazon-computers,coauthor-physics,soc-slashdot0902,tolokers,rmat14,rmat15,rmat16,"
    "crates,nell,reddit-sayit"
)


def schemes(ranks: int) -> dict[str, tuple[Algorithm, str, str, Network, bool]]:
    """Name to algorithm, partitioner and its objective, network, and whether reach is used."""
    alone = Algorithm("feature", ranks) if ranks > 1 else Algorithm()
    covered, auto = Algorithm(cover="minimum"), Network(WIDTHS)
    ghosts = Network(WIDTHS, ghosts=True)
    return {
        "paper": (Algorithm(), "metis", "column", Network(WIDTHS, order="paper"), False),
        "order, cover": (covered, "gvb", "cover", auto, False),
        "… ghosts": (covered, "gvb", "cover", ghosts, False),
        "feature": (alone, "block", "column", auto, False),
        "feature, ghosts": (alone, "gvb", "cover", ghosts, False),
        "… reach": (covered, "gvb", "cover", ghosts, True),
    }


def opened(name: str) -> GraphSource:
    """A data set, or an R-MAT graph of 2^N vertices and 16 edges each."""
    if name.startswith("rmat") and name[4:].isdigit():
        return MemorySource(rmat(int(name[4:]), 16, seed=1))
    return open_source(name)


def measure(name: str, ranks: int, cache: Path) -> dict[str, int]:
    """Most bytes that a rank sends, by scheme."""
    subject = Subject.of(opened(name), random_features=WIDTHS[0], random_classes=WIDTHS[-1])
    found = {}
    with ProgressBar() as progress:
        kept = Partitions(subject, cache, progress=progress)
        for scheme, (algorithm, method, objective, network, reach) in schemes(ranks).items():
            parts = algorithm.parts(ranks)
            labels = kept.labels(method, objective, parts) if parts > 1 else None
            price = predict(subject, labels, algorithm, ranks, network, reach=reach)
            found[scheme] = int(price.volume["max_send_bytes"])
    return found


def table(measured: dict[str, dict[str, int]], ranks: int) -> str:
    """Markdown: bytes of the baseline, and how many times fewer the others send."""
    names = [name for name in schemes(ranks) if name != "paper"]
    lines = [
        f"| graph | paper, bytes | {' | '.join(names)} | best without reach |",
        "|" + "---|" * (len(names) + 3),
    ]
    ratios: dict[str, list[float]] = {name: [] for name in [*names, "best"]}
    for graph, sent in measured.items():
        row = []
        for name in names:
            ratio = sent["paper"] / max(sent[name], 1)
            ratios[name].append(ratio)
            row.append(f"{ratio:.1f}")
        best = max(sent["paper"] / max(sent[name], 1) for name in names if "reach" not in name)
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
