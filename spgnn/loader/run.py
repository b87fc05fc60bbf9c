"""One mini-batch training job under any launcher."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from spgnn.comm import Communicator, run_job
from spgnn.errors import InputError, memory_for
from spgnn.files import check_writable
from spgnn.loader import report as reporting
from spgnn.loader.config import MiniBatchConfig
from spgnn.loader.dataset import open_dataset
from spgnn.loader.training import BatchTask, BatchTrainer, LinkBatches, VertexBatches
from spgnn.memory import FreedMemory, give_back_freed, resident_bytes
from spgnn.partition.plot import check_plot
from spgnn.train import checkpoint
from spgnn.train import train as train_whole
from spgnn.train.callbacks import Callback, check_log_directory, logs_in
from spgnn.train.run import OWN_FLAGS


def main(arguments: Sequence[str] | None = None) -> int:
    """The mini-batch command; returns its exit status."""

    def publish(config: MiniBatchConfig, report: reporting.Report) -> None:
        reporting.publish(report, config.job.json)

    return run_job(lambda: MiniBatchConfig.read(arguments), train, publish, device="cpu")


def train(
    config: MiniBatchConfig, comm: Communicator, callbacks: Sequence[Callback] = ()
) -> reporting.Report:
    """Prepare the data, train, and return the report. Collective."""
    common = {name: value for name, value in config.flat().items() if name not in OWN_FLAGS}
    comm.check_agreement("flags", **common)
    config.check(comm.size)
    config = config.settled()
    comm.on_rank_zero(lambda: _check_targets(config))
    give_back_freed()
    idle = resident_bytes()
    with ExitStack() as stack:
        dataset = None
        if config.distribution.distributed == "none":
            opened = open_dataset(config, comm.rank)
            with memory_for(f"what is known of {config.data.dataset}"):
                dataset = comm.on_every_rank(lambda: stack.enter_context(opened))
        if dataset is None:
            task: BatchTask = VertexBatches(config, comm)
        else:
            kind = LinkBatches if config.aim.task == "links" else VertexBatches
            task = comm.on_every_rank(lambda: kind(config, comm, dataset))
        trainer = BatchTrainer(task, config, comm, [*callbacks, *_logs(config, comm)])
        trainer.freed = FreedMemory(comm.size, comm.ranks_here)
        trainer.freed.begin()
        comm.settled()
        trainer.run()
        if config.job.predictions is not None and trainer.failure is None:
            trainer.write_predictions(config.job.predictions)
        task.close()
        report = reporting.assemble(config, trainer, idle)
    if config.comparison.compare == "full":
        whole = train_whole(config.of_whole_graph(), comm)
        names = "config", "history", "best", "seconds_to", "epoch_seconds", "memory"
        report["full"] = {name: whole[name] for name in names}
    if config.comparison.plot is not None:
        path = config.comparison.plot
        comm.on_rank_zero(lambda: reporting.plot_scores(report, path))
    return report


def _logs(config: MiniBatchConfig, comm: Communicator) -> Sequence[Callback]:
    return logs_in(config.job.log) if config.job.log is not None and comm.rank == 0 else []


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
        check_plot(plot)
        check_writable(plot, "--plot")
    if job.log is not None:
        check_log_directory(job.log)
    if config.training.checkpoint is not None:
        checkpoint.check_target(config.training.checkpoint, config.training.resume)
