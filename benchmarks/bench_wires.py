"""What approximate wires cost in accuracy: real graphs, ten seeds, eight ranks, beside exact, 0c.

    SPGNN_DATA=DIR python benchmarks/bench_wires.py --json wires.json --output wires.md

A cell is one setting of `experiments/tradeoff.py` on one graph with one model, all its seeds. Cells
of a graph and a model are one launch, which loads, partitions and plans once. Each that is done is
written to the JSON file at once, so that the same command goes on where it was interrupted; a cell
that was measured with other flags is measured again. Ranks that share few processors wait for one
another: `--jobs 2` has two launches at a time, which fill these gaps (seconds are then no measure).
The graph's split and partition are the same for all cells; seeds draw weights, dropout and wires.
Accuracy is that of the test set at the best validation epoch. Differences are taken seed by seed,
for a seed draws the same weights and dropout in every cell. Bytes are those of rows that all ranks
send in an epoch of training, on average, counted.
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

from spgnn.errors import InputError, check_integer
from spgnn.files import atomic_file, check_writable

ROOT = Path(__file__).parents[1]
# Exact training shall have arrived somewhere: on a plateau, what is late or noisy falls far behind.
# Late gradients need smaller steps than exact ones, here three times smaller ones where features
# are not normalised, and more epochs; nothing else was tuned for approximate wires. Rows are wide
# enough that what says how to unpack them weighs little.
COMMON = "--layers 3 --hidden 128 --dropout 0.5"
CITATIONS = f"{COMMON} --weight-decay 5e-4 --epochs 100 --eval-every 2"
LARGER = f"{COMMON} --set model.input-dropout=false --weight-decay 0"
SMALL_STEPS = "--eval-every 5 --epochs 200 --set data.feature-norm=none --lr 0.001"
MANY_STEPS = "--eval-every 10 --epochs 800 --set data.feature-norm=none --lr 0.005"
MANY_STEPS += " --set training.lr-schedule=cosine"
GRAPHS = {
    "cora": CITATIONS,
    "citeseer": CITATIONS,
    "coauthor-physics": f"{LARGER} --eval-every 5 --epochs 60",
    "amazon-computers": f"{LARGER} {SMALL_STEPS}",
    "flickr-small": f"{LARGER} {SMALL_STEPS}",
}
# Of one model: exact GCN on flickr-small has 48 % after SMALL_STEPS, and goes on to 60.
RECIPES = {("flickr-small", "gcn"): f"{LARGER} {MANY_STEPS}"}
MODELS = ("gcn", "sage")
SETTINGS = {
    "exact": "exact",
    "bits-8": "--bits 8",
    "bits-4": "--bits 4",
    "bits-4-feedback": "--bits 4 --error-feedback",
    "bits-2-feedback": "--bits 2 --error-feedback",
    "delay-1": "--delay 1 --set messages.exact-means=false",
    "delay-1-smoothed": "--delay 1 --set messages.smoothing=0.9 --set messages.exact-means=false",
    "delay-1-centred": "--delay 1",
    "delay-1-bins-5-centred": "--delay 1 --delay-bins 5",
    "delay-5-bins": "--delay 5 --delay-bins 5 --set messages.exact-means=false",
    "delay-5-bins-centred": "--delay 5 --delay-bins 5",
    "boundary-0.1": "--boundary-sampling 0.1 --set messages.exact-means=false",
    "never": "--delay never",
}
# Points that the mean may be below exact's, and how many times fewer bytes there should be.
BARS: dict[str, tuple[float | None, float | None]] = {
    "exact": (None, None),
    "bits-8": (0.3, 3.7),
    "bits-4": (0.3, 7),
    "bits-4-feedback": (0.3, 7),
    "bits-2-feedback": (0.5, 12),
    "delay-1": (0.5, 1),
    "delay-1-smoothed": (0.5, 1),
    "delay-1-centred": (0.5, 1),
    "delay-1-bins-5-centred": (1.0, 5),
    "delay-5-bins": (1.0, 5),
    "delay-5-bins-centred": (1.0, 5),
    "boundary-0.1": (0.5, 10),
    "never": (None, None),
}
Cells = dict[str, dict[str, Any]]


def recipe(graph: str, model: str) -> str:
    """The flags with which it is trained."""
    return RECIPES.get((graph, model), GRAPHS[graph])


def command(options: argparse.Namespace, graph: str, model: str, settings: list[str]) -> str:
    """What measures cells, but for where it writes."""
    epochs = f" --epochs {options.epochs}" if options.epochs else ""
    return (
        f"experiments/tradeoff.py --nproc {options.ranks} --threads 1 --dataset {graph} --model "
        f"{model} {recipe(graph, model)}{epochs} --runs {options.runs}"
        + "".join(f" : {SETTINGS[setting]}" for setting in settings)
    )


class Launch:
    """The cells of a graph and a model that are missing, measured one after the other."""

    def __init__(
        self, options: argparse.Namespace, graph: str, model: str, settings: list[str], folder: Path
    ) -> None:
        self.words = {setting: command(options, graph, model, [setting]) for setting in settings}
        self._name, self._path = f"{graph}/{model}", folder / f"{graph}-{model}.json"
        self._seen, self._since = 0, time.perf_counter()
        program, *words = command(options, graph, model, settings).split()
        self._process = subprocess.Popen(
            [sys.executable, program, "--json", str(self._path), *words],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )

    def news(self) -> tuple[bool, Cells]:
        """Whether it goes on, and the cells that were done since this was asked before.

        Raises
        ------
        SystemExit
            If it ended without all cells.
        """
        goes_on = self._process.poll() is None
        report = json.loads(self._path.read_text()) if self._path.exists() else {"settings": []}
        done = report["settings"][self._seen :]
        names = {SETTINGS[setting]: setting for setting in self.words}
        found = {
            f"{self._name}/{names[one['setting']]}": self._cell(one, report, names) for one in done
        }
        self._seen += len(done)
        if not goes_on and self._seen < len(self.words):
            raise SystemExit(f"{self._name}: ended with status {self._process.returncode}")
        return goes_on, found

    def stop(self) -> None:
        """End it now."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def _cell(
        self, found: dict[str, Any], report: dict[str, Any], names: dict[str, str]
    ) -> dict[str, Any]:
        kept = ("score", "score_std", "volume", "epoch_seconds", "approximation", "runs", "failure")
        took, self._since = time.perf_counter() - self._since, time.perf_counter()
        return {
            "command": self.words[names[found["setting"]]],
            "scored_by": report["score"],
            "took_seconds": took,
            "commit": commit(),
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
    flags = "\n".join(
        f"- {graph}, {model}: `{recipe(graph, model)}`"
        for graph in options.graphs
        for model in options.models
    )
    return (
        f"\n{options.runs} seeds, {options.ranks} ranks{epochs}, {options.jobs} launches at a "
        f"time; commit {commit()}, torch {torch.__version__}, Python {platform.python_version()}."
        f"\n\n{flags}\n"
    )


def commit() -> str:
    """The one that is checked out, in short."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def missing(cells: Cells, options: argparse.Namespace) -> list[tuple[str, str, list[str]]]:
    """Graphs and models with the settings that were not measured, or with other flags."""
    found = []
    for graph in options.graphs:
        for model in options.models:
            lacking = [
                setting
                for setting in options.settings
                if cells.get(f"{graph}/{model}/{setting}", {}).get("command")
                != command(options, graph, model, [setting])
            ]
            if lacking:
                found.append((graph, model, lacking))
    return found


def known(path: Path) -> Cells:
    """Cells that were measured before.

    Raises
    ------
    InputError
        If the file holds something else.
    """
    try:
        cells: Cells = dict(json.loads(path.read_text())["cells"]) if path.exists() else {}
    except (ValueError, TypeError, KeyError):
        raise InputError(f"--json {path}: holds no cells of this command; name another") from None
    return cells


def write(cells: Cells, options: argparse.Namespace) -> None:
    """Both files."""
    with atomic_file(str(options.json), f"--json {options.json}") as file:
        file.write((json.dumps({"cells": cells}, indent=1) + "\n").encode())
    if options.output:
        options.output.write_text(table(cells, options))


def measure(cells: Cells, options: argparse.Namespace) -> None:
    """All that is missing, so many launches at a time; both files are written after every cell."""
    waiting, running = missing(cells, options), list[Launch]()
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < options.jobs:
                    running.append(Launch(options, *waiting.pop(0), Path(folder)))
                time.sleep(1)
                for launch in list(running):
                    goes_on, done = launch.news()
                    if not goes_on:
                        running.remove(launch)
                    cells.update(done)
                    for name, cell in done.items():
                        score = cell["score"]
                        said = cell["failure"] if score is None else f"{score:.2%}"
                        print(f"{name}: {said}, {cell['took_seconds']:.0f} s", flush=True)
                    if done:
                        write(cells, options)
        finally:
            for launch in running:
                launch.stop()


def main() -> None:
    """Measure what is missing; write both files after every cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--settings", nargs="+", default=list(BARS), choices=BARS)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="launches at a time")
    parser.add_argument("--epochs", type=int, default=0, help="0: those of its recipe")
    parser.add_argument("--json", type=Path, default=Path("wires.json"), metavar="FILE")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    try:
        for flag, least in {"ranks": 1, "runs": 1, "jobs": 1, "epochs": 0}.items():
            _ = check_integer(f"--{flag}", getattr(options, flag), least)
        check_writable(options.json, "--json")
        if options.output:
            check_writable(options.output, "--output")
        cells = known(options.json)
    except InputError as error:
        parser.error(str(error))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    measure(cells, options)
    text = table(cells, options)
    if options.output:
        options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
