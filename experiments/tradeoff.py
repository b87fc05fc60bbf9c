"""Train with several settings on one data set, and compare accuracy with bytes.

    python experiments/tradeoff.py --nproc 8 --dataset cora --runs 10 --plot cora.png
    python experiments/tradeoff.py --nproc 4 --dataset sbm : exact : --bits 4 : --delay 1 --bits 8

Before the first colon are flags of training that all settings share, and --plot FILE; after each
colon the flags of one setting, or "exact" for none. Without colons, approximate messages of each
kind are compared. Ranks are started as those of gcn.py: by --nproc, torchrun or mpiexec.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from statistics import fmean, stdev
from typing import Any

# Hundreds of ranks would each log that a client's host name is unknown, or a group is destroyed.
# Read when torch is imported, hence before it.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import systems  # noqa: F401
from rich.table import Table

from spgnn import command
from spgnn.comm import Communicator
from spgnn.comm.launch import run_job
from spgnn.config import Job, TrainConfig
from spgnn.errors import InputError
from spgnn.files import check_writable, write_file
from spgnn.frontend.from_config import training_graph
from spgnn.options import read_options
from spgnn.partition.plot import check_plot
from spgnn.train import report as reporting
from spgnn.train import train
from spgnn.train.report import AT_BEST, SHARES, final_scores
from spgnn.train.run import resolved

EXACT = "exact"
SETTINGS = (
    *(EXACT, "--bits 8", "--bits 4", "--bits 2 --error-feedback", "--delay 1"),
    *(
        "--delay 1 --delay-bins 5",
        "--boundary-sampling 0.1",
        "--set messages.fresh=0.1",
        "--delay never",
    ),
)
# Files of one training, which the next setting would overwrite.
ALONE = ("checkpoint", "log", "predictions")
Report = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Settings by their names, in order, and where the figure goes."""

    settings: dict[str, TrainConfig]
    plot: str | None

    @classmethod
    def of(cls, words: Sequence[str]) -> Comparison:
        """The comparison that a command line asks for."""
        groups = [list(part) for colon, part in groupby(words, ":".__eq__) if not colon]
        common = groups.pop(0) if words and words[0] != ":" else []
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--plot")
        options, common = parser.parse_known_args(common)
        about = __doc__.splitlines()[0]
        sections = list(TrainConfig.sections().values())
        shared = read_options(sections, common, program="tradeoff.py", about=about)
        settings: dict[str, TrainConfig] = {}
        for name in list(map(shlex.join, groups)) or SETTINGS:
            flags = [] if name == EXACT else shlex.split(name)
            try:
                own = read_options(sections, flags, program="tradeoff.py", about=about)
                settings[name] = TrainConfig.of(**shared | own)
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
        return cls(settings, options.plot)

    @property
    def job(self) -> Job:
        """The options of the job."""
        return next(iter(self.settings.values())).job

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks, in any setting."""
        for name, config in self.settings.items():
            try:
                config.check(ranks)
                for flag in ALONE:
                    if config.flat()[flag] is not None:
                        raise InputError(f"--{flag.replace('_', '-')} is not known here")
            except InputError as error:
                raise InputError(f"{name}: {error}") from None


def compare(comparison: Comparison, comm: Communicator) -> Report:
    """Train with each setting; the report so far is written after each. Collective."""
    path, plot = comparison.job.json, comparison.plot

    def check_targets() -> None:
        if path is not None:
            check_writable(path, "--json")
        if plot is not None:
            check_plot(plot)
            check_writable(plot, "--plot")

    comm.on_rank_zero(check_targets)
    report, data, of_data = Report(), None, list[object]()
    for name, given in comparison.settings.items():
        config = resolved(given.but(json=None), comm)
        if config.algorithm.cover == "auto":  # approximate messages are rows: so are exact ones
            config = config.but(cover="column")
        training = config.training.seed, config.training.dtype
        parts: list[object] = [config.data, config.distribution, config.model]
        parts += [config.aim, *training]
        if config.algorithm.plan or config.opener:
            data = None
        elif data is None or parts != of_data:
            data = None  # not two at a time
            data, of_data = training_graph(config, comm), parts
        found = train(config, comm, data=data)
        if not report:
            known = {"config": found["config"], "world_size": comm.size, "graph": found["graph"]}
            report = {**known, "score": score_of(found), "settings": [], "failure": None}
        report["settings"].append(outcome(name, found, report["score"]))
        if found["failure"]:
            report["failure"] = report["failure"] or f"{name}: {found['failure']}"
        if path is not None:
            comm.on_rank_zero(partial(reporting.write, report, path))
    if plot is not None:
        comm.on_rank_zero(lambda: draw(report, plot))
    return report


def runs_of(found: Report) -> list[Report]:
    """Seed and history of each run of a training report."""
    return found["runs"] or [{"seed": found["config"]["seed"], "history": found["history"]}]


def score_of(found: Report) -> str:
    """The score that settings are compared by: a share of the test set that all runs have."""
    known = [final_scores(run["history"]) for run in runs_of(found)]
    for name in [f"test_{share}{at}" for at in (AT_BEST, "") for share in SHARES]:
        if all(name in scores for scores in known):
            return name
    raise InputError(
        found["failure"] or "there is no score of a test set to compare, such as its accuracy"
    )


def outcome(name: str, found: Report, score: str) -> Report:
    """Scores, bytes and seconds of one setting."""
    runs = [
        {"seed": run["seed"], "score": final_scores(run["history"]).get(score)}
        for run in runs_of(found)
    ]
    scores = [run["score"] for run in runs if run["score"] is not None]
    return {
        "setting": name,
        "score": fmean(scores) if scores else None,
        "score_std": stdev(scores) if len(scores) > 1 else None,
        "volume": found["volume"],
        "epoch_seconds": found["epoch_seconds"]["median"],
        "approximation": found["approximation"],
        "runs": runs,
        "failure": found["failure"],
    }


def show(report: Mapping[str, Any]) -> None:
    """Print a line for each setting."""
    graph, config = report["graph"], report["config"]
    table = Table(
        title=f"{graph['name']}: {config['model']}, "
        f"{command.plural(report['world_size'], 'rank')}, "
        f"{command.plural(config['epochs'], 'epoch')}, {command.plural(config['runs'], 'run')}",
        title_justify="left",
    )
    titles = ("±", "points to exact", "bytes an epoch", "times fewer", "s an epoch")
    for title in ("setting", report["score"].replace("_", " "), *titles):
        table.add_column(title, justify="left" if title == "setting" else "right", no_wrap=True)
    exact = next((one for one in report["settings"] if one["setting"] == EXACT), None)
    for one in report["settings"]:
        points = fewer = None
        if exact is not None and None not in (one["score"], exact["score"]):
            points = 100 * (one["score"] - exact["score"])
        if exact is not None and one["volume"]["total_bytes"]:
            fewer = exact["volume"]["total_bytes"] / one["volume"]["total_bytes"]
        shown = (
            *((one["score"], "{:.2%}"), (one["score_std"], "{:.2%}"), (points, "{:+.2f}")),
            *((one["volume"]["total_bytes"], "{:,}"), (fewer, "{:.2f}")),
            (one["epoch_seconds"], "{:.4f}"),
        )
        table.add_row(one["setting"], *("–" if v is None else f.format(v) for v, f in shown))
    command.show_table(table, 200)


def draw(report: Mapping[str, Any], path: str) -> None:
    """Draw scores against bytes of an epoch."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    axes, moved = figure.subplots(), [one["volume"]["total_bytes"] for one in report["settings"]]
    for number, (one, bytes_) in enumerate(zip(report["settings"], moved, strict=True)):
        if one["score"] is not None:
            score, spread = 100 * one["score"], 100 * (one["score_std"] or 0)
            look = f"C{number % 10}{'o^s'[number // 10 % 3]}"
            axes.errorbar(bytes_, score, spread, fmt=look, label=one["setting"])
    # Logarithmic, with a place for settings that send nothing.
    axes.set_xscale("symlog", linthresh=min((n for n in moved if n), default=2) / 2)
    axes.set(xlabel="bytes of rows an epoch", ylabel=f"{report['score'].replace('_', ' ')}, %")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    figure.suptitle(f"{report['graph']['name']}: {report['config']['model']}", parse_math=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=check_plot(path), dpi=150)
    write_file(path, [drawn.getvalue()], f"--plot {path}")


def publish(comparison: Comparison, report: Report) -> None:
    """Print a table of all settings; a setting that failed is an error in the end."""
    show(report)
    if report["failure"]:
        raise InputError(report["failure"])


def main() -> int:
    """The command; returns its exit status."""
    return run_job(lambda: Comparison.of(sys.argv[1:]), compare, publish)


if __name__ == "__main__":
    sys.exit(main())
