"""What approximate wires cost and save: the same training with each of them, beside exact."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

from spgnn import command
from spgnn.comm import Communicator, connect, guarded, refuse
from spgnn.comm.rank_zero import from_rank_zero, on_rank_zero
from spgnn.errors import InputError, unknown
from spgnn.files import check_writable
from spgnn.partition.plot import check_plot
from spgnn.train import report as reporting
from spgnn.train.checkpoint import FILE
from spgnn.train.config import TrainConfig
from spgnn.train.flags import Flag, Record
from spgnn.train.repeated import AT_BEST, Scores, final_scores
from spgnn.train.run import OWN_FLAGS, start, train
from spgnn.train.setup import Prepared
from spgnn.train.shown import SHARES
from spgnn.train.tradeoff_report import plot_tradeoff, show

Report = dict[str, Any]
EXACT = "exact"
# As one would write them.
SETTINGS = {
    EXACT: "",
    "bits-8": "--bits 8",
    "bits-4": "--bits 4",
    "bits-4-feedback": "--bits 4 --error-feedback",
    "bits-2": "--bits 2",
    "bits-2-feedback": "--bits 2 --error-feedback",
    "delay-1": "--delay 1",
    "delay-1-smoothed": "--delay 1 --smoothing 0.9",
    "delay-1-centred": "--delay 1 --centred",
    "delay-1-bins-5-centred": "--delay 1 --delay-bins 5 --centred",
    "delay-5-bins": "--delay 5 --delay-bins 5",
    "delay-5-bins-centred": "--delay 5 --delay-bins 5 --centred",
    "boundary-0.1": "--boundary-sampling 0.1",
    "boundary-0.1-centred": "--boundary-sampling 0.1 --centred",
    "fresh-0.1": "--fresh 0.1",
    "never": "--delay never",
}
# Values of flags may be lists of numbers.
_BETWEEN_SETTINGS = re.compile(r",(?=\s*(?:--|[a-z]|$))")
# How far below exact's score one has got "there".
POINTS_BELOW = 0.5


@dataclass(frozen=True)
class Comparison(Record):
    """Which wires, and the picture of what they are worth."""

    settings: Annotated[
        str,
        Flag(
            f"one after the other, of {', '.join(SETTINGS)}; or flags, as in 'exact,--bits 4 "
            "--delay 1'",
            "NAME,NAME,…",
        ),
    ] = ",".join(SETTINGS)
    plot: Annotated[str | None, Flag("draw scores and seconds against bytes there", "FILE")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = list(map(_file_name, self.names))
        for name in self.names:
            if name not in SETTINGS and not name.startswith("--"):
                raise unknown("--settings", name, SETTINGS)
        if len(set(names)) < len(names):
            raise InputError(f"--settings {self.settings}: name each of them once")

    @property
    def names(self) -> list[str]:
        """Of the settings that are tried, in this order."""
        return [name.strip() for name in _BETWEEN_SETTINGS.split(self.settings)]


@dataclass(frozen=True)
class TradeoffConfig(TrainConfig):
    """One comparison: flags of training, of which settings set some."""

    comparison: Comparison = field(default_factory=Comparison)

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks, in any setting.

        Raises
        ------
        InputError
        """
        super().check(ranks)
        if self.job.write_config is not None:
            raise InputError("--write-config is not known here; a report is such a file")
        mine, usual = self.flat(), TrainConfig().flat()
        for flags in SETTINGS.values():
            for name in TrainConfig.given(shlex.split(flags)):
                if mine[name] != usual[name]:
                    flag = f"--{name.replace('_', '-')}"
                    raise InputError(f"{flag} {mine[name]}: is what --settings are about")
        for name in self.comparison.names:
            try:
                of_setting(self, name).check(ranks)
            except InputError as error:
                raise InputError(f"--settings {name}: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command that compares wires; returns its exit status."""
    about = "Train with each of several approximate wires, and compare accuracy, bytes and time."
    try:
        config = TradeoffConfig.read(arguments, prog="tradeoff.py", description=about)
    except InputError as error:
        return refuse(error)
    return start(config, lambda: run_rank(config))


def run_rank(config: TradeoffConfig) -> int:
    """The whole job on one rank: connect, compare, write and print the report on rank 0."""
    try:
        comm = connect(config.job.backend, config.job.device)
    except InputError as error:
        return refuse(error)
    with guarded(comm):
        report = compare(config, comm)
    if comm.rank != 0:
        return 0
    return command.run(lambda: reporting.publish(report, config.job.json, show))


def compare(config: TradeoffConfig, comm: Communicator) -> Report:
    """Train with each setting, and return the report. Collective.

    Parameters
    ----------
    config : TradeoffConfig
    comm : Communicator
        All ranks.

    Raises
    ------
    InputError
        As :func:`spgnn.train.train`, and if there is no score to compare, or no place for the plot.
    """
    common = {name: value for name, value in config.flat().items() if name not in OWN_FLAGS}
    comm.check_agreement("flags", **common)
    plot = config.comparison.plot
    on_rank_zero(comm, lambda: _check_targets(config))
    prepared, reports = Prepared(), dict[str, Report]()
    for name in config.comparison.names:
        setting = _going_on(of_setting(config, name), comm)
        reports[name] = train(setting, comm, prepared=prepared)
        on_rank_zero(comm, partial(_write_so_far, config, comm, reports))
    report = _comparison(config, comm, reports)
    if plot is not None:
        on_rank_zero(comm, lambda: plot_tradeoff(report, plot))
    return report


def _comparison(
    config: TradeoffConfig, comm: Communicator, reports: Mapping[str, Report]
) -> Report:
    """What those settings that were trained have come to."""
    first = next(iter(reports.values()))
    score = score_of([found for report in reports.values() for found in runs_of(report)])
    settings = [outcome(name, report, score) for name, report in reports.items()]
    beside_exact(settings)
    trouble = [f"--settings {one['setting']}: {one['failure']}" for one in settings]
    return {
        "config": config.flat(),
        "world_size": comm.size,
        "graph": first["graph"],
        "score": score,
        "settings": settings,
        "failure": next((t for t, s in zip(trouble, settings, strict=True) if s["failure"]), None),
    }


def _write_so_far(
    config: TradeoffConfig, comm: Communicator, reports: Mapping[str, Report]
) -> None:
    """The report of the settings that have ended: whoever waits for one need not wait for all."""
    if config.job.json is None:
        return
    try:
        report = _comparison(config, comm, reports)
    except InputError:  # no score so far
        return
    reporting.write(report, config.job.json)


def of_setting(config: TradeoffConfig, name: str) -> TrainConfig:
    """Training with one setting, which has its own names of what it writes."""
    parts = {part: getattr(config, part) for part in vars(TrainConfig())}
    written, job, training = shlex.split(flags_of(name)), config.job, config.training
    asked, given = TrainConfig.read(written).flat(), TrainConfig.given(written)
    own = _file_name(name)
    predictions = job.predictions and str(Path(job.predictions).with_suffix(f".{own}.npz"))
    return TrainConfig(**parts).but(
        json=None,
        checkpoint=training.checkpoint and os.path.join(training.checkpoint, own),
        log=job.log and os.path.join(job.log, own),
        predictions=predictions,
        **{flag: asked[flag] for flag in given},
    )


def flags_of(name: str) -> str:
    """What a setting stands for."""
    return SETTINGS.get(name, name)


def runs_of(report: Report) -> list[Report]:
    """What a training report says of each of its runs: ``seed``, ``history``, ``failure``."""
    several: list[Report] | None = report["runs"]
    return several or [
        {"seed": report["config"]["seed"], **{n: report[n] for n in ("history", "failure")}}
    ]


def score_of(runs: Sequence[Report]) -> str:
    """The score that settings are compared by: of the test set, a share, and known of all runs.

    Raises
    ------
    InputError
        If there is none.
    """
    known = [final_scores(run["history"]) for run in runs if run["history"]]
    for name in [f"test_{share}{at}" for at in (AT_BEST, "") for share in SHARES]:
        if known and all(name in scores for scores in known):
            return name
    raise InputError("there is no score of a test set to compare, such as its accuracy")


def outcome(name: str, report: Report, score: str) -> Report:
    """What one setting has come to.

    Parameters
    ----------
    name : str
    report : dict
        Of its training.
    score : str
        As :func:`score_of` says.
    """
    runs = runs_of(report)
    found = [_of_run(run, score) for run in runs]
    reached = [run["score"] for run in found if run["score"] is not None]
    return {
        "setting": name,
        "flags": flags_of(name),
        "score": fmean(reached) if reached else None,
        "score_std": stdev(reached) if len(reached) > 1 else None,
        "volume": report["volume"],
        "epoch_seconds": report["epoch_seconds"]["median"],
        "approximation": report.get("approximation"),
        "runs": found,
        "failure": next((run["failure"] for run in runs if run["failure"]), None),
    }


def _of_run(run: Report, score: str) -> Report:
    """Seed and score of a run, and its curve: seconds of training, and the score then."""
    plain = score.removesuffix(AT_BEST)
    scores: Scores = final_scores(run["history"]) if run["history"] else {}
    curve, seconds = [], 0.0
    for record in run["history"]:
        seconds += record["seconds"]
        if record.get(plain) is not None:
            curve.append([seconds, record[plain]])
    return {"seed": run["seed"], "score": scores.get(score), "curve": curve}


def beside_exact(settings: Sequence[Report]) -> None:
    """Add to each outcome how it compares with that of exact, if that is among them.

    ``points``: by how many percentage points its score is above exact's; ``fewer``: how many times
    fewer bytes it moved, or `None` if there was none to move; ``seconds_to``: of training, until
    the score was that of exact less `POINTS_BELOW` points, averaged over the runs that came there.
    """
    exact = next((one for one in settings if one["setting"] == EXACT), None)
    for one in settings:
        one.update(dict.fromkeys(("points", "fewer", "seconds_to")))
        if exact is None or exact["score"] is None:
            continue
        target = exact["score"] - POINTS_BELOW / 100
        total, mine = exact["volume"]["total_bytes"], one["volume"]["total_bytes"]
        one["fewer"] = total / mine if mine else None
        if one["score"] is not None:
            one["points"] = 100 * (one["score"] - exact["score"])
        seconds = [seconds_until(run["curve"], target) for run in one["runs"]]
        there = [s for s in seconds if s is not None]
        one["seconds_to"] = {
            "score": target,
            "seconds": fmean(there) if there else None,
            "runs": len(there),
        }


def seconds_until(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """When a curve of (seconds, score) first reaches a score; `None` if it never does."""
    return next((seconds for seconds, score in curve if score >= target), None)


def _going_on(config: TrainConfig, comm: Communicator) -> TrainConfig:
    """Of a comparison that is resumed, settings that had not begun do so now. Collective."""
    training = config.training
    if not training.resume:
        return config
    first = "" if training.runs == 1 else "run-0"
    path = os.path.join(str(training.checkpoint), first, FILE)
    return config.but(resume=from_rank_zero(comm, lambda: os.path.exists(path)))


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.]+", "-", name).strip("-")


def _check_targets(config: TradeoffConfig) -> None:
    """Try the places that training does not try, before anything takes long."""
    written: Mapping[str, str | None] = {
        "--json": config.job.json,
        "--plot": config.comparison.plot,
    }
    if config.comparison.plot is not None:
        _ = check_plot(config.comparison.plot)
    for flag, path in written.items():
        if path is not None:
            check_writable(path, flag)
