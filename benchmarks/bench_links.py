"""Epochs of real ranks behind links of two levels: partitions, covers and relays, with predictions.

    SPGNN_DATA=DIR python benchmarks/bench_links.py [--sets NAME,…] [--ranks 16,32] [--hidden N]
        [--between GBITS,SECONDS] [--inside GBITS,SECONDS] [--cache DIR] [--output FILE.md]

Forked ranks train; rank r is on node r // 4, with a link of its own to other nodes and one inside
(`paper/slow_link.py`). Many ranks share few cores, so each has a clock of its own processor's
seconds, step by step as in the fastest epoch, which advances by what links and slower ranks make it
wait. The prediction is that of `spgnn plan`, for a machine of these links whose kernels take as
many seconds as this processor's.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "experiments"))

import torch
from paper.measured import last_epoch

from spgnn.addons.plan import measure as measuring
from spgnn.addons.plan import predict
from spgnn.addons.plan.graphs import Dataset, Partitions, cache_directory
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.machine import Conditions, Level, Levels, Link, Machine
from spgnn.testing import run_ranks

SETS = "amazon-computers,coauthor-physics,crates,tolokers,soc-slashdot0902"
EPOCHS, RANKS_A_NODE = 7, 4
# Partitioner, its objective, whether for nodes; cover, and whether with relays.
LINES: dict[str, tuple[str, str, bool, str, bool]] = {
    "METIS": ("metis", "both", False, "column", False),
    "gvb, send": ("gvb", "send", False, "column", False),
    "gvb": ("gvb", "both", False, "column", False),
    "gvb, nodes": ("gvb", "both", True, "column", False),
    "gvb, relays": ("gvb", "both", False, "column", True),
    "gvb, nodes, relays": ("gvb", "both", True, "column", True),
    "METIS, covers": ("metis", "both", False, "minimum", False),
    "gvb, covers": ("gvb", "cover", False, "minimum", False),
    "gvb, covers, relays": ("gvb", "cover", False, "minimum", True),
}


def link_of(text: str) -> Link:
    """Gigabits and seconds of a message."""
    gigabits, seconds = map(float, text.split(","))
    return Link(0.0, seconds, gigabits * 1e9 / 8)


def epoch(rank: int, config: TrainConfig, inside: Link, between: Link) -> tuple[float, float, int]:
    """Seconds of an epoch by the rank's clock, of these waiting for links, and bytes it sends."""
    one = last_epoch(config, inside, between, RANKS_A_NODE, EPOCHS)
    return one.seconds, sum(one.waited.values()), one.moved.of("alltoall").sent_bytes


def machine_of(inside: Link, between: Link) -> Machine:
    """Nodes of four ranks, each on a core of its own, as fast as this one's, with these links."""

    def alone(rank: int) -> Machine:
        measuring.perf_counter = time.process_time  # as ranks' clocks do: others may disturb
        return measuring.measure(connect())

    return replace(
        run_ranks(alone, 1)[0],
        cores=RANKS_A_NODE,
        ranks_a_node=RANKS_A_NODE,
        conditions=Conditions(RANKS_A_NODE, 1),
        levels=Levels(Level(inside, inside), Level(between, between)),
        overlap=1.0,
    )


def rows_of(
    name: str, ranks: int, options: argparse.Namespace, machine: Machine
) -> dict[str, list[float]]:
    """Milliseconds an epoch: measured, waiting, predicted; MB that the busiest rank moves."""
    path = Path(os.environ.get("SPGNN_DATA", "."), f"{name}.npz")
    base = TrainConfig.of(
        dataset=path if path.exists() else name,
        random_features=options.features,
        random_classes=16,
        hidden=options.hidden,
        layers=3,
    )
    dataset = Dataset.of(open_source(str(base.data.dataset)), base)
    partitions = Partitions(dataset, cache_directory(options.cache), seed=1, imbalance=0.03)
    rows = {}
    for line, (method, objective, nodes, cover, relays) in LINES.items():
        if relays and not hasattr(base.algorithm, "relays"):
            continue
        count = ranks // RANKS_A_NODE if nodes else None
        labels = partitions.labels(method, objective, ranks, count)
        file = partitions.file(method, objective, ranks, count)
        how: dict[str, Any] = {"cover": cover, "partition": str(file)}
        config = base.but(**how, **({"relays": True} if relays else {}))
        price = predict(dataset, labels, config, ranks, machine=machine, ranks_a_node=RANKS_A_NODE)
        links = link_of(options.inside), link_of(options.between)
        ended = run_ranks(epoch, ranks, config, *links, backend="shm")
        seconds = max(seconds for seconds, _, _ in ended)
        waited = sum(waited for _, waited, _ in ended) / ranks
        moved = price.volume["busiest_bytes"]
        rows[line] = [1e3 * seconds, 1e3 * waited, 1e3 * (price.epoch_seconds or 0), moved / 1e6]
        print(name, ranks, line, *(f"{value:.2f}" for value in rows[line]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", default=SETS, metavar="NAME,…")
    parser.add_argument("--ranks", default="16,32", metavar="N,…")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--features", type=int, default=128, help="where a graph has none")
    parser.add_argument("--between", default="1,5e-5", metavar="GBITS,SECONDS")
    parser.add_argument("--inside", default="10,1e-5", metavar="GBITS,SECONDS")
    parser.add_argument("--cache", metavar="DIR", help="of partitions")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = machine_of(link_of(options.inside), link_of(options.between))
    lines = [
        f"`python benchmarks/bench_links.py --sets {options.sets} --ranks {options.ranks} "
        f"--between {options.between} --inside {options.inside}`, torch {torch.__version__}, "
        f"Python {platform.python_version()}; GCN of 3 layers, {options.hidden} hidden."
    ]
    for ranks in map(int, options.ranks.split(",")):
        cells = {name: rows_of(name, ranks, options, machine) for name in options.sets.split(",")}
        lines += [
            "",
            f"| P = {ranks}: ms an epoch (predicted); METIS over it | {' | '.join(cells)} "
            "| geometric mean (predicted) | busiest rank's MB, METIS over it |",
            f"|---|{'---:|' * (len(cells) + 2)}",
        ]
        for line in next(iter(cells.values())):
            row, ratios = [], []
            for rows in cells.values():
                seconds, _, predicted, moved = rows[line]
                metis = rows["METIS"]
                ratios.append(
                    (metis[0] / seconds, metis[2] / predicted, metis[3] / max(moved, 1e-9))
                )
                row.append(f"{seconds:.1f} ({predicted:.1f}); {ratios[-1][0]:.2f}")
            means = [geometric_mean(column) for column in zip(*ratios, strict=True)]
            row.append(f"**{means[0]:.2f}** ({means[1]:.2f}) | {means[2]:.2f}")
            lines.append(f"| {line} | {' | '.join(row)} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
