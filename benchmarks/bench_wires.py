"""What approximate wires cost in accuracy: real graphs, ten seeds, eight ranks, beside exact, 0c.

    SPGNN_DATA=DIR python benchmarks/bench_wires.py --json wires.json --output wires.md

A cell is one setting of `experiments/tradeoff.py` on one graph with one model, all its seeds. Each
that is done is written to the JSON file at once, so that the same command goes on where it was
interrupted; a cell that was measured by another command is measured again. The graph's split and
partition are the same for all cells; seeds draw weights, dropout and wires. Accuracy is that of the
test set at the best validation epoch. Differences are taken seed by seed, for a seed draws the same
weights and dropout in every cell. Bytes are those of rows that all ranks send in an epoch of
training, on average, counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from spgnn.files import written_aside

ROOT = Path(__file__).parents[1]
# Nothing was tuned for approximate wires. Rows are wide enough that what says how to unpack them
# weighs little.
COMMON = "--layers 3 --hidden 128 --dropout 0.5"
CITATIONS = f"{COMMON} --weight-decay 5e-4 --epochs 100 --eval-every 2"
LARGER = f"{COMMON} --no-input-dropout --weight-decay 0 --eval-every 2"
GRAPHS = {
    "cora": CITATIONS,
    "citeseer": CITATIONS,
    "coauthor-physics": f"{LARGER} --epochs 40",
    "amazon-computers": f"{LARGER} --epochs 100 --norm node",
    "flickr-small": f"{LARGER} --epochs 60 --lr 0.03",
}
MODELS = ("gcn", "sage")
# Points that the mean may be below exact's, and how many times fewer bytes there should be.
BARS: dict[str, tuple[float | None, float | None]] = {
    "exact": (None, None),
    "bits-8": (0.3, 3.7),
    "bits-4": (0.3, 7),
    "bits-2-feedback": (0.5, 12),
    "adaptive-bits": (0.3, 10),
    "delay-1": (0.5, 1),
    "delay-5-bins": (1.0, 5),
    "boundary-0.1": (0.5, 10),
    "never": (None, None),
}
Cells = dict[str, dict[str, Any]]


def command(options: argparse.Namespace, graph: str, model: str, setting: str) -> str:
    """What measures a cell, but for where it writes."""
    epochs = f" --epochs {options.epochs}" if options.epochs else ""
    return (
        f"experiments/tradeoff.py --nproc {options.ranks} --threads 1 --dataset {graph} --model "
        f"{model} {GRAPHS[graph]}{epochs} --runs {options.runs} --settings {setting}"
    )


def measure(words: str) -> dict[str, Any]:
    """Run a command, and return what its report says of its only setting."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        done = subprocess.run(
            [sys.executable, *words.split(), "--json", str(path)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if not path.exists():
            raise SystemExit(f"{words}: ended with status {done.returncode}")
        report = json.loads(path.read_text())
    [found] = report["settings"]
    for run in found["runs"]:
        del run["curve"]
    kept = ("score", "score_std", "volume", "epoch_seconds", "approximation", "runs", "failure")
    return {
        "command": words,
        "scored_by": report["score"],
        "took_seconds": time.perf_counter() - start,
        **{name: found[name] for name in kept},
    }


def difference(one: dict[str, Any], exact: dict[str, Any]) -> tuple[float, float]:
    """Of accuracies in points, seed by seed: the mean, and its standard error."""
    scores = zip(one["runs"], exact["runs"], strict=True)
    by = [100 * (mine["score"] - its["score"]) for mine, its in scores]
    return fmean(by), stdev(by) / len(by) ** 0.5 if len(by) > 1 else 0.0


def fewer(one: dict[str, Any], exact: dict[str, Any]) -> float | None:
    """How many times fewer bytes it moved; `None` if it moved none."""
    mine = one["volume"]["total_bytes"]
    return exact["volume"]["total_bytes"] / mine if mine else None


def table(cells: Cells, options: argparse.Namespace) -> str:
    """All cells that are done, and what they come to."""
    titles = "graph, model, setting, accuracy, ±, points to exact, s.e., bar, bytes an epoch, "
    titles += "times fewer, bar, s an epoch"
    names = titles.split(", ")
    lines = [f"| {' | '.join(names)} |", "|---|---|---|" + "---:|" * (len(names) - 3)]
    found: dict[str, list[tuple[float, float | None]]] = {}
    for graph in options.graphs:
        for model in options.models:
            exact = cells.get(f"{graph}/{model}/exact")
            for setting in options.settings:
                one = cells.get(f"{graph}/{model}/{setting}")
                if one is None:
                    continue
                row = [graph, model, setting]
                if one["failure"]:
                    lines.append(f"| {' | '.join(row)} | {one['failure']} |" + " |" * 8)
                    continue
                row += [f"{one['score']:.2%}", f"{one['score_std'] or 0:.2%}"]
                points, times = BARS[setting]
                if exact is None or exact["failure"]:
                    row += ["–"] * 3 + [f"{one['volume']['total_bytes']:,}"] + ["–"] * 2
                else:
                    less, (by, error) = fewer(one, exact), difference(one, exact)
                    found.setdefault(setting, []).append((by, less))
                    row += [f"{by:+.2f}", f"{error:.2f}", verdict(points, by, lowest=True)]
                    row += [f"{one['volume']['total_bytes']:,}"]
                    row += ["–" if less is None else f"{less:.2f}", verdict(times, less)]
                lines.append(f"| {' | '.join(row)} | {one['epoch_seconds']:.4f} |")
    lines += ["", "Over all graphs and models:", ""]
    lines += ["| setting | cells | points, mean | least | bar | times fewer, least | bar |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|"]
    for setting, pairs in found.items():
        points, times = BARS[setting]
        differences = [by for by, _ in pairs]
        factors = [less for _, less in pairs if less is not None]
        least = min(factors, default=None)
        lines.append(
            f"| {setting} | {len(pairs)} | {fmean(differences):+.2f} | {min(differences):+.2f} | "
            f"{verdict(points, min(differences), lowest=True)} | "
            f"{'–' if least is None else f'{least:.2f}'} | {verdict(times, least)} |"
        )
    return "\n".join(lines) + "\n" + notes(options)


def verdict(bar: float | None, value: float | None, *, lowest: bool = False) -> str:
    """The bar, and whether it is met: a difference may be that much below 0, a factor no less.

    A sample has as many rows as it happens to have, and a delay's first epoch is exact; so factors
    are told apart that miss by less than 5 %.
    """
    if bar is None:
        return "–"
    least = -bar if lowest else bar
    if value is not None and value >= least:
        return f"{least:g} met"
    nearly = value is not None and not lowest and value >= 0.95 * least
    return f"{least:g} {'nearly' if nearly else 'missed'}"


def notes(options: argparse.Namespace) -> str:
    """How it was measured."""
    epochs = f", {options.epochs} epochs" if options.epochs else ""
    flags = "\n".join(f"- {graph}: `{GRAPHS[graph]}`" for graph in options.graphs)
    return (
        f"\n{options.runs} seeds, {options.ranks} ranks{epochs}; commit {commit()}, torch "
        f"{torch.__version__}, Python {platform.python_version()}.\n\n{flags}\n"
    )


def commit() -> str:
    """The one that is checked out, in short."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def main() -> None:
    """Measure what is missing; write both files after every cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--settings", nargs="+", default=list(BARS), choices=BARS)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=0, help="0: what each graph is trained with")
    parser.add_argument("--json", type=Path, default=Path("wires.json"), metavar="FILE")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    cells: Cells = json.loads(options.json.read_text())["cells"] if options.json.exists() else {}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for graph in options.graphs:
        for model in options.models:
            for setting in options.settings:
                name, words = (
                    f"{graph}/{model}/{setting}",
                    command(options, graph, model, setting),
                )
                if cells.get(name, {}).get("command") == words:
                    continue
                cells[name] = measure(words) | {"commit": commit()}
                with written_aside(str(options.json), f"--json {options.json}") as file:
                    file.write((json.dumps({"cells": cells}, indent=1) + "\n").encode())
                if options.output:
                    options.output.write_text(table(cells, options))
                score, took = cells[name]["score"], cells[name]["took_seconds"]
                said = cells[name]["failure"] if score is None else f"{score:.2%}"
                print(f"{name}: {said}, {took:.0f} s", flush=True)
    text = table(cells, options)
    if options.output:
        options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
