"""Whether plans that are predicted to be fast are fast: measured epochs of many plans of a graph.

    SPGNN_DATA=DIR python benchmarks/bench_choice.py --json choice.json --output choice.md

A cell is a graph on so many forked ranks of this machine, which is measured first, as by `spgnn
machine`. All plans are priced; of the fastest ones and the first of every other kind (algorithm,
replicas, halo) epochs are measured, in turns, in blocks of some epochs, whose first one is not
timed. The slowest rank counts, and the median of the rounds. Cells that are in the JSON file are
not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch

from spgnn.addons.plan import PricedPlan
from spgnn.addons.plan.epoch import edges_of
from spgnn.addons.plan.measure import measure
from spgnn.addons.plan.planned import flags_of, ranked_for
from spgnn.comm import Communicator, connect
from spgnn.config import TrainConfig
from spgnn.files import atomic_file
from spgnn.frontend.from_config import training_graph
from spgnn.machine import Machine
from spgnn.memory import FreedMemory, give_back_freed
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.run import task_of

ROOT = Path(__file__).parents[1]
GRAPHS = (
    "cora",
    "squirrel",
    "amazon-computers",
    "coauthor-physics",
    "flickr-small",
    "tolokers",
    "crates",
    "soc-slashdot0902",
    "finan512",
    "uk-2007-05-100k",
    "wave",
    "reddit-sayit",
)
# The first choice, over the fastest plan that was measured; how often; predicted over measured.
CLOSE, AIM, SHARE, ERROR = 1.15, 1.10, 0.9, 0.2
Cell = dict[str, Any]


def main() -> None:
    """Measure what is missing; write both files after every cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    parser.add_argument("--ranks", nargs="+", type=int, default=(2, 4, 8))
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--aggregate", default="mean")
    parser.add_argument("--first", type=int, default=4, help="plans that are measured in any case")
    parser.add_argument("--most", type=int, default=9, help="plans that are measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block", type=float, default=0.2, metavar="SECONDS")
    parser.add_argument("--json", type=Path, default=Path("choice.json"), metavar="FILE")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    cells: dict[str, Cell] = {}
    if options.json.exists():
        cells = json.loads(options.json.read_text())["cells"]
    for graph in options.graphs:
        for ranks in options.ranks:
            name = f"{graph}/{ranks}"
            if name in cells:
                continue
            started = time.perf_counter()
            cells[name] = run_ranks(cell, ranks, graph, options)[0] | {"commit": commit()}
            with atomic_file(str(options.json), f"--json {options.json}") as file:
                file.write((json.dumps({"cells": cells}, indent=1) + "\n").encode())
            print(f"{name}: {line(cells[name])}, {time.perf_counter() - started:.0f} s", flush=True)
            if options.output:
                options.output.write_text(table(cells, options))
    print(table(cells, options))


def cell(rank: int, graph: str, options: argparse.Namespace) -> Cell:
    """Predicted and measured seconds of the plans of a graph, the first choice first."""
    comm = connect()
    file = Path(os.environ.get("SPGNN_DATA", "."), f"{graph}.npz")
    config = TrainConfig.of(
        dataset=str(file) if file.exists() else graph,
        layers=options.layers,
        hidden=options.hidden,
        random_features=128,
        random_classes=16,
        epochs=10**6,
        model=options.model,
        heads=options.heads,
        aggregate=options.aggregate,
    )
    give_back_freed()
    machine = measure(comm, edges=edges_of(config))
    plans: list[Cell] = comm.from_rank_zero(lambda: shortlist(config, comm.size, machine, options))
    runs = [Contestant(config.but(**plan["flags"]), comm) for plan in plans]
    freed = FreedMemory(comm.size, comm.ranks_here)
    freed.begin()
    for plan, run in zip(plans, runs, strict=True):
        run.block(1)
        plan["measured"], plan["epochs"] = [], max(1, round(options.block / run.block(1)))
    freed.after_epoch()
    for number in range(options.rounds):
        order = list(zip(plans, runs, strict=True))
        for plan, run in order[:: -1 if number % 2 else 1]:
            plan["measured"].append(run.block(plan["epochs"]))
    return {"graph": graph, "ranks": comm.size, "plans": plans}


def shortlist(
    config: TrainConfig, ranks: int, machine: Machine | None, options: argparse.Namespace
) -> list[Cell]:
    """The fastest plans, and the first of other kinds."""
    assert machine is not None
    planner, choice = ranked_for(config, ranks, machine, [])
    kinds: dict[tuple[object, ...], PricedPlan] = {}
    for one in choice.plans[options.first :]:
        how = one.config.algorithm
        kinds.setdefault((how.algo, how.c, how.recompute_halo), one)
    taken = (choice.plans[: options.first] + list(kinds.values()))[: options.most]
    return [
        {
            "name": one.name,
            "flags": flags_of(planner, one),
            "predicted": one.seconds,
            "kinds": one.prediction.seconds,
        }
        for one in taken
    ]


class Contestant:
    """A plan that trains, in blocks of epochs."""

    def __init__(self, config: TrainConfig, comm: Communicator) -> None:
        self._trainer = Trainer(
            task_of(config, training_graph(config, comm)), options=config.training
        )
        self._comm, self._epoch = comm, 0

    def block(self, epochs: int) -> float:
        """Seconds an epoch of the slowest rank; one more comes before."""
        self._epochs(1)
        self._comm.barrier()
        start = time.perf_counter()
        self._epochs(epochs)
        seconds = torch.tensor([(time.perf_counter() - start) / epochs], dtype=torch.float64)
        self._comm.all_reduce(seconds, "max").wait()
        return float(seconds)

    def _epochs(self, count: int) -> None:
        for _ in range(count):
            self._trainer.train_epoch(self._epoch)
            self._epoch += 1


def seconds_of(plan: Cell) -> float:
    """Of an epoch, measured."""
    return median(plan["measured"])


def slower(cell: Cell) -> tuple[float, Cell]:
    """How much slower the first choice is than the fastest plan, and that."""
    best = min(cell["plans"], key=seconds_of)
    return seconds_of(cell["plans"][0]) / seconds_of(best), best


def errors(cell: Cell) -> list[float]:
    """Of predicted seconds, as shares of the measured ones."""
    return [abs(plan["predicted"] / seconds_of(plan) - 1) for plan in cell["plans"]]


def line(cell: Cell) -> str:
    """A cell in words."""
    factor, best = slower(cell)
    return f"{cell['plans'][0]['name']} is {factor:.2f} × {best['name']}"


def table(cells: dict[str, Cell], options: argparse.Namespace) -> str:
    """All cells, and what they come to."""
    lines = [
        "| graph | P | first choice | ms | fastest | ms | first / fastest | predicted / measured "
        "| plans |",
        "|---|---:|---|---:|---|---:|---:|---:|---:|",
    ]
    factors, off, signed = [], [], []
    for one in cells.values():
        factor, best = slower(one)
        first = one["plans"][0]
        factors.append(factor)
        off += errors(one)
        signed += [plan["predicted"] / seconds_of(plan) for plan in one["plans"]]
        lines.append(
            f"| {one['graph']} | {one['ranks']} | {first['name']} | {1e3 * seconds_of(first):.1f} "
            f"| {best['name']} | {1e3 * seconds_of(best):.1f} | {factor:.2f} | "
            f"{first['predicted'] / seconds_of(first):.2f} | {len(one['plans'])} |"
        )
    within = {bar: sum(factor <= bar for factor in factors) / len(factors) for bar in (CLOSE, AIM)}
    met = "met" if within[CLOSE] >= SHARE else "missed"
    error = median(off)
    return "\n".join(lines) + (
        f"\n\nOf {len(factors)} cells the first choice is within {CLOSE - 1:.0%} of the fastest in "
        f"{within[CLOSE]:.0%} (bar {SHARE:.0%}, {met}), within {AIM - 1:.0%} in {within[AIM]:.0%}. "
        f"Of {len(off)} predictions the median error is {error:.0%} (bar {ERROR:.0%}, "
        f"{'met' if error <= ERROR else 'missed'}); predicted over measured {median(signed):.2f}.\n"
        f"\n{options.model}, {options.layers} layers, hidden width {options.hidden}; "
        f"{options.rounds} rounds; commit {commit()}, torch {torch.__version__}, "
        f"Python {platform.python_version()}.\n"
    )


def commit() -> str:
    """The one that is checked out, in short."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    main()
