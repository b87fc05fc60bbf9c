"""The training report: one JSON object, gathered from all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from spgnn.comm import Communicator
from spgnn.comm.launch import JobConfig
from spgnn.command import in_lines, plural, show_table
from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.exchange.codec import DIRECTIONS
from spgnn.files import write_file
from spgnn.memory import peak_bytes
from spgnn.options import Configuration
from spgnn.partition.plot import check_plot, write_figure
from spgnn.progress import Stopwatch
from spgnn.train.measure import CATEGORIES, gathered, timed, volume, volume_by_level
from spgnn.train.task import LOWER_IS_BETTER
from spgnn.train.trainer import Trainer
from spgnn.train.vertices import SPLITS

Report = dict[str, Any]
Scores = dict[str, float]
AT_BEST = "_at_best_val"
_FEW_POINTS = 20
SHARES = ("acc", "f1_micro", "f1_macro", "roc_auc")


def assemble(config: Configuration, trainer: Trainer, idle_bytes: int, watch: Stopwatch) -> Report:
    """The report of the training command, the same on every rank. Collective."""
    watch.lap("rest")
    slowest = gathered(trainer.comm, list(watch.seconds.values())).max(axis=0)
    measured, sections = measurements(trainer), trainer.task.sections()
    flags, partition = config.flat(), sections.get("partition") or {}
    if flags.get("objective") == "auto" and partition.get("objective"):
        flags["objective"] = partition["objective"]  # which the cover decided
    return {
        "config": flags,
        "world_size": trainer.comm.size,
        "seconds": dict(zip(watch.seconds, slowest.tolist(), strict=True)),
        **measured,
        **sections,
        "memory": memory(trainer.comm, idle_bytes),
        "failure": trainer.failure,
    }


def measurements(trainer: Trainer) -> Report:
    """History, times and bytes of a trainer of any task, the same on every rank. Collective."""
    comm, measured = trainer.comm, trainer.measured
    epochs = max(len(measured.sent_bytes), 1)
    sent, received = sum(measured.sent_bytes) // epochs, sum(measured.received_bytes) // epochs
    seconds = gathered(comm, measured.seconds).max(axis=0).tolist()
    counted = timed(seconds) or [0.0]
    per_category = gathered(comm, measured.mean_breakdown()).max(axis=0)
    history = _completed(trainer, seconds)
    return {
        "history": history,
        "best": best(trainer),
        "seconds_to": seconds_to(history),
        "epoch_seconds": {"median": median(counted), "min": min(counted), "max": max(counted)},
        "breakdown_seconds": dict(zip(CATEGORIES, per_category.tolist(), strict=True)),
        "volume": volume(comm, sent, received),
        "volume_by_level": volume_by_level(comm, sent, measured.mean_sent_out()),
    }


def best(trainer: Trainer) -> dict[str, Any] | None:
    """The record of the best epoch, with the criterion's name."""
    criterion, first = trainer.task.criterion, None
    for record in trainer.history:
        score = record.get(criterion.name)
        if score is None:
            continue
        if first is None or criterion.better(score, first[criterion.name]):
            first = record
    return None if first is None else {"by": criterion.name, **first}


def of_runs(config: TrainConfig, trainers: Sequence[Trainer]) -> Report:
    """Several runs, and mean and standard deviation of the scores that all have."""
    if config.training.runs == 1:
        return {"runs": None, "mean": None, "std": None}
    scores: list[Scores] = [final_scores(trainer.history) for trainer in trainers]
    runs = [
        {
            "seed": config.training.seed + number,
            "epochs": len(trainer.history),
            "scores": scores[number],
            "failure": trainer.failure,
            "history": trainer.history,
        }
        for number, trainer in enumerate(trainers)
    ]
    of_all = {n: [one[n] for one in scores] for n in scores[0] if all(n in one for one in scores)}
    return {
        "runs": runs,
        "mean": {name: fmean(values) for name, values in of_all.items()},
        "std": {n: stdev(values) if len(values) > 1 else 0.0 for n, values in of_all.items()},
    }


def memory(comm: Communicator, idle_bytes: int) -> dict[str, int]:
    """Peak memory of the ranks, and what of it is above idle. Collective."""
    peak = peak_bytes()
    by_rank = gathered(comm, [peak, max(0, peak - idle_bytes)])
    result = dict[str, int]()
    for name, bytes_ in zip(("peak_bytes", "peak_above_idle_bytes"), by_rank.T, strict=True):
        of_ranks = {"max_rank": bytes_.max(), "rank_0": bytes_[0], "median_rank": np.median(bytes_)}
        result |= {f"{which}_{name}": int(count) for which, count in of_ranks.items()}
    return result


def write(report: Report, path: str) -> None:
    """Write the report aside, then rename it into place."""
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    write_file(path, [text.encode()], f"--json {path}")


def publish(
    config: JobConfig, report: Report, shown: Callable[[Report], None] | None = None
) -> None:
    """Write the report and print its table, or what else shows it; what went wrong is said last."""
    trouble = report["failure"]
    if config.job.json is not None:
        try:
            write(report, config.job.json)
        except InputError as error:
            trouble = trouble or str(error)
    (shown or show)(report)
    if trouble:
        raise InputError(trouble)


def _completed(trainer: Trainer, seconds: list[float]) -> list[dict[str, Any]]:
    """The history, with ``None`` for the scores of epochs that were not evaluated."""
    names = dict.fromkeys(name for record in trainer.history for name in record)
    result = [{**names, **record} for record in trainer.history]
    # What ended training has taken time as well, and left no record.
    for record, slowest in zip(result[trainer.first_epoch :], seconds, strict=False):
        record["seconds"] = slowest
    return result


def show(report: Report) -> None:
    """Print the table of a report."""
    graph, config, last = report["graph"], report["config"], (report["history"] or [{}])[-1]
    from rich.table import Table  # which the library does without

    table = Table(
        title=f"{graph['name']}: {graph['vertices']:,} vertices, {graph['edges']:,} edges, "
        f"{plural(report['world_size'], 'rank')}, {config['algo']}, c = {config['c']}",
        show_header=False,
        title_justify="left",
    )
    if last and not report.get("runs"):
        table.add_row("loss", f"{last['loss']:.6f}")
        for name, value in last.items():
            split, _, score = name.partition("_")
            if split in SPLITS and score not in ("", "loss") and value is not None:
                table.add_row(_titled(name), _shown(name, value))
    for name, value in (report.get("mean") or {}).items():
        spread = _shown(name, report["std"][name])
        table.add_row(_titled(name), f"{_shown(name, value)} ± {spread}")

    parts = report["seconds"]
    shares = [f"{name} {seconds:.1f}" for name, seconds in parts.items()]
    table.add_row("seconds in all", f"{sum(parts.values()):.1f}")
    table.add_row("of them", in_lines(shares))
    epoch, spent = report["epoch_seconds"], report["breakdown_seconds"]
    seconds = f"{epoch['median']:.4f} (min {epoch['min']:.4f}, max {epoch['max']:.4f})"
    table.add_row("seconds per epoch", seconds)
    table.add_row("of which", in_lines([f"{name} {spent[name]:.4f}" for name in CATEGORIES]))
    for share, reached in list(report["seconds_to"].items())[-1:]:
        score = _titled(followed(report["history"]) or "")
        table.add_row(f"seconds to {float(share):.0%} {score}", f"{reached:.4f}")

    between = (report["volume_by_level"] or {}).get("between", {"total_bytes": 0})
    for title, moved in (
        ("bytes per epoch, planned", report.get("planned_volume")),
        ("bytes per epoch, counted", report["volume"]),
        ("of them between nodes", between if between["total_bytes"] else None),
    ):
        if moved is not None:
            total, most = moved["total_bytes"], moved["max_send_bytes"]
            table.add_row(title, f"{total:,} in all, most sent by a rank {most:,}")
    for direction in DIRECTIONS if report.get("approximation") else ():
        each = [e for e in report["approximation"]["errors"] if e["direction"] == direction]
        if each:
            errors = ["–" if e["error"] is None else f"{e['error']:.2%}" for e in each]
            table.add_row(f"error of messages, {direction}", ", ".join(errors))
    if report.get("storage") is not None:
        storage = report["storage"]
        where = ", ".join(storage["on_disk"]) or "nothing"
        moved = f"{storage['read_bytes']:,} read, {storage['written_bytes']:,} written"
        table.add_row("chunks of a rank's rows", f"{storage['chunks']}; on the disk: {where}")
        table.add_row("bytes per epoch, disk", moved)

    for name, title in (("peak_bytes", "peak memory"), ("peak_above_idle_bytes", "of it for data")):
        most, middle, first = (
            f"{report['memory'][f'{which}_{name}'] / 2**20:,.0f}"
            for which in ("max_rank", "median_rank", "rank_0")
        )
        table.add_row(title, f"{most} MiB at most on a rank, median {middle}, rank 0 {first}")
    show_table(table)


def plot_history(report: Report, path: str, title: str) -> None:
    """Draw losses, and then the scores, of each epoch of a report."""
    suffix = check_plot(path, "--output")
    history = report["history"]
    if not history:
        raise InputError(f"{title}: a report without epochs")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    figure.suptitle(title, parse_math=False)
    left, right = figure.subplots(1, 2)
    for name in history[-1]:
        points = [(r["epoch"], r[name]) for r in history if r.get(name) is not None]
        if name not in ("epoch", "seconds", "lr") and points:
            axes = left if name.endswith("loss") else right
            few = "o" if len(points) <= _FEW_POINTS else None  # of one point there is no line
            axes.plot(*zip(*points, strict=True), marker=few, markersize=4, label=_titled(name))
    for axes, what in ((left, "loss"), (right, "score")):
        axes.set(xlabel="epoch", ylabel=what)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        if axes.lines:
            axes.legend(frameon=False, fontsize="small")
    write_figure(figure, path, suffix, "--output")


def _titled(name: str) -> str:
    """Title of a score of a split, or of a loss."""
    plain = name.removesuffix(AT_BEST)
    split, _, score = plain.partition("_")
    if not score:
        return split
    where = AT_BEST.replace("_", " ") if plain != name else ""
    return f"{split} {'accuracy' if score == 'acc' else score.replace('_', ' ')}{where}"


def _shown(name: str, value: float) -> str:
    """A score: shares in percent."""
    score = name.removesuffix(AT_BEST).partition("_")[2]
    return f"{value:.2%}" if score in SHARES else f"{value:.6g}"


def seconds_to(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of training until a score was reached, for every whole percent above all before."""
    score_of, result = followed(history), dict[str, float]()
    if score_of is None:
        return result
    seconds, best = 0.0, -1
    for record in history:
        seconds += record["seconds"]
        score = record.get(score_of)
        percent = -1 if score is None else int(score * 100 + 1e-9)
        for reached in range(max(best + 1, 0), percent + 1):
            result[f"{reached / 100:.2f}"] = seconds
        best = max(best, percent)
    return result


def followed(history: Sequence[Mapping[str, Any]]) -> str | None:
    """The first score that there is, of the test set or else of the validation set."""
    scores = [f"{split}_{share}" for split in ("test", "val") for share in (*SHARES, "r2", "mrr")]
    for name in scores:
        if any(record.get(name) is not None for record in history):
            return name
    return None


def final_scores(history: Sequence[Mapping[str, Any]]) -> Scores:
    """The last value of each score, and the test score where that of validation was best."""
    result: Scores = {}
    for record in history:
        present = {name: value for name, value in record.items() if value is not None}
        result.update({n: v for n, v in present.items() if n not in ("epoch", "seconds", "lr")})
    for name in [n for n in result if n.startswith("val_") and n != "val_loss"]:
        test = name.replace("val_", "test_", 1)
        both = [r for r in history if None not in (r.get(name), r.get(test))]
        if both:
            best = min if name.removeprefix("val_") in LOWER_IS_BETTER else max
            result[f"{test}{AT_BEST}"] = best(both, key=lambda record: record[name])[test]
    return result
