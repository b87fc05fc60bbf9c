"""Memory that planning predicts for each rank, beside what training takes.

    SPGNN_DATA=DIR python benchmarks/bench_memory.py [--sets NAME,…] [--ranks P,…]
        [--schemes NAME,…] [--models NAME,…] [--epochs N] [--output FILE.md]

Measured: the peak of each rank but 0, which reads the graph for all, above what it had before it
held any data. What libraries take is measured by the same ranks, as `spgnn machine` does.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from spgnn.addons.plan import Prediction, predict
from spgnn.addons.plan.graphs import Dataset
from spgnn.addons.plan.measure import runtime_bytes
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.data.source import GraphSource, MemorySource
from spgnn.frontend.from_config import training_graph
from spgnn.machine import read_machine
from spgnn.memory import give_back_freed, give_back_large, peak_bytes, resident_bytes
from spgnn.partition import partition
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.vertices import NodeClassification

SCHEMES: dict[str, dict[str, object]] = {
    "1d": {},
    "1.5d": {"algo": "1.5d", "c": 2},
    "feature": {"algo": "feature", "c": 2},
    "recomputed halo": {"recompute_halo": True},
    "minimum": {"cover": "minimum"},
    "vertex-cut": {"algo": "vertex-cut"},
}
MODELS: dict[str, dict[str, object]] = {
    "gcn": {},
    "gat": {"model": "gat", "hidden": 64, "heads": 8},
    "gatv2": {"model": "gatv2", "hidden": 64, "heads": 8},
    "max": {"model": "sage", "aggregate": "max", "hidden": 64},
}
MACHINE = Path(__file__).parents[1] / "experiments" / "machines" / "perlmutter_a100.json"
BAR = 0.1


def config_of(name: str, model: str, scheme: str, epochs: int) -> TrainConfig:
    """Of the training command."""
    path = Path(os.environ.get("SPGNN_DATA", "."), f"{name}.npz")
    return TrainConfig.of(
        dataset=str(path) if path.exists() else name,
        symmetrise=path.exists(),
        random_features=128,
        random_classes=16,
        partition="gvb",
        epochs=epochs,
        **{"cover": "column", **SCHEMES[scheme]},
        **MODELS[model],
    )


def measured(rank: int, config: TrainConfig | None) -> int:
    """Bytes of this rank above idle; without a job, what libraries take."""
    comm = connect()
    if config is None:
        return runtime_bytes(comm)
    comm.check_agreement("flags", epochs=config.training.epochs)
    give_back_freed()
    idle = resident_bytes()
    task = NodeClassification(config, training_graph(config, comm))
    give_back_large()
    comm.settled()  # as the training command does: what set-up has posted is given back
    Trainer(task, options=config.training).run()
    return peak_bytes() - idle


def opened(config: TrainConfig) -> GraphSource:
    source = open_source(config.data.dataset)
    return MemorySource(source.graph().symmetrised()) if config.data.symmetrise else source


def predicted(rank: int, config: TrainConfig, ranks: int, runtime: float, file: Path) -> Prediction:
    """Of the same job; in a process of its own, or ranks would inherit what it frees.

    The partition goes into a file, for training.
    """
    dataset, how = Dataset.of(open_source(config.data.dataset), config), config.algorithm
    labels, _ = partition(dataset.looped, config.distribution.parts(ranks), how.partition)
    np.savetxt(file, labels, "%d")
    machine = read_machine(MACHINE)  # of which only the memory of libraries is looked at
    overhead = replace(machine.overhead, memory=runtime)
    machine = replace(machine, overhead=overhead, ranks_a_node=ranks)
    return predict(dataset, labels, config, ranks, machine=machine)


def compare(config: TrainConfig, cell: str, ranks: int, runtime: float) -> tuple[str, float]:
    """A line of the table, and the largest error of the ranks."""
    with TemporaryDirectory() as directory:
        file = Path(directory, "partition.txt")
        (price,) = run_ranks(predicted, 1, config, ranks, runtime, file)
        found = np.array(run_ranks(measured, ranks, config.but(partition=str(file))))[1:]
    held = np.sum(list(price.memory.values()), axis=0)
    expected = np.maximum(held, price.setup)[1:]
    errors = expected / found - 1
    worst = float(errors[np.abs(errors).argmax()])
    most = int(found.argmax())
    items = {key: values[1:][most] / 2**20 for key, values in price.memory.items()}
    items_shown = ", ".join(f"{key} {value:.1f}" for key, value in items.items() if value >= 0.1)
    line = (
        f"| {cell} | {ranks} | {expected.max() / 2**20:.1f} | "
        f"{found.max() / 2**20:.1f} | {expected.max() / found.max() - 1:+.1%} | {worst:+.1%} | "
        f"{held[1:][most] / 2**20:.1f} | {price.setup[1:][most] / 2**20:.1f} | {items_shown} |"
    )
    return line, abs(float(expected.max() / found.max() - 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    default = "sbm,amazon-computers,coauthor-physics,reddit-sayit"
    parser.add_argument("--sets", default=default, metavar="NAME,…")
    parser.add_argument("--ranks", default="2,4,8", metavar="P,…")
    parser.add_argument("--schemes", default=",".join(SCHEMES), metavar="NAME,…")
    parser.add_argument("--models", default="gcn", metavar="NAME,…")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        "# Memory: predicted and measured",
        "",
        f"`python benchmarks/bench_memory.py` at {commit}, torch {torch.__version__}, Python "
        f"{platform.python_version()}. GCN with 16 hidden columns, others with 64 in 8 heads "
        "(128 made-up features where there are none), "
        "partitions by `gvb`. MiB of the rank that takes most, rank 0 left out, above idle; the "
        "error of that, and the largest of any rank; then what is predicted in training and "
        "before it, and of what it consists.",
        "",
        "| graph | model | scheme | P | predicted | measured | error | of any rank | in training "
        "| set-up | items |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    errors = []
    for ranks in map(int, options.ranks.split(",")):
        runtime = median(run_ranks(measured, ranks, None))
        for name in options.sets.split(","):
            for model, scheme in product(options.models.split(","), options.schemes.split(",")):
                config = config_of(name, model, scheme, options.epochs)
                line, error = compare(config, f"{name} | {model} | {scheme}", ranks, runtime)
                lines.append(line)
                errors.append(error)
                print(line, flush=True)
    within = sum(error <= BAR for error in errors)
    lines += ["", f"Within {BAR:.0%}: {within} of {len(errors)}; median {median(errors):.1%}."]
    print(lines[-1])
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
