"""One training job under any launcher."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spgnn.comm import Communicator
from spgnn.comm.launch import run_job
from spgnn.config import Job, TrainConfig, Training
from spgnn.data.distribute import RankShare
from spgnn.errors import InputError
from spgnn.files import check_writable
from spgnn.frontend.from_config import training_graph
from spgnn.graph.training import TrainingGraph
from spgnn.graph.vertices import check_table
from spgnn.memory import FreedMemory, give_back_freed, resident_bytes
from spgnn.options import Configuration
from spgnn.progress import PROCESS_BEGAN, Stopwatch
from spgnn.registry import PLANNERS
from spgnn.train import checkpoint
from spgnn.train import report as reporting
from spgnn.train.callbacks import Callback, check_log_directory, logs_in
from spgnn.train.links import LinkPrediction
from spgnn.train.task import GraphTask, Task
from spgnn.train.trainer import Trainer
from spgnn.train.vertices import NodeClassification

Shared = tuple[RankShare, dict[str, Any] | None]
# What may differ between ranks: machines do.
OWN_FLAGS = ("threads", "data_dir")


def main(arguments: Sequence[str] | None = None, program: str = "gcn.py") -> int:
    """The training command, as whatever program it was called; returns its exit status."""
    flags: dict[str, object] = {}

    def read() -> TrainConfig:
        flags.update(TrainConfig.given(arguments, program))
        return TrainConfig.of(**flags)

    def body(config: TrainConfig, comm: Communicator) -> reporting.Report:
        return train(config, comm, flags, watch=Stopwatch(PROCESS_BEGAN))

    return run_job(read, body, reporting.publish)


run_train = partial(main, program="spgnn train")


def train(
    config: TrainConfig,
    comm: Communicator,
    flags: Collection[str] | None = None,
    callbacks: Sequence[Callback] = (),
    data: TrainingGraph | None = None,
    watch: Stopwatch | None = None,
) -> reporting.Report:
    """Prepare the data, train, and return the training report. Collective.

    Parameters
    ----------
    config : TrainConfig
    comm : Communicator
        All ranks.
    flags : names of flags, optional
        What ``--plan`` must leave alone; by default whatever is not as it is by default.
    callbacks : sequence of Callback
        ``on_epoch(record)``, called after each epoch of every run on rank 0.
    data : TrainingGraph, optional
        Of a configuration that differs in codecs, optimiser and outputs alone.
    watch : Stopwatch, optional
        That has run since the command began.

    Raises
    ------
    InputError
        On all ranks, if their flags differ or something is wrong with these or with a file.
    """
    how, watch = config.algorithm, watch or Stopwatch()
    read = (config.data.dataset, how.partition, how.edges, how.plan, how.machine)
    check_run(config, comm, lambda: check_targets(config.job, of_run(config, 0).training, read))
    config = resolved(config, comm)
    if flags is None:
        flags = {option.name for option, _ in config.changed}
    if config.algorithm.nodes is not None:
        flags = {*flags, "nodes"}
    plan = None
    if config.algorithm.plan is not None:
        config, plan = PLANNERS.need("training", "--plan", "plan")(config, comm, flags)
    whole_rows, config = config.whole_rows, config.decided()
    idle = resident_bytes()
    watch.lap("start")
    shared, more = None, dict[str, Any]()  # of the report
    make: Callable[[TrainConfig], Task]
    if config.opener is not None:
        make = partial(config.opener, comm=comm, idle_bytes=idle)
    else:
        if data is None:
            if 1 < comm.size == comm.rank + 1:  # for its dry run, while rank 0 reads
                import torch.fx.experimental.symbolic_shapes  # noqa: F401
            for extension in config.extensions:
                part = extension.share(config, comm)
                if part is not None:
                    shared, more = part
            data = training_graph(config, comm, shared, watch)
            del shared
        make = partial(task_of, data=data)
    trainers, freed = list[Trainer](), FreedMemory(comm.size, comm.ranks_here)
    with ExitStack() as stack:
        # Runs share the graph, and differ in what is drawn from their seeds.
        for number in range(config.training.runs):
            one = resumable(of_run(config, number), comm)
            task = stack.enter_context(closing(make(one)))
            logs = callbacks_of(one.job, comm, callbacks)
            trainers.append(Trainer(task, options=one.training, callbacks=logs))
            if number == 0:
                freed.begin()
                comm.settled()
            watch.lap("reading" if task.has_budget else "model")
            if not task.has_budget:
                trainers[-1].freed = freed
            trainers[-1].run()
            watch.lap("evaluation", training=sum(trainers[-1].measured.seconds))
            if not task.has_budget:
                write_predictions(one.job, trainers[-1], one.data.dataset)
            if trainers[-1].failure:
                break
        report = reporting.assemble(config, trainers[0], idle, watch)
        if task.has_budget:  # outputs of all vertices are no part of what training takes
            write_predictions(config.job, trainers[0], config.data.dataset)
    report |= {"plan": plan, **more, **reporting.of_runs(config, trainers)}
    return {**report, "whole_rows": whole_rows, "failure": trainers[-1].failure}


def check_run(config: Configuration, comm: Communicator, check: Callable[[], None]) -> None:
    """Refuse flags that differ between ranks or cannot work, and what `check` does. Collective.

    `check` is called on rank 0. What was freed so far is given back to the system.
    """
    common = {name: value for name, value in config.flat().items() if name not in OWN_FLAGS}
    comm.check_agreement("flags", **common)
    config.check(comm.size)
    comm.on_rank_zero(check)
    give_back_freed()


def callbacks_of(job: Job, comm: Communicator, callbacks: Sequence[Callback]) -> list[Callback]:
    """The given callbacks, and on rank 0 those of ``--log``."""
    return [*callbacks, *(logs_in(job.log) if job.log is not None and comm.rank == 0 else [])]


def run_all(
    trainer: Trainer, job: Job, watch: Stopwatch, dataset: str | None = None, *, keep: bool = True
) -> None:
    """Train, with memory kept that an epoch freed, and write predictions. Collective."""
    comm = trainer.comm
    if keep:
        trainer.freed = FreedMemory(comm.size, comm.ranks_here)
        trainer.freed.begin()
    comm.settled()
    watch.lap("reading")
    trainer.run()
    watch.lap("evaluation", training=sum(trainer.measured.seconds))
    write_predictions(job, trainer, dataset)


def tried_seconds(
    config: TrainConfig, comm: Communicator, epochs: int, shared: Shared | None = None
) -> list[tuple[float, float]]:
    """Seconds of each of some epochs, and those in exchanges; nothing is kept. Collective."""
    options = replace(config.training, checkpoint=None, resume=False)
    trainer = Trainer(task_of(config, training_graph(config, comm, shared)), options=options)
    freed, waited = FreedMemory(comm.size, comm.ranks_here), list[float]()
    freed.begin()
    for epoch in range(epochs):
        before = comm.ledger.copy()
        trainer.measured.epoch(partial(trainer.train_epoch, epoch))
        waited.append(sum(t.seconds for t in comm.ledger.since(before).operations.values()))
        freed.after_epoch()
    trainer.task.finish()  # rows that are late
    give_back_freed()
    return list(zip(trainer.measured.seconds, waited, strict=True))


def write_predictions(job: Job, trainer: Trainer, dataset: str | None) -> None:
    """If they were asked for, and there is a model; the report is written whatever happens."""
    if job.predictions is None or trainer.failure is not None:
        return
    try:
        trainer.write_predictions(job.predictions, dataset)
    except InputError as error:
        trainer.failure = str(error)


def check_targets(
    job: Job,
    training: Training,
    read: Sequence[str | None],
    more: Mapping[str, str | None] = MappingProxyType({}),
) -> None:
    """Try every place to write to, which is nothing that is read, before anything takes long.

    `more` are further tables by their flags.
    """
    tables = {"--predictions": job.predictions, **more}
    for flag, path in tables.items():
        if path is not None and not path.endswith((".npz", ".parquet")):
            raise InputError(f"{flag} {path}: its name must end in .npz or .parquet")
        if path is not None and path.endswith(".parquet"):
            check_table(f"{flag} {path}")
    for flag, path in {"--json": job.json, **tables}.items():
        if path is None:
            continue
        check_writable(path, flag)
        for name in filter(None, (*read, job.config)):
            if os.path.exists(path) and os.path.exists(name) and os.path.samefile(path, name):
                raise InputError(f"{flag} {path}: is what this run reads")
    if job.log is not None:
        check_log_directory(job.log)
    if training.checkpoint is not None:
        checkpoint.check_target(training.checkpoint, training.resume)


def resolved(config: TrainConfig, comm: Communicator) -> TrainConfig:
    """The same configuration with nodes known, and ``--hierarchy auto`` decided."""
    launched, how = comm.ranks_a_node(), config.algorithm
    if how.nodes is not None:
        launched = comm.size // how.nodes
    size = how.node_size if how.node_size > 1 else launched
    comm.ledger.know(size, how.group_sizes[:-1])
    if 1 < size < comm.size:
        config = config.but(nodes=comm.size // size)
    if how.hierarchy != "auto":
        return config
    result = config.but(hierarchy=str(size) if 1 < size < comm.size else "none")
    try:
        result.check(comm.size)
    except InputError:
        return config.but(hierarchy="none")
    return result


def of_run(config: TrainConfig, number: int) -> TrainConfig:
    """The configuration of one run of several: its seed, and its names of what it writes."""
    if config.training.runs == 1:
        return config
    name, job, training = f"run-{number}", config.job, config.training
    predictions = job.predictions
    if predictions is not None:
        path = Path(predictions)
        predictions = str(path.with_suffix(f".{name}{path.suffix}"))
    return config.but(
        seed=training.seed + number,
        checkpoint=training.checkpoint and os.path.join(training.checkpoint, name),
        log=job.log and os.path.join(job.log, name),
        predictions=predictions,
    )


def resumable(config: TrainConfig, comm: Communicator) -> TrainConfig:
    """Begin those of several runs that had not begun. Collective."""
    training = config.training
    if training.runs == 1 or not training.resume or training.checkpoint is None:
        return config
    path = os.path.join(training.checkpoint, checkpoint.FILE)
    return config.but(resume=comm.from_rank_zero(lambda: os.path.exists(path)))


def task_of(config: TrainConfig, data: TrainingGraph) -> GraphTask:
    """The task of a configuration. Collective."""
    if config.aim.task == "links":
        return LinkPrediction(config, data)
    for extension in config.extensions:
        if (other := extension.task(config)) is not None:
            task: GraphTask = other(config, data)
            return task
    return NodeClassification(config, data)
