"""Whether a delay hides the exchange: epochs with R = 1 against overlapped exact and compute alone.

Under any launcher, once for each backend; both write to the same files:

    mpiexec -n 2 python benchmarks/bench_delay.py --backend mpi --json delay.json --output delay.md
    torchrun --nproc-per-node 2 benchmarks/bench_delay.py --backend gloo --json … --output …
    torchrun --nproc-per-node 2 benchmarks/bench_delay.py --backend shm --json … --output …

What is sent goes over an artificial link (`paper/slow_link.py`): it takes no less time than a
network of that rate would need for the bytes that a rank sends or receives. Compute alone is the
same epoch with nothing sent (`--delay never`); centred has a row of each message of now
(`--delay 1`), which waits in line with the late ones. The four take turns in blocks of a
few epochs, each on a link of its own that is empty when a block begins; what is under way at the
end of a block has landed before the next one. A block's first epochs are not timed. The slowest
rank counts. A ratio is that of two blocks of the same round: median, least and most. On one machine
the processors that compute also move the bytes, underneath the link.

Nothing can hide more of a link than the computation lasts: an epoch takes the longer of the two at
least, which is `possible`, beside compute alone. The bar is for links that are the shorter of them;
of the others, `delay 1 / possible` says how much more than that an epoch takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "experiments"))

import torch
from paper.slow_link import Throttled, throttled

from spgnn.comm import Communicator, connect, guarded
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.graph.protocol import matrices_of
from spgnn.memory import FreedMemory, give_back_freed
from spgnn.train import Trainer
from spgnn.train.run import task_of
from spgnn.train.task import GraphTask

ROOT = Path(__file__).parents[1]
COMPUTE, EXACT, DELAYED, CENTRED = WAYS = ("compute alone", "exact", "delay 1", "centred")
FLAGS: dict[str, dict[str, Any]] = {
    COMPUTE: {"delay": "never"},
    EXACT: {},
    DELAYED: {"delay": 1, "exact_means": False},
    CENTRED: {"delay": 1},
}
BAR = 1.05
Cell = dict[str, Any]


class Contestant:
    """One way to train, on a link of its own, in blocks of epochs."""

    def __init__(self, config: TrainConfig, comm: Throttled) -> None:
        task = task_of(config, training_graph(config, comm))
        assert isinstance(task, GraphTask)
        self._task, self._comm = task, comm
        self._trainer = Trainer(task, options=config.training)
        self.link_seconds = 0.0
        matrices = [] if task.codecs is None else matrices_of(task.data.layers)
        self._wires = [wire for A in matrices for wire in A.codecs.named.values()]
        self._epoch = 0
        self.sent_bytes = 0

    def block(self, warm: int, epochs: int) -> tuple[float, float]:
        """Seconds an epoch of the slowest rank; of processors, all threads of the busiest one."""
        self._epochs(warm)
        self._comm.barrier()
        before, carried = self._comm.ledger.copy(), self._comm.link_seconds
        start, busy = time.perf_counter(), time.process_time()
        self._epochs(epochs)
        seconds = (time.perf_counter() - start) / epochs
        busy = (time.process_time() - busy) / epochs
        self.sent_bytes = self._comm.ledger.since(before).of("alltoall").sent_bytes // epochs
        self.link_seconds = (self._comm.link_seconds - carried) / epochs
        for wire in self._wires:
            wire.land()
        return most(self._comm, seconds), most(self._comm, busy)

    def _epochs(self, count: int) -> None:
        for _ in range(count):
            self._trainer.train_epoch(self._epoch)
            self._epoch += 1


def most(comm: Communicator, value: float) -> float:
    """Of all ranks."""
    worst = torch.tensor([value], dtype=torch.float64)
    comm.all_reduce(worst, "max").wait()
    return float(worst)


def measure(
    comm: Communicator, graph: str, hidden: int, gigabits: float, options: argparse.Namespace
) -> Cell:
    """Blocks of all ways in turns, and their ratios."""
    give_back_freed()
    config = TrainConfig.of(
        dataset=graph,
        partition=options.partition,
        cover="column",
        model=options.model,
        layers=options.layers,
        hidden=hidden,
        epochs=10**6,
        random_features=128,
        random_classes=16,
    )
    contestants = {
        way: Contestant(config.but(**FLAGS[way]), throttled(comm, gigabits, options.latency))
        for way in WAYS
    }
    freed = FreedMemory(comm.size, comm.ranks_here)
    freed.begin()
    for contestant in contestants.values():
        contestant.block(0, 2 * options.warm)
    freed.after_epoch()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    busy: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS[:: -1 if number % 2 else 1]:
            took, worked = contestants[way].block(options.warm, options.block)
            seconds[way].append(took)
            busy[way].append(worked)
    sent = {way: int(most(comm, each.sent_bytes)) for way, each in contestants.items()}
    return {
        "graph": graph,
        "gigabits": gigabits,
        "seconds": seconds,
        "processor_seconds": busy,
        "max_sent_bytes": sent,
        "link_seconds": most(comm, contestants[EXACT].link_seconds),
        "config": config.flat(),
        "latency": options.latency,
        "block": options.block,
        "commit": commit(),
    }


def spread(over: list[float], under: list[float]) -> tuple[float, str]:
    """The median of the ratios of rounds, and how it is written: with the least and the most."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    middle = median(ratios)
    return middle, f"{middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def verdict(ratio: float, possible: float) -> str:
    """Whether the link is hidden, where computation is long enough to hide it."""
    if possible > 1:
        return "link longer"
    return f"{BAR} {'met' if ratio <= BAR else 'missed'}"


def table(cells: dict[str, Cell]) -> str:
    """A line for each backend, graph and link."""
    titles = (
        "backend, graph, hidden, Gb/s, sent by a rank MB, link ms, compute alone ms, possible, "
    )
    titles += "exact / compute, delay 1 / compute, bar, delay 1 / possible, delay 1 / exact, "
    titles += "processor delay 1 / compute, centred / compute, centred / exact"
    names = titles.split(", ")
    lines = [f"| {' | '.join(names)} |", "|---|---|" + "---:|" * (len(names) - 2)]
    for key, cell in cells.items():
        seconds = cell["seconds"]
        alone, exact, delayed, centred = (seconds[way] for way in WAYS)
        ratio, hidden = spread(delayed, alone)
        least = [max(each, cell["link_seconds"]) for each in alone]
        possible = median(least) / median(alone)
        row = [
            key.partition("/")[0],
            cell["graph"],
            str(cell["config"]["hidden"]),
            f"{cell['gigabits']:g}",
            f"{cell['max_sent_bytes'][EXACT] / 1e6:.2f}",
            f"{cell['link_seconds'] * 1e3:.1f}",
            f"{median(alone) * 1e3:.1f}",
            f"{possible:.3f}",
            spread(exact, alone)[1],
            hidden,
            verdict(ratio, possible),
            spread(delayed, least)[1],
            spread(delayed, exact)[1],
            spread(*(cell["processor_seconds"][way] for way in (DELAYED, COMPUTE)))[1],
            spread(centred, alone)[1],
            spread(centred, exact)[1],
        ]
        lines.append(f"| {' | '.join(row)} |")
    last = next(reversed(cells.values()))
    how, rounds = last["config"], len(last["seconds"][EXACT])
    lines += [
        "",
        f"{how['model']}, {how['layers']} layers, partition {how['partition']}; {rounds} rounds of "
        f"{last['block']} epochs; latency {last['latency']:g} s; commit {last['commit']}, torch "
        f"{torch.__version__}, Python {platform.python_version()}.",
    ]
    return "\n".join(lines) + "\n"


def commit() -> str:
    """The one that is checked out, in short."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def write(cells: dict[str, Cell], options: argparse.Namespace) -> None:
    """Both files, with what other backends have found."""
    if options.json:
        options.json.write_text(json.dumps(cells, indent=1) + "\n")
    if options.output:
        options.output.write_text(table(cells))


def run(comm: Communicator, backend: str, options: argparse.Namespace) -> None:
    """Measure every graph on every link; rank 0 writes after each."""
    tell: Callable[..., None] = print if comm.rank == 0 else lambda *words, **how: None
    known = options.json is not None and options.json.exists()
    cells: dict[str, Cell] = json.loads(options.json.read_text()) if known else {}
    for graph, hidden, gigabits in product(options.graphs, options.hidden, options.gigabits):
        key = f"{backend} P = {comm.size}/{graph}/{hidden}/{gigabits:g}"
        cells[key] = measure(comm, graph, hidden, gigabits, options)
        if comm.rank == 0:
            write(cells, options)
        tell(table({key: cells[key]}).splitlines()[2], flush=True)
    tell(table(cells))


def main() -> None:
    """Under a launcher: each rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="shm", choices=("shm", "gloo", "mpi"))
    graphs = ["coauthor-physics", "amazon-computers", "reddit-sayit", "wave"]
    parser.add_argument("--graphs", nargs="+", default=graphs)
    parser.add_argument("--gigabits", nargs="+", type=float, default=[1.0, 10.0])
    parser.add_argument("--latency", type=float, default=20e-6, metavar="SECONDS")
    parser.add_argument("--partition", default="gvb")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--block", type=int, default=5, help="epochs that are timed together")
    parser.add_argument("--warm", type=int, default=4, help="epochs of a block before them")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    comm = connect(options.backend)
    with guarded(comm):
        comm.settled()
        run(comm, options.backend, options)


if __name__ == "__main__":
    main()
