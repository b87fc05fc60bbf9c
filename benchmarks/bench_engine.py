"""What the distributed engine is held to: bytes, covers, scaling, overlap, memory, partitions.

    SPGNN_DATA=DIR python benchmarks/bench_engine.py [--only NAME,…] [--output FILE.md]

Every figure comes from the training report of ``experiments/gcn.py``, one process tree a run.
Times are medians of alternating runs, and their ratio pair by pair.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from spgnn.data import load_dataset
from spgnn.data.shards import write_shards
from spgnn.partition import partition

ROOT = Path(__file__).parents[1]
GCN = ROOT / "experiments" / "gcn.py"
PAIRS = 5
RIBOSOME = ("--random-features", "128", "--random-classes", "16", "--eval-every", "1000")


def train(dataset: str, *flags: str) -> dict[str, Any]:
    """One run's report."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "report.json")
        command = [sys.executable, str(GCN), "--dataset", dataset, "--json", str(path), *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return dict(json.loads(path.read_text()))


def data(name: str) -> str:
    return str(Path(os.environ["SPGNN_DATA"]) / f"{name}.npz")


def order() -> list[str]:
    runs = {
        name: train(data("amazon-computers"), "--nproc", "8", "--epochs", "20", "--order", name)
        for name in ("paper", "auto")
    }
    total = {name: run["volume"]["total_bytes"] for name, run in runs.items()}
    losses = [[record["loss"] for record in run["history"]] for run in runs.values()]
    apart = max(abs(a - b) / a for a, b in zip(*losses, strict=True))
    return [
        f"amazon-computers, 3 layers, 16 hidden, P = 8: {total['paper']:,} bytes an epoch with "
        f"`--order paper`, {total['auto']:,} with `auto`: "
        f"**{total['paper'] / total['auto']:.1f} ×** "
        f"(bar 10 ×); losses of 20 epochs apart by at most {apart:.1e} relative (bar 1e-4)."
    ]


def cover() -> list[str]:
    flags = ("--nproc", "16", "--epochs", "2", "--partition", "metis")
    total = {}
    for name in ("column", "row", "minimum"):
        volume = train(data("amazon-computers"), *flags, "--cover", name)
        assert volume["volume"] == volume["planned_volume"]
        total[name] = volume["volume"]["total_bytes"]
    share = total["minimum"] / total["column"]
    return [
        f"amazon-computers, METIS, P = 16: minimum cover moves **{share:.3f}** of the rows of "
        f"column cover (bar 0.62), row cover {total['row'] / total['column']:.3f}."
    ]


def scaling() -> list[str]:
    flags = (*RIBOSOME, "--epochs", "8")
    return alternate(
        "ribosome-4v5a, 128 features, 3 layers, 16 hidden: 2 ranks × 1 thread over 1 rank × 2 "
        "threads (bar 1.15)",
        lambda: train(data("ribosome-4v5a"), "--nproc", "2", "--threads", "1", *flags),
        lambda: train(data("ribosome-4v5a"), "--threads", "2", *flags),
    )


def memory() -> list[str]:
    """Peak above idle against what must be there: block, features, received rows, activations."""
    ranks, features, hidden, classes = 8, 128, 16, 16
    graph = load_dataset(data("ribosome-4v5a"))
    labels, report = partition(graph.adjacency, ranks, method="gvb")
    with tempfile.TemporaryDirectory() as directory:
        shards = Path(directory, "shards")
        write_shards(graph, labels, ranks, shards)
        tiny = Path(directory, "tiny")
        write_shards(load_dataset("rmat-6-4"), None, ranks, tiny)
        # The interpreter's own: the same program with next to no data.
        used, idle = (
            train(str(path), *RIBOSOME, "--epochs", "4", "--nproc", str(ranks))["memory"][
                "max_rank_peak_bytes"
            ]
            for path in (shards, tiny)
        )
    rows = torch.bincount(torch.from_numpy(labels), minlength=ranks)
    own = int(rows.max())
    lengths = graph.adjacency.row_lengths + 1
    per_part = torch.zeros(ranks, dtype=torch.int64)
    entries = int(per_part.index_add_(0, torch.from_numpy(labels).long(), lengths).max())
    received = int(report["max_recv"]) * hidden
    # Z and relu(Z) of both hidden layers, logits and softmax, and the gradients on the way back.
    activations = own * (2 * 2 * hidden + 2 * classes + 2 * hidden)
    floats = own * features + received + activations
    needed = entries * 4 + (own + 1) * 8 + floats * 4
    used -= idle
    return [
        f"ribosome-4v5a in 8 shards, 128 features: peak of a rank {used / 2**20:.1f} MiB above "
        f"that of the same program on a graph of 64 vertices ({idle / 2**20:.0f} MiB), for "
        f"{needed / 2**20:.1f} MiB of block, features, received rows and activations: "
        f"**{used / needed:.2f} ×** (bar 1.3)."
    ]


def partitions() -> list[str]:
    lines = ["| graph | method | total MB an epoch | most sent by a rank, MB | ms an epoch |"]
    lines.append("|---|---|---:|---:|---:|")
    for name in ("amazon-computers", "coauthor-physics", "reddit-sayit"):
        flags = ["--nproc", "8", "--epochs", "10", "--eval-every", "1000"]
        if name == "reddit-sayit":
            flags += ["--symmetrise", "--random-features", "64", "--random-classes", "16"]
        for method in ("gvb", "metis", "random"):
            run = train(data(name), *flags, "--partition", method)
            volume, milliseconds = run["volume"], run["epoch_seconds"]["median"] * 1e3
            lines.append(
                f"| {name} | {method} | {volume['total_bytes'] / 1e6:.2f} | "
                f"{volume['max_send_bytes'] / 1e6:.2f} | {milliseconds:.1f} |"
            )
    return lines


def alternate(
    title: str, ours: Callable[[], dict[str, Any]], other: Callable[[], dict[str, Any]]
) -> list[str]:
    """Median epoch of both in turn, and the ratio pair by pair."""
    pairs = [
        (ours()["epoch_seconds"]["median"], other()["epoch_seconds"]["median"])
        for _ in range(PAIRS)
    ]
    ratios = sorted(a / b for a, b in pairs)
    a, b = (median(column) for column in zip(*pairs, strict=True))
    return [
        f"{title}: **{median(ratios):.2f}** (pairs {ratios[0]:.2f} to {ratios[-1]:.2f}); "
        f"medians {a * 1e3:.1f} ms and {b * 1e3:.1f} ms."
    ]


PARTS: dict[str, Callable[[], list[str]]] = {
    "order": order,
    "cover": cover,
    "scaling": scaling,
    "memory": memory,
    "partitions": partitions,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(PARTS), metavar="NAME,…")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    lines = [
        "# The engine",
        "",
        f"`python benchmarks/bench_engine.py --only {options.only}` at {commit}, "
        f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores.",
    ]
    for name in options.only.split(","):
        lines += ["", f"## {name}", "", *PARTS[name]()]
        print("\n".join(lines[-4:]), flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
