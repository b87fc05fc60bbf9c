"""The command that trains recommenders: one job under any launcher, its report and its table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from rich.table import Table

from spgnn.addons.recommend.config import RECIPES, RecommendConfig
from spgnn.addons.recommend.recommendation import PairTask, Recommendation
from spgnn.addons.recommend.spilled import SpilledRecommendation
from spgnn.comm import Communicator, run_job
from spgnn.command import plural, show_table
from spgnn.errors import InputError
from spgnn.memory import resident_bytes
from spgnn.progress import PROCESS_BEGAN, Stopwatch
from spgnn.train import Callback, Trainer, callbacks_of, check_run, check_targets, run_all
from spgnn.train import report as reporting

Report = dict[str, Any]
_SPLITS = {"temporal": "the latest interactions", "random": "random interactions"}
_SPLITS |= {"files": "a file of interactions"}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    publish = partial(reporting.publish, shown=show)

    def body(config: RecommendConfig, comm: Communicator) -> Report:
        return train(config, comm, watch=Stopwatch(PROCESS_BEGAN))

    return run_job(lambda: RecommendConfig.read(arguments), body, publish, device="cpu")


def train(
    config: RecommendConfig,
    comm: Communicator,
    callbacks: Sequence[Callback] = (),
    watch: Stopwatch | None = None,
) -> Report:
    """Read the interactions, train, and return the report. Collective.

    Raises
    ------
    InputError
        On all ranks, if flags, interactions or a place to write to are wrong.
    """
    watch = watch or Stopwatch()
    read, best = (config.data.dataset, config.algorithm.partition), {"--top-k": config.job.top_k}
    check_run(config, comm, lambda: check_targets(config.job, config.training, read, best))
    config = config.but(cover=config.distribution.cover)
    idle, spills = resident_bytes(), config.storage.spill is not None
    watch.lap("start")
    with ExitStack() as stack:
        task: PairTask
        if spills:
            task = stack.enter_context(closing(SpilledRecommendation(config, comm)))
        else:
            task = Recommendation(config, comm)
        logs = callbacks_of(config.job, comm, callbacks)
        trainer = Trainer(task, options=config.training, callbacks=logs)
        run_all(trainer, config.job, watch, keep=not spills)
        if config.job.top_k is not None and trainer.failure is None:
            try:
                task.write_top_k(config.job.top_k)
            except InputError as error:
                trainer.failure = str(error)
        return reporting.assemble(config, trainer, idle, watch)


def show(report: Report) -> None:
    graph, config = report["graph"], report["config"]
    table = Table(
        title=f"{graph['name']}: {graph['users']:,} users, {graph['items']:,} items, "
        f"{graph['interactions']:,} interactions, {plural(report['world_size'], 'rank')}, "
        f"{plural(report['steps_per_epoch'], 'step')} an epoch",
        show_header=False,
        title_justify="left",
    )
    last = report["history"][-1] if report["history"] else {}
    recipe = RECIPES.get(config["recipe"])
    published = {} if recipe is None else {"recall": recipe.recall, "ndcg": recipe.ndcg}
    for name, value in last.items():
        if name not in ("epoch", "lr", "seconds") and value is not None:
            score = name.removeprefix("test_").partition("@")
            reference = published.get(score[0]) if score[2] == "20" else None
            beside = "" if reference is None else f" (published: {reference:.4f})"
            table.add_row(name.replace("_", " "), f"{value:.4f}{beside}")
    seconds = report["epoch_seconds"]["median"]
    table.add_row("tested on", _SPLITS[graph["split"]])
    table.add_row("seconds per epoch", f"{seconds:.4f}")
    table.add_row("bytes per epoch, counted", f"{report['volume']['total_bytes']:,} in all")
    peak = report["memory"]["max_rank_peak_bytes"] / 2**20
    table.add_row("peak memory", f"{peak:,.0f} MiB at most on a rank")
    show_table(table)
