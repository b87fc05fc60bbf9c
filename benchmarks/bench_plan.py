"""What building plans takes: live and offline, and against another version of spgnn.

    SPGNN_DATA=DIR python benchmarks/bench_plan.py [--first PYTHON] [--output FILE.md]

``--first`` names the interpreter of an environment with the first version (commit e6d155f); both
take turns. Live: P forked ranks, CPU seconds of all of them, the largest peak of a rank. Offline:
the plans of all ranks on one process.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
import torch
from plan_worker import COVERS, forget_peak, status

from spgnn import RowLayout
from spgnn.data import load_dataset
from spgnn.data.normalise import add_self_loops
from spgnn.data.shards import partition_order
from spgnn.data.structure import slice_rows
from spgnn.exchange import Algorithm, build_all
from spgnn.partition import partition
from spgnn.sparse import CSR

CASES = (("reddit-sayit", 8, "gvb"), ("rmat-20-16", 64, "random"))
LARGE, LARGE_RANKS = "rmat-19-10", 4096
TURNS = 3


def matrix(name: str, ranks: int, method: str) -> tuple[CSR, RowLayout]:
    """With self-loops, in the order of a partition."""
    path = Path(os.environ["SPGNN_DATA"]) / f"{name}.npz"
    graph = load_dataset(str(path) if path.exists() else name).symmetrised()
    labels, _ = partition(graph.adjacency, ranks, method=method)
    layout, order = partition_order(labels, graph.vertices, ranks)
    return add_self_loops(graph.relabel(order).adjacency), layout


def live(interpreter: str, path: Path, ranks: int) -> dict[str, tuple[float, int]]:
    """CPU seconds and bytes for each cover."""
    worker = Path(__file__).with_name("plan_worker.py")
    done = subprocess.run(
        [interpreter, str(worker), str(path), str(ranks)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"},
    )
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return {cover: (float(seconds), int(peak)) for cover, seconds, peak in found}


def live_lines(name: str, ranks: int, method: str, others: dict[str, str]) -> list[str]:
    A, layout = matrix(name, ranks, method)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.npz")
        arrays = {"indptr": A.indptr.numpy(), "indices": A.indices.numpy()}
        np.savez(path, offsets=layout.offsets, **arrays)
        turns = [
            {version: live(python, path, ranks) for version, python in others.items()}
            for _ in range(TURNS)
        ]
    lines = []
    for cover in COVERS:
        row = f"| {name} | {ranks} | {cover} |"
        for place, scale, digits in ((0, 1.0, 2), (1, 2.0**-20, 1)):
            values = {v: [turn[v][cover][place] * scale for turn in turns] for v in others}
            row += " | ".join(f" {median(values[v]):.{digits}f}" for v in others) + " |"
            if "first" in others:
                ratios = [a / b for a, b in zip(values["now"], values["first"], strict=True)]
                row += f" {median(ratios):.2f} |"
        lines.append(row)
        print(row, flush=True)
    return lines


def offline_line(A: CSR, layout: RowLayout, name: str, cover: str, c: int = 1) -> str:
    ranks = layout.parts
    algorithm = Algorithm("1.5d", c, cover=cover)
    forget_peak()
    used, start, cpu = status("VmRSS"), perf_counter(), process_time()
    plans = build_all(
        [algorithm.scheme(slice_rows(A, slice(*layout.range(r))), layout, r) for r in range(ranks)],
        algorithm.axes(ranks),
    )
    built, cpu = perf_counter() - start, process_time() - cpu
    sent = sum(plan.volume.send for plan in plans)
    messages = sum(t.messages for plan in plans for t in plan.traffic(16).values())
    memory = max(sum(plan.memory(16).values()) for plan in plans)
    numbers = perf_counter() - start - built
    row = (
        f"| {name} | {ranks} | {c} | {cover} | {built:.1f} | {cpu:.1f} | {numbers:.1f} | "
        f"{(status('VmHWM') - used) / 2**20:.0f} | {sent} | {messages} | {memory / 2**20:.2f} |"
    )
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", metavar="PYTHON", help="of the first version")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    others = {"now": sys.executable}
    if options.first:
        others["first"] = options.first
    versions = list(others)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    ratio = " ratio |" if options.first else ""
    lines = [
        "# Plans",
        "",
        f"`python benchmarks/bench_plan.py` at {commit}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores. With self-loops; reddit-sayit cut "
        f"by `gvb`, R-MAT at random. Medians of {TURNS} turns.",
        "",
        "## Live: CPU seconds of all ranks, largest peak of a rank (MiB)",
        "",
        "| graph | P | cover |"
        + "".join(f" s, {v} |" for v in versions)
        + ratio
        + "".join(f" MiB, {v} |" for v in versions)
        + ratio,
        "|---|---:|---|" + "---:|" * (2 * len(versions) + 2 * bool(options.first)),
    ]
    for case in CASES:
        lines += live_lines(*case, others)
    lines += [
        "",
        "## Offline: the plans of all ranks on one process",
        "",
        "| graph | P | c | cover | s | CPU s | s for all numbers | peak MiB | rows sent | messages "
        "| busiest rank, MiB at width 16 |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    A, layout = matrix(*CASES[1])
    lines += [offline_line(A, layout, CASES[1][0], cover) for cover in COVERS]
    A = load_dataset(LARGE).adjacency
    layout = RowLayout.even(A.shape[0], LARGE_RANKS)
    for c, cover in ((1, "column"), (1, "minimum"), (4, "column"), (4, "minimum")):
        lines.append(offline_line(A, layout, f"{LARGE} ({A.nnz:,} nonzeros)", cover, c))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
