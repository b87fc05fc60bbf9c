"""One mini-batch training job under any launcher."""

from __future__ import annotations

from collections.abc import Sequence

from spgnn import command
from spgnn.comm import (
    Communicator,
    connect,
    guarded,
    on_every_rank,
    on_rank_zero,
    ranks_here,
    refuse,
)
from spgnn.errors import InputError, memory_for
from spgnn.files import check_writable
from spgnn.memory import FreedMemory, give_back_freed, resident_bytes
from spgnn.minibatch import report as reporting
from spgnn.minibatch.config import MiniBatchConfig
from spgnn.minibatch.materials import materials
from spgnn.minibatch.plot import check_plot, plot_scores
from spgnn.minibatch.ranked import RankedTask, RankedTrainer
from spgnn.minibatch.ranked_report import of_ranks
from spgnn.minibatch.tasks import task_of
from spgnn.minibatch.train import BatchTrainer
from spgnn.train import Trainer, checkpoint
from spgnn.train import train as train_whole
from spgnn.train.callbacks import Callback, check_log_directory, logs_in
from spgnn.train.run import OWN_FLAGS, start


def main(arguments: Sequence[str] | None = None) -> int:
    """The mini-batch command; returns its exit status."""
    command.prepare_streams()
    try:
        config = MiniBatchConfig.read(arguments)
    except InputError as error:
        return refuse(error)
    return start(config, lambda: run_rank(config))


def run_rank(config: MiniBatchConfig) -> int:
    """The whole job on one rank: connect, train, write and print the report on rank 0."""
    try:
        comm = connect(config.job.backend, "cpu")
    except InputError as error:
        return refuse(error)
    with guarded(comm):
        report = train(config, comm)
    if comm.rank != 0:
        return 0
    return command.run(lambda: reporting.publish(report, config.job.json))


def train(
    config: MiniBatchConfig, comm: Communicator, callbacks: Sequence[Callback] = ()
) -> reporting.Report:
    """Prepare the data, train, and return the report. Collective.

    Parameters
    ----------
    config : MiniBatchConfig
    comm : Communicator
        All ranks: each takes every P-th batch, and gradients are averaged.
    callbacks : sequence of Callback
        Told of the run, on rank 0.

    Raises
    ------
    InputError
        If ranks were started with different flags, or the data set, the checkpoint or a place to
        write to is wrong.
    """
    common = {name: value for name, value in config.flat().items() if name not in OWN_FLAGS}
    comm.check_agreement("flags", **common)
    config.check(comm.size)
    config = config.settled()
    on_rank_zero(comm, lambda: _check_targets(config))
    give_back_freed()
    idle = resident_bytes()
    on = _on_whole if config.distribution.distributed == "none" else _on_parts
    report = on(config, comm, callbacks, idle)
    if config.comparison.compare == "full":
        report["full"] = _of_whole_graph(config, comm)
    if config.comparison.plot is not None:
        on_rank_zero(comm, lambda: plot_scores(report, str(config.comparison.plot)))
    return report


def _on_whole(
    config: MiniBatchConfig, comm: Communicator, callbacks: Sequence[Callback], idle: int
) -> reporting.Report:
    """Train where each rank holds the whole graph."""
    made = materials(config, comm.rank)
    with memory_for(f"what is known of {config.data.dataset}"):
        made_of = on_every_rank(comm, made.__enter__)
    try:
        task = on_every_rank(comm, lambda: task_of(config, made_of, comm))
        trainer = BatchTrainer(task, config, comm, [*callbacks, *_logs(config, comm)])
        _run(trainer, config)
        return reporting.assemble(config, trainer, idle)
    finally:
        made.__exit__(None, None, None)


def _on_parts(
    config: MiniBatchConfig, comm: Communicator, callbacks: Sequence[Callback], idle: int
) -> reporting.Report:
    """Train where each rank holds its part of the graph."""
    task = RankedTask(config, comm)
    trainer = RankedTrainer(task, config, comm, [*callbacks, *_logs(config, comm)])
    _run(trainer, config)
    task.close()
    return of_ranks(config, trainer, idle)


def _logs(config: MiniBatchConfig, comm: Communicator) -> Sequence[Callback]:
    return logs_in(config.job.log) if config.job.log is not None and comm.rank == 0 else []


def _run(trainer: Trainer, config: MiniBatchConfig) -> None:
    trainer.freed = FreedMemory(trainer.comm.size, ranks_here())
    trainer.freed.begin()
    trainer.comm.settled()
    trainer.run()
    if config.job.predictions is not None and trainer.failure is None:
        trainer.write_predictions(config.job.predictions)


def _of_whole_graph(config: MiniBatchConfig, comm: Communicator) -> reporting.Report:
    """The same model trained on the whole graph, on the same machine."""
    found = train_whole(config.of_whole_graph(), comm)
    kept = "config", "history", "best", "seconds_to", "epoch_seconds", "memory"
    return {name: found[name] for name in kept}


def _check_targets(config: MiniBatchConfig) -> None:
    """Try every place to write to before anything takes long."""
    job, plot = config.job, config.comparison.plot
    if job.json is not None:
        check_writable(job.json, "--json")
    if job.predictions is not None:
        if not job.predictions.endswith(".npz"):
            raise InputError(f"--predictions {job.predictions}: its name must end in .npz")
        check_writable(job.predictions, "--predictions")
    if plot is not None:
        _ = check_plot(plot)
        check_writable(plot, "--plot")
    if job.log is not None:
        check_log_directory(job.log)
    if config.training.checkpoint is not None:
        checkpoint.check_target(config.training.checkpoint, config.training.resume)
