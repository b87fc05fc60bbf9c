"""The command that trains recommenders: one job under any launcher, its report and its table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from rich.table import Table

from spgnn.comm import Communicator
from spgnn.comm.launch import run_job
from spgnn.command import plural, show_table
from spgnn.memory import FreedMemory, give_back_freed, resident_bytes
from spgnn.recommend.config import RECIPES, RecommendConfig
from spgnn.recommend.recommendation import PairTask, Recommendation
from spgnn.recommend.spilled import SpilledRecommendation
from spgnn.train import Trainer
from spgnn.train import report as reporting
from spgnn.train.callbacks import Callback, logs_in
from spgnn.train.run import OWN_FLAGS, check_targets

Report = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""

    def publish(config: RecommendConfig, report: Report) -> None:
        reporting.publish(report, config.job.json, show)

    return run_job(lambda: RecommendConfig.read(arguments), train, publish, device="cpu")


def train(
    config: RecommendConfig, comm: Communicator, callbacks: Sequence[Callback] = ()
) -> Report:
    """Read the interactions, train, and return the report. Collective.

    Raises
    ------
    InputError
        On all ranks, if flags, interactions or a place to write to are wrong.
    """
    common = {name: value for name, value in config.flat().items() if name not in OWN_FLAGS}
    comm.check_agreement("flags", **common)
    config.check(comm.size)
    read = (config.data.dataset, config.algorithm.partition)
    comm.on_rank_zero(lambda: check_targets(config.job, config.training, read))
    give_back_freed()
    idle = resident_bytes()
    with ExitStack() as stack:
        task: PairTask
        if config.storage.spill is None:
            task = Recommendation(config, comm)
        else:
            task = stack.enter_context(closing(SpilledRecommendation(config, comm)))
        return _trained(config, task, callbacks, idle)


def _trained(
    config: RecommendConfig, task: PairTask, callbacks: Sequence[Callback], idle: int
) -> Report:
    comm = task.comm
    logs = logs_in(config.job.log) if config.job.log and comm.rank == 0 else []
    trainer = Trainer(task, options=config.training, callbacks=[*callbacks, *logs])
    if config.storage.spill is None:
        trainer.freed = FreedMemory(comm.size, comm.ranks_here)
        trainer.freed.begin()
    comm.settled()
    trainer.run()
    if config.job.predictions is not None and trainer.failure is None:
        trainer.write_predictions(config.job.predictions)
    return {
        "config": config.flat(),
        "world_size": comm.size,
        **reporting.measurements(trainer),
        **task.sections(),
        "memory": reporting.memory(comm, idle),
        "failure": trainer.failure,
    }


def show(report: Report) -> None:
    """Print the closing table."""
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
            known = published.get(score[0]) if score[2] == "20" else None
            beside = "" if known is None else f" (published: {known:.4f})"
            table.add_row(name.replace("_", " "), f"{value:.4f}{beside}")
    seconds = report["epoch_seconds"]["median"]
    table.add_row("seconds per epoch", f"{seconds:.4f}")
    table.add_row("bytes per epoch, counted", f"{report['volume']['total_bytes']:,} in all")
    peak = report["memory"]["max_rank_peak_bytes"] / 2**20
    table.add_row("peak memory", f"{peak:,.0f} MiB at most on a rank")
    show_table(table)
