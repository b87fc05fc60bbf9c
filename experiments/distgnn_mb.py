"""The scaling of DistGNN-MB, its figures 3 and 4, and the comparison with DistDGL, its figure 5.

python experiments/distgnn_mb.py scaling --models sage,gat --ranks 4,16,64
python experiments/distgnn_mb.py compare --ranks 4,8 --gigabits 1

Ranks are processes of this machine. Each has a clock that counts the processor's seconds of its own
work, on one thread, and what links of so many gigabits a second need (`paper/slow_link.py`). So
many ranks on a few cores take the time that they would take on a core each.

The paper's ranks have 36 cores each; so the model and the batches here are smaller than its own
(hidden 256, batches of 1000 and pushes of 2000 rows), and rows pushed as many a seed as there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import systems  # noqa: F401
from paper.output import Output, can_draw, finished, show
from paper.slow_link import throttled

from spgnn.addons.diskbatches import MiniBatchConfig, train
from spgnn.addons.diskbatches.minibatch import epochs_to
from spgnn.comm import connect
from spgnn.command import run
from spgnn.errors import InputError, check_choice
from spgnn.options import Record, flag, positional, read_options
from spgnn.testing import run_ranks

# Table 2: learning rates on one socket and on several; heads of GAT, which is that of equation 2.
MODELS: dict[str, tuple[float, float, dict[str, Any]]] = {
    "sage": (0.003, 0.006, {}),
    "gat": (0.001, 0.001, {"heads": 4, "model": "gat-relu-first"}),
}
# DistDGL: exact batches of a rank's own seeds; features of each are fetched when it is begun.
# DistDGLv2 has those of the next ones travel meanwhile.
DISTDGL = {"distributed": "exact", "seeds": "own", "prefetch": 0}
AHEAD = DISTDGL | {"prefetch": 1}
# DistGNN-MB, Algorithm 2 line by line.
HISTORICAL = {"distributed": "aep"}
Records = list[dict[str, Any]]
MOST_RANKS = 64
UNCOUNTED = 2  # first epochs, which reports leave out


@dataclass(frozen=True)
class Options(Record):
    """Options of both commands."""

    command: Annotated[str, positional("what is measured")]
    output: Annotated[str, flag("where it goes", "DIR")] = "distgnn_mb"
    ranks: Annotated[str | None, flag("numbers of ranks", "P,…")] = None
    models: Annotated[str | None, flag(f"of {', '.join(MODELS)}", "NAME,…")] = None
    dataset: Annotated[str, flag("a file or a set's name")] = "amazon-computers"
    data_dir: Annotated[str | None, flag("where named sets live", "DIR")] = None
    batch_size: Annotated[int, flag("seeds of a rank's batch", low=1)] = 100
    num_neighbors: Annotated[str, flag("of each vertex, the seeds' hop first", "N,…")] = "15,10,5"
    hidden: Annotated[int, flag("width of the layers between", low=1)] = 64
    historical: Annotated[str, flag("as of experiments/minibatch.py", "SIZE,LIFE,DELAY,PUSH")] = (
        "100000,2,1,200,features"
    )
    epochs: Annotated[int | None, flag("of each run; the first two are no part of seconds")] = None
    gigabits: Annotated[float, flag("a second, of each rank's link")] = 1.0
    latency: Annotated[float, flag("seconds of a message")] = 50e-6
    seed: Annotated[int, flag("of models and batches")] = 0


def on_rank(rank: int, flags: dict[str, Any], gigabits: float, latency: float) -> dict[str, Any]:
    """Train on links of that kind; the report."""
    comm = throttled(connect(), gigabits, latency, clock="processor")
    return train(MiniBatchConfig.of(**flags), comm)


def measure(options: Options, model: str, ranks: int, epochs: int, **way: Any) -> dict[str, Any]:
    """The report of a run on so many ranks; of one process that holds all if it is one."""
    how = way.get("distributed", "one process")
    print(f"{model}, {ranks} ranks, {how}: {epochs} epochs", flush=True)
    one, several, flags = MODELS[model]
    flags = {"model": model} | flags
    flags |= {name: getattr(options, name) for name in ("dataset", "data_dir", "batch_size")}
    flags |= {name: getattr(options, name) for name in ("num_neighbors", "hidden", "seed")}
    flags |= {"epochs": epochs, "lr": several if ranks > 1 else one, "threads": 1}
    flags |= {"balance": "nnz,train"} if ranks > 1 else {"prefetch": 0}
    if how == HISTORICAL["distributed"]:
        flags["historical"] = options.historical
    reports = run_ranks(on_rank, ranks, flags | way, options.gigabits, options.latency)
    first: dict[str, Any] = reports[0]
    return first


def parts_of(report: dict[str, Any]) -> dict[str, float]:
    """Seconds of an epoch by part, mean over ranks."""
    return {name: fmean(of["by_rank"]) for name, of in report["batch_seconds"]["parts"].items()}


def measured(model: str, ranks: int, report: dict[str, Any]) -> dict[str, Any]:
    """What both commands say of a run."""
    rates = (report.get("historical") or {}).get("hit_rate", [])
    return {
        "model": model,
        "ranks": ranks,
        "seconds an epoch": report["epoch_seconds"]["median"],
        "load imbalance %": 100 * (report["batch_seconds"]["load_imbalance"] - 1),
        "MB an epoch": report["volume"]["total_bytes"] / 1e6,
        "hits": " ".join("–" if rate is None else f"{rate:.0%}" for rate in rates),
        **{f"{name} s": seconds for name, seconds in parts_of(report).items()},
    }


def scaling(options: Options, models: Sequence[str], counts: Sequence[int], out: Output) -> None:
    """Figures 3 and 4."""
    records: Records = []
    bars: dict[str, dict[str, dict[str, float]]] = {}
    for model in models:
        base = None
        for ranks in counts:
            epochs = options.epochs or UNCOUNTED + 2
            report = measure(options, model, ranks, epochs, eval_every=epochs, **HISTORICAL)
            record = measured(model, ranks, report)
            base = base or record["seconds an epoch"]
            record[f"× {counts[0]} ranks"] = base / record["seconds an epoch"]
            records.append(record)
            bars.setdefault(model, {})[f"{ranks} ranks"] = parts_of(report)
            out.write_csv(records)
    finish(options, records, bars, out)
    print(
        "The paper, on Papers100M: 64 ranks 10 × (GraphSAGE) and 17.2 × (GAT) as fast as 4, load "
        "imbalance of at most 12 % and 8.7 %."
    )


def compare(options: Options, models: Sequence[str], counts: Sequence[int], out: Output) -> None:
    """Figure 5, table 3 and section 4.5."""
    records: Records = []
    bars: dict[str, dict[str, dict[str, float]]] = {}
    epochs = options.epochs or 12
    for model in models:
        one = measure(options, model, 1, epochs)
        target = one["history"][-1]["test_acc"]
        print(
            f"{model}, one process: {target:.2%} after {epochs} epochs, within 1 % of it in epoch "
            f"{epochs_to(one['history'], target)}",
            flush=True,
        )
        for ranks in counts:
            slow = None
            for name, way, length in (
                ("DistDGL", DISTDGL, epochs),
                # The same batches: only their seconds are others.
                ("DistDGL, ahead", AHEAD, UNCOUNTED + 2),
                ("historical", HISTORICAL, epochs),
            ):
                rest = {} if length == epochs else {"eval_every": length}
                report = measure(options, model, ranks, length, target=target, **rest, **way)
                record = {"batches": name, **measured(model, ranks, report)}
                slow = slow or record["seconds an epoch"]
                record["× DistDGL"] = slow / record["seconds an epoch"]
                reached, scores = report["epochs_to_target"], report["history"]
                record["epochs to 1 %"] = record["seconds to 1 %"] = None
                record["accuracy %"] = None
                if length == epochs:
                    record["epochs to 1 %"] = reached
                    if reached is not None:
                        spent = sum(epoch["seconds"] for epoch in scores[:reached])
                        record["seconds to 1 %"] = spent
                    record["accuracy %"] = 100 * scores[-1]["test_acc"]
                records.append(record)
                bars.setdefault(model, {})[f"{name}, {ranks}"] = parts_of(report)
                out.write_csv(records)
    finish(options, records, bars, out)
    print(
        "The paper: 5.2 × DistDGL on 64 ranks of Papers100M; GraphSAGE within 1 % of one process "
        "in epoch 30 on 16 ranks of products, where one process needs 7."
    )


def finish(
    options: Options, records: Records, bars: dict[str, dict[str, dict[str, float]]], out: Output
) -> None:
    """Print two tables, and draw the bars."""
    caption = (
        f"{options.dataset}, batches of {options.batch_size}, hidden {options.hidden}, links of "
        f"{options.gigabits:g} Gb/s, a core a rank, --historical {options.historical}"
    )
    names = [name for name in records[0] if name in ("batches", "model", "ranks")]
    seconds = [name for name in records[0] if name.endswith(" s")]
    show(caption, [{k: v for k, v in r.items() if k not in seconds} for r in records])
    show("Seconds by part, mean over ranks", [{k: r[k] for k in names + seconds} for r in records])
    if can_draw():
        out.draw_stacks(bars, "seconds an epoch, mean over ranks", caption)


Command = Callable[[Options, Sequence[str], Sequence[int], Output], None]
COMMANDS: dict[str, tuple[str, Command, str]] = {
    "scaling": ("seconds of an epoch by part, speedup, load imbalance", scaling, "2,4,8"),
    "compare": ("seconds an epoch and to the accuracy of one process", compare, "4,8"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write a table and a figure; returns the exit status."""

    def body() -> None:
        about = "; ".join(f"{name}: {what}" for name, (what, *_) in COMMANDS.items())
        given = read_options([Options], arguments, program="distgnn_mb.py", about=about)
        options = Options(**given)
        check_choice("COMMAND", options.command, COMMANDS)
        _, command, ranks = COMMANDS[options.command]
        models = (options.models or ("sage,gat" if command is scaling else "sage")).split(",")
        for model in models:
            check_choice("--models", model, MODELS)
        words = (options.ranks or ranks).split(",")
        if not all(word.isdecimal() and 2 <= int(word) <= MOST_RANKS for word in words):
            raise InputError(f"--ranks {options.ranks}: must be numbers from 2 to {MOST_RANKS}")
        if options.epochs is not None and options.epochs <= UNCOUNTED:
            raise InputError(f"--epochs {options.epochs}: must be more than {UNCOUNTED}")
        out = Output(Path(options.output), options.command)
        command(options, models, sorted({int(word) for word in words}), out)
        finished(out)

    return run(body)


if __name__ == "__main__":
    sys.exit(main())
