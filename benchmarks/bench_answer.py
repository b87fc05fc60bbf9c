"""The time to an answer: seconds from the command to the first epoch, and to an accuracy.

    SPGNN_DATA=DIR python benchmarks/bench_answer.py [--sets NAME,…] [--seeds N] [--systems NAME,…]
        [--dgl PYTHON] [--pyg PYTHON] [--threads N] [--epochs FULL,BATCHES] [--plot DIR]
        [--output FILE.md]

Two layers of GraphSAGE (mean), Adam, the same widths, rates and splits for all. Every run is a
process of its own, alone on the machine, and its clock starts with the command: Python, imports,
reading and preparing count, and so does the test accuracy after every epoch. Systems take turns.
PyG and DGL hold dense features, as their own data sets do. PyG's NeighborLoader needs pyg-lib or
torch-sparse.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

HIDDEN, RATE, FANOUTS, BATCH = 64, 0.01, [10, 10], 512
SHARE = 0.99  # of the best accuracy of any system
SETS = "flickr-small,amazon-computers,coauthor-physics,tolokers,nell"
TITLES = {
    "spgnn": "spgnn, whole graph",
    "spgnn-batches": "spgnn, mini-batches",
    "pyg": "PyG, whole graph",
    "pyg-batches": "PyG, NeighborLoader",
    "dgl": "DGL, whole graph",
}
Curve = list[tuple[float, float]]  # seconds since the command, test accuracy


# The runs: each in a process that has the libraries of its system alone.


def of_spgnn(path: str, seed: int, epochs: int, threads: int, *, batches: bool) -> None:
    import torch

    from spgnn.addons.diskbatches import minibatch
    from spgnn.addons.diskbatches.minibatch_config import MiniBatchConfig
    from spgnn.comm import connect
    from spgnn.config import TrainConfig
    from spgnn.train import train

    torch.set_num_threads(threads)
    flags: dict[str, Any] = {"dataset": path, "model": "sage", "hidden": HIDDEN, "lr": RATE}
    flags |= {"weight_decay": 0.0, "feature_norm": "none", "seed": seed, "epochs": epochs}
    show = [lambda record: report(record["test_acc"])]
    if batches:
        flags |= {"num_neighbors": ",".join(map(str, FANOUTS)), "batch_size": BATCH}
        minibatch.train(MiniBatchConfig.of(**flags), connect(), show)
    else:
        train(TrainConfig.of(**flags, layers=2), connect(), callbacks=show)


def arrays_of(path: str) -> dict[str, Any]:
    """Features, dense, labels, masks, and both ends of each edge, as tensors."""
    import numpy as np
    import torch

    with np.load(path) as file:
        found = {name: file[name] for name in file.files}
    if "x" not in found:
        import scipy.sparse as sp

        parts = found["x_data"], found["x_indices"], found["x_indptr"]
        found["x"] = sp.csr_matrix(parts, shape=tuple(found["x_shape"])).toarray()
    row = np.repeat(np.arange(len(found["y"])), np.diff(found["indptr"]))
    found["edges"] = np.stack([found["indices"].astype(np.int64), row])
    names = "x", "y", "edges", "train_mask", "test_mask"
    return {name: torch.from_numpy(np.ascontiguousarray(found[name])) for name in names}


def of_others(path: str, seed: int, epochs: int, threads: int, system: str) -> None:
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    data = arrays_of(path)
    x, y, edges, train, test = data.values()
    widths = [x.shape[1], HIDDEN, int(y.max()) + 1]
    if system == "dgl":
        import dgl
        from dgl.nn import SAGEConv as DGLConv

        graph = dgl.graph((edges[0], edges[1]), num_nodes=len(y)).int()
        graph.create_formats_()
        layers = torch.nn.ModuleList(DGLConv(a, b, "mean") for a, b in pairwise(widths))

        def forward(x: Any, where: Any) -> Any:
            return layers[1](where, layers[0](where, x).relu())

    else:
        from torch_geometric.nn import SAGEConv

        # A CSR tensor is PyG's fastest form of a whole graph where torch-sparse is missing.
        graph = torch.sparse_coo_tensor(
            edges.flip(0), torch.ones(edges.shape[1]), (len(y), len(y))
        ).to_sparse_csr()
        layers = torch.nn.ModuleList(SAGEConv(a, b) for a, b in pairwise(widths))

        def forward(x: Any, where: Any) -> Any:
            return layers[1](layers[0](x, where).relu(), where)

    optimizer = torch.optim.Adam(layers.parameters(), lr=RATE)

    def step(logits: Any, labels: Any) -> None:
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimizer.step()

    if system == "pyg-batches":
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader

        whole = Data(x=x, y=y, edge_index=edges)
        loader = NeighborLoader(
            whole, num_neighbors=FANOUTS, input_nodes=train, batch_size=BATCH, shuffle=True
        )
    for _ in range(epochs):
        if system == "pyg-batches":
            for batch in loader:
                seeds = batch.batch_size
                step(forward(batch.x, batch.edge_index)[:seeds], batch.y[:seeds])
        else:
            step(forward(x, graph)[train], y[train])
        with torch.no_grad():
            hits = forward(x, graph)[test].argmax(1) == y[test]
        report(float(hits.float().mean()))


def report(accuracy: float) -> None:
    """One epoch is over; the parent knows when the command was given."""
    print(f"EPOCH {time.time()} {accuracy}", flush=True)


def work(system: str, path: str, seed: str, epochs: str, threads: str) -> None:
    numbers = int(seed), int(epochs), int(threads)
    if system.startswith("spgnn"):
        of_spgnn(path, *numbers, batches=system.endswith("batches"))
    else:
        of_others(path, *numbers, system)


# The benchmark.


def run(python: str, system: str, path: Path, seed: int, epochs: int, threads: int) -> Curve:
    """One run: when each epoch was over, and how good the model was then."""
    command = [python, __file__, "--work", system, str(path), *map(str, (seed, epochs, threads))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    began = time.time()
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [line.split() for line in ended.stdout.splitlines() if line.startswith("EPOCH ")]
    if ended.returncode or not lines:
        raise SystemExit(f"{system} on {path.name}: {ended.stderr[-2000:]}")
    return [(float(then) - began, float(accuracy)) for _, then, accuracy in lines]


def prepared(name: str, directory: Path) -> Path | None:
    """The set with a fixed split, as all systems read it; ``None`` if it is not there."""
    import numpy as np
    import torch

    from spgnn.data.splits import seeded_split

    source = Path(os.environ["SPGNN_DATA"], f"{name}.npz")
    if not source.exists():
        return None
    keep = "indptr", "indices", "shape", "directed", "x", "y", "train_mask", "val_mask", "test_mask"
    with np.load(source) as file:
        arrays = {key: file[key] for key in file.files if key in keep or key.startswith("x_")}
    if "train_mask" not in arrays:
        y = torch.from_numpy(arrays["y"])
        masks = seeded_split(torch.arange(len(y)), y, 0)
        arrays |= dict(zip(keep[-3:], (mask.numpy() for mask in masks), strict=True))
    path = directory / f"{name}.npz"
    np.savez(path, **arrays)
    return path


def seconds_to(curve: Curve, accuracy: float) -> float | None:
    return next((seconds for seconds, reached in curve if reached >= accuracy), None)


def table(name: str, curves: dict[str, list[Curve]]) -> list[str]:
    """The set's table."""
    best = {s: fmean(max(a for _, a in one) for one in runs) for s, runs in curves.items()}
    first, target = max(best, key=lambda s: best[s]), SHARE * max(best.values())
    lines = [
        f"### {name}",
        "",
        f"Best: {TITLES[first]}, {best[first]:.1%}; to be reached: {target:.1%}.",
        "",
        "| system | best test accuracy | s to the first epoch | s an epoch | s to "
        f"{SHARE:.0%} of the best | runs that reach it |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for system, runs in curves.items():
        reached = [s for one in runs if (s := seconds_to(one, target)) is not None]
        # The median over all runs: those that never get there are last.
        order = sorted(reached) + [float("inf")] * (len(runs) - len(reached))
        middle = order[(len(order) - 1) // 2]
        each = median((one[-1][0] - one[0][0]) / max(len(one) - 1, 1) for one in runs)
        lines.append(
            f"| {TITLES[system]} | {best[system]:.1%} | {median(one[0][0] for one in runs):.2f} | "
            f"{each:.3f} | {'never' if middle == float('inf') else f'**{middle:.2f}**'} | "
            f"{len(reached)} of {len(runs)} |"
        )
    return [*lines, ""]


def plot(name: str, curves: dict[str, list[Curve]], directory: Path) -> None:
    """Test accuracy over seconds since the command, the first seed of each system."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for system, runs in curves.items():
        axes.plot(*zip(*runs[0], strict=True), label=TITLES[system])
    axes.set(xlabel="seconds since the command", ylabel="test accuracy", title=name, xscale="log")
    axes.legend()
    figure.savefig(directory / f"answer-{name}.svg")


def measured(options: argparse.Namespace, directory: Path) -> Iterator[str]:
    full, some = map(int, options.epochs.split(","))
    systems = options.systems.split(",")
    pythons = {"dgl": options.dgl, "pyg": options.pyg, "pyg-batches": options.pyg}
    if options.dgl is None:
        systems = [system for system in systems if system != "dgl"]
    for name in options.sets.split(","):
        path = prepared(name, directory)
        if path is None:
            yield f"{name}: no file.\n"
            continue
        curves: dict[str, list[Curve]] = {system: [] for system in systems}
        for seed in range(options.seeds):
            for system in systems if seed % 2 == 0 else reversed(systems):
                epochs = some if system.endswith("batches") else full
                python = pythons.get(system) or sys.executable
                curves[system].append(run(python, system, path, seed, epochs, options.threads))
        if options.plot is not None:
            plot(name, curves, options.plot)
        if options.curves is not None:
            (options.curves / f"{name}.json").write_text(json.dumps(curves))
        yield from table(name, curves)


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sets", default=SETS, metavar="NAME,…")
    parser.add_argument("--systems", default=",".join(TITLES), metavar="NAME,…")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--epochs", default="200,40", metavar="FULL,BATCHES")
    parser.add_argument("--dgl", metavar="PYTHON", help="of an environment that has DGL")
    parser.add_argument("--pyg", metavar="PYTHON", help="by default this one")
    parser.add_argument("--plot", type=Path, metavar="DIR")
    parser.add_argument("--curves", type=Path, metavar="DIR")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    lines = [
        f"`python benchmarks/bench_answer.py {' '.join(sys.argv[1:])}`, Python "
        f"{platform.python_version()}, {options.threads} threads, {options.seeds} seeds.",
        "",
    ]
    with tempfile.TemporaryDirectory() as directory:
        for line in measured(options, Path(directory)):
            lines.append(line)
            print(line, flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main()
