"""The mini-batch command: one job under any launcher, its report, its table and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import accumulate, product
from statistics import fmean
from typing import Any

from rich.table import Table

from spgnn.addons.diskbatches.batch_training import (
    BatchTask,
    BatchTrainer,
    LinkBatches,
    VertexBatches,
)
from spgnn.addons.diskbatches.cached_rows import CachedRows, hits
from spgnn.addons.diskbatches.disk_pattern import DiskPattern
from spgnn.addons.diskbatches.minibatch_config import FeatureTable, MiniBatchConfig
from spgnn.addons.diskbatches.minibatch_data import open_dataset
from spgnn.addons.diskbatches.sizes import choose_sizes
from spgnn.comm import Communicator, run_job
from spgnn.command import in_lines, plural, show_table
from spgnn.errors import memory_for
from spgnn.files import check_writable
from spgnn.memory import resident_bytes
from spgnn.partition import check_plot, write_figure
from spgnn.progress import PROCESS_BEGAN, Stopwatch
from spgnn.train import Callback, callbacks_of, check_run, check_targets, gathered, run_all
from spgnn.train import report as reporting
from spgnn.train import train as train_whole

Report = dict[str, Any]
# Rows in the trace from which the best hit rate is computed: 8 bytes each, for a while.
LONGEST_TRACE = 1 << 25


def main(arguments: Sequence[str] | None = None) -> int:
    """The mini-batch command; returns its exit status."""
    publish = partial(reporting.publish, shown=show)

    def body(config: MiniBatchConfig, comm: Communicator) -> Report:
        return train(config, comm, watch=Stopwatch(PROCESS_BEGAN))

    return run_job(lambda: MiniBatchConfig.read(arguments), body, publish)


def train(
    config: MiniBatchConfig,
    comm: Communicator,
    callbacks: Sequence[Callback] = (),
    watch: Stopwatch | None = None,
) -> Report:
    """Prepare the data, train, and return the report. Collective."""
    watch = watch or Stopwatch()
    plot, read = config.comparison.plot, (config.data.dataset, config.distribution.partition)

    def check() -> None:
        check_targets(config.job, config.training, read)
        if plot is not None:
            check_plot(plot)
            check_writable(plot, "--plot")

    check_run(config, comm, check)
    config = config.settled()
    idle = resident_bytes()
    watch.lap("start")
    with ExitStack() as stack:
        dataset = None
        if config.distribution.distributed == "none":
            opened = open_dataset(config, comm.rank)
            with memory_for(f"what is known of {config.data.dataset}"):
                dataset = comm.on_every_rank(lambda: stack.enter_context(opened))
        if dataset is None:
            task: BatchTask = VertexBatches(config, comm)
        else:
            learn = LinkBatches if config.aim.task == "links" else VertexBatches
            task = comm.on_every_rank(lambda: learn(config, comm, dataset))
        chosen = choose_sizes(task, config, comm)
        mode = config.mode
        kind = BatchTrainer if mode is None or mode.trainer is None else mode.trainer
        trainer = kind(task, config, comm, callbacks_of(config.job, comm, callbacks))
        run_all(trainer, config.job, watch, config.data.dataset)
        report = assemble(config, trainer, idle, watch) | {"chosen": chosen or None}
    if config.comparison.compare == "full":
        whole = train_whole(config.of_whole_graph(), comm)
        names = "config", "history", "best", "seconds_to", "epoch_seconds", "memory"
        report["full"] = {name: whole[name] for name in names}
    if plot is not None:
        comm.on_rank_zero(lambda: plot_scores(report, plot))
    return report


def assemble(
    config: MiniBatchConfig, trainer: BatchTrainer, idle_bytes: int, watch: Stopwatch
) -> Report:
    """The report of a run that is over, the same on every rank. Collective."""
    task, comm = trainer.task, trainer.comm
    meta, loader, strategy = task.meta, task.loader, task.loader.strategy
    mine = loader.sampled
    counts = {"batches": mine.batches, "vertices": mine.vertices, "edges": mine.edges}
    # The rate is that of the sampling threads of all ranks together.
    seconds, rate = gathered(comm, [mine.seconds, mine.edges_per_second]).sum(axis=0).tolist()
    report = {
        **reporting.assemble(config, trainer, idle_bytes, watch),
        "graph": {
            "name": meta.name,
            "vertices": meta.vertices,
            "edges": meta.edges,
            "features": task.features,
            "classes": task.classes,  # type: ignore[attr-defined]
        },
        "batch_seconds": trainer.clock.report(),
        "batches_per_epoch": loader.batches if strategy is None else len(loader) * comm.size,
        "sampler": {**_totals(comm, counts), "seconds": seconds, "edges_per_second": rate},
    }
    if config.comparison.target is not None:
        report["epochs_to_target"] = epochs_to(report["history"], config.comparison.target)
    if strategy is None:
        pattern = loader.graph.pattern
        report["structure"] = None
        if isinstance(pattern, DiskPattern):  # before batches are drawn again, for a bound
            report["structure"] = _structure(config, comm, pattern)
        report["features"] = _features(config, trainer)
        return report
    none = dict.fromkeys(("hit_rate", "optimal_hit_rate", "policy"))
    rows = _totals(comm, loader.counts.record())
    del rows["hits"]
    report["features"] = {**rows, **none, "cache_rows": 0}
    report["partition"] = task.partition_report  # type: ignore[attr-defined]
    return report | strategy.report()


def epochs_to(history: Sequence[Mapping[str, Any]], target: float) -> int | None:
    """Epochs until the score that ``seconds_to`` follows was within 0.01 of a target, if it was."""
    followed = reporting.followed(history)
    for record in history:
        score = None if followed is None else record.get(followed)
        if score is not None and target - score < 0.01:
            return int(record["epoch"]) + 1
    return None


def _totals(comm: Communicator, counts: Mapping[str, int]) -> dict[str, int]:
    sums = gathered(comm, list(counts.values())).sum(axis=0)
    return dict(zip(counts, sums.astype(int).tolist(), strict=True))


def _features(config: MiniBatchConfig, trainer: BatchTrainer) -> Report:
    """Rows that training needed of the features, and rows read for it; evaluation apart."""
    comm, loader = trainer.comm, trainer.task.loader
    x, needed = loader.graph.x, loader.counts.rows_needed
    counts = loader.counts.record() | trainer.rows_read
    total = _totals(comm, counts)
    rate = total.pop("hits") / max(total["rows_needed"], 1)
    result: Report = {**total, "hit_rate": None, "optimal_hit_rate": None, "cache_rows": 0}
    result |= {"policy": None, "packed": None}
    if isinstance(x, CachedRows):
        x.release()
        result |= {"policy": config.storage.cache_policy, "hit_rate": rate, "cache_rows": x.slots}
        if 0 < needed <= LONGEST_TRACE:
            # The best that any rule could do on this rank's batches, all known beforehand: they are
            # drawn again, as functions of their numbers.
            epochs = range(trainer.first_epoch, len(trainer.history))
            trace = (ids for epoch in epochs for ids in loader.trace(epoch))
            result["optimal_hit_rate"] = sum(hits("belady", trace, x.slots)) / needed
    elif isinstance(x, FeatureTable):
        numbers = _totals(
            comm, {**x.report(), "sample_bytes": getattr(loader.samples, "nbytes", 0)}
        )
        result |= {"policy": "packed", "hit_rate": rate, "packed": numbers}
    return result


def _structure(config: MiniBatchConfig, comm: Communicator, pattern: DiskPattern) -> Report:
    """Neighbours that sampling asked for, in blocks or rows, and what was read of the disk."""
    cached = pattern.lists is not None or isinstance(pattern.blocks, CachedRows)
    total = _totals(comm, pattern.counts.record())
    loaded = 0 if pattern.lists is None else pattern.lists.loaded_bytes
    return {
        "unit": "blocks" if pattern.lists is None else "rows",
        "needed": total["rows_needed"],
        "read": total["rows_read"],
        "bytes_needed": total["bytes_needed"],
        "bytes_read": total["bytes_read"],
        "reads": total["reads"],
        **_totals(comm, {"loaded_bytes": loaded}),  # of a cache, before each superbatch
        "hit_rate": total["hits"] / max(total["rows_needed"], 1) if cached else None,
        "policy": config.storage.structure_policy if cached else None,
        "block_bytes": pattern.block_bytes,
    }


def show(report: Report) -> None:
    """Print the closing table."""
    graph, config = report["graph"], report["config"]
    table = Table(
        title=f"{graph['name']}: {graph['vertices']:,} vertices, {graph['edges']:,} edges, "
        f"{plural(report['world_size'], 'rank')}, {config['sampler']} {config['num_neighbors']}, "
        f"{plural(report['batches_per_epoch'], 'batch', 'batches')} of {config['batch_size']}",
        show_header=False,
        title_justify="left",
    )
    last = report["history"][-1] if report["history"] else {}
    for name, value in last.items():
        if name not in ("epoch", "lr", "seconds") and value is not None:
            table.add_row(name.replace("_", " "), f"{value:.4f}")
    table.add_row("seconds per epoch", f"{report['epoch_seconds']['median']:.4f}")
    spent = report["batch_seconds"]
    parts = {name: fmean(part["by_rank"]) for name, part in spent["parts"].items()}
    spent_on = [f"{name} {seconds:.4f}" for name, seconds in parts.items() if seconds]
    table.add_row("of which", in_lines(spent_on))
    if report["world_size"] > 1 and spent["load_imbalance"] is not None:
        table.add_row("busiest rank over the mean", f"{spent['load_imbalance']:.3f}")
    if "epochs_to_target" in report:
        reached = report["epochs_to_target"]
        target = f"epochs to within 0.01 of {config['target']:g}"
        table.add_row(target, "not reached" if reached is None else str(reached))
    table.add_row("sampled edges per second", f"{report['sampler']['edges_per_second']:,.0f}")
    rows = report["features"]
    table.add_row("feature rows", f"{rows['rows_needed']:,} needed, {rows['rows_read']:,} read")
    copies = report.get("replicas")
    if copies is not None:
        text = f"{copies['factor']:.2f} × the graph, {copies['bytes'] / 1e6:,.1f} MB"
        table.add_row("vertices on all ranks", text)
    stale = report.get("historical")
    if stale is not None:
        rates = ("–" if rate is None else f"{rate:.1%}" for rate in stale["hit_rate"])
        table.add_row(
            "hits of rows of others", ", ".join(f"L{i} {rate}" for i, rate in enumerate(rates))
        )
    if rows["hit_rate"] is not None:
        best = rows["optimal_hit_rate"]
        beside = "" if best is None else f" (at best {best:.2%})"
        table.add_row(f"hits of the cache, {rows['policy']}", f"{rows['hit_rate']:.2%}{beside}")
    lists = report.get("structure")
    if lists is not None:
        rate = "" if lists["hit_rate"] is None else f", {lists['hit_rate']:.2%} hits"
        text = f"{lists['needed']:,} needed, {lists['read']:,} read{rate}"
        table.add_row(f"{lists['unit']} of neighbours", text)
    for prefix, part in (("", report), ("full graph: ", report.get("full"))):
        # The best scores of the last three evaluations that reached a better one than before.
        seconds_to = {} if part is None else part["seconds_to"]
        best_scores = {seconds: score for score, seconds in seconds_to.items()}
        for seconds, score in list(best_scores.items())[-3:]:
            table.add_row(f"{prefix}seconds to {score}", f"{seconds:.3f}")
    show_table(table)


def plot_scores(report: Mapping[str, Any], path: str) -> None:
    """Draw validation and test scores, of the whole graph too if it was trained on."""
    suffix = check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)  # no window system
    axes = figure.subplots()
    parts = ("mini-batch", "C0", report), ("full graph", "C1", report.get("full"))
    for (kind, colour, part), (split, style) in product(parts, (("test", "-"), ("val", ":"))):
        history = [] if part is None else part["history"]
        names = [n for r in history for n in r if n.startswith(split) and "loss" not in n]
        seconds = accumulate(record["seconds"] for record in history)
        points = [
            (at, record[names[0]])
            for at, record in zip(seconds, history, strict=True)
            if names and record.get(names[0]) is not None
        ]
        if points:
            dot, label = "o" if len(points) == 1 else None, names[0].replace("_", " ")
            line = zip(*points, strict=True)
            axes.plot(*line, style, marker=dot, color=colour, label=f"{kind}, {label}")
    config, graph = report["config"], report["graph"]
    title = f"{graph['name']}: {config['model']}, {config['num_neighbors']}"
    axes.set_title(title, parse_math=False)
    axes.set(xlabel="seconds of training", ylabel="score")
    axes.set_xscale("log")
    axes.legend(frameon=False, fontsize="small")
    write_figure(figure, path, suffix, "--plot")
