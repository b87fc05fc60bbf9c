"""The training report: one JSON object, gathered from all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.exchange.approximation import relative_errors
from spgnn.files import atomic_file
from spgnn.memory import peak_bytes
from spgnn.spmm import DistMatrix
from spgnn.train.clock import CATEGORIES
from spgnn.train.in_parts import InParts
from spgnn.train.loop import Trainer
from spgnn.train.measure import timed
from spgnn.train.reached import seconds_to
from spgnn.train.repeated import statistics, summary
from spgnn.train.rows import TrainingRows
from spgnn.train.setup import Problem
from spgnn.train.shown import show
from spgnn.train.task import GraphTask
from spgnn.train.wiring import Planned

Report = dict[str, Any]


def assemble(config: TrainConfig, trainer: Trainer, idle_bytes: int) -> Report:
    """The report of the training command, the same on every rank. Collective.

    Parameters
    ----------
    config : TrainConfig
    trainer : Trainer
        Of a `GraphTask`, after :meth:`Trainer.run`.
    idle_bytes : int
        Resident memory of this rank before it held any data.
    """
    task, comm = trainer.task, trainer.comm
    assert isinstance(task, GraphTask)
    meta, planned = task.problem.meta, _planned(task)
    return {
        "config": config.flat(),
        "world_size": comm.size,
        "graph": {
            "name": meta.name,
            "vertices": meta.vertices,
            "edges": meta.edges,
            "features": task.problem.features,
            "classes": task.problem.classes,
        },
        **measurements(trainer),
        "planned_volume": _volume(comm, planned.sent, planned.received),
        "planned_volume_by_level": _by_level(comm, planned.sent, planned.between),
        "approximation": _approximation(comm, task),
        "work": _work(comm, task.problem),
        "ghosts": _ghosts(comm, task.problem.training),
        "memory": memory(comm, idle_bytes),
        "partition": task.problem.partition_report,
        "failure": trainer.failure,
    }


def assemble_in_parts(config: TrainConfig, trainer: Trainer, idle_bytes: int) -> Report:
    """The report of a run whose rows were worked through in parts. Collective.

    Parameters
    ----------
    config : TrainConfig
    trainer : Trainer
        Of an `InParts`.
    idle_bytes : int
    """
    task, comm = trainer.task, trainer.comm
    assert isinstance(task, InParts)
    return {
        "config": config.flat(),
        "world_size": comm.size,
        "graph": {
            "name": task.meta.name,
            "vertices": task.meta.vertices,
            "edges": task.meta.edges,
            "features": task.features,
            "classes": task.classes,
        },
        **measurements(trainer),
        "storage": _storage(task),
        "memory": memory(comm, idle_bytes),
        "failure": trainer.failure,
    }


def _storage(task: InParts) -> Report:
    """How the memory was shared out, and what an epoch read and wrote. Collective.

    Amplification is what was transferred, whole pages, over what would have been asked for if all
    columns of every operand were in memory at once.
    """
    forecast, moved, speeds = task.forecast, task.moved, task.choice.speeds
    planned, least = forecast.bytes(), forecast.in_one_panel.bytes()
    transferred = moved.moved_in + moved.moved_out
    mine = [planned.read, planned.written, moved.read, moved.written, transferred]
    names = "planned_read", "planned_written", "read", "written", "transferred"
    by_rank = _gather(task.comm, [*mine, least.bytes])
    *totals, needed = by_rank.sum(axis=0).astype(int).tolist()
    return {
        "chunks": task.budget.parts,
        "on_disk": sorted(task.budget.places.on_disk),
        "panel_bytes": task.budget.places.panel_bytes,
        "recomputed_layers": sorted(task.budget.again),
        "disk_bytes_per_second": None
        if speeds is None or task.room.directory is None
        else speeds.disk,
        **{f"{name}_bytes": total for name, total in zip(names, totals, strict=True)},
        "amplification": totals[-1] / needed if needed else None,
    }


def measurements(trainer: Trainer) -> Report:
    """History, times and bytes of a trainer of any task, the same on every rank. Collective."""
    comm, measured = trainer.comm, trainer.measured
    sent = _per_epoch(measured.sent_bytes)
    seconds = _gather(comm, measured.seconds).max(axis=0).tolist()
    counted = timed(seconds) or [0.0]
    per_category = _gather(comm, measured.mean_breakdown()).max(axis=0)
    history = _completed(trainer, seconds)
    return {
        "history": history,
        "best": best(trainer),
        "seconds_to": seconds_to(history),
        "epoch_seconds": {
            "median": median(counted),
            "min": min(counted),
            "max": max(counted),
        },
        "breakdown_seconds": dict(zip(CATEGORIES, per_category.tolist(), strict=True)),
        "volume": _volume(comm, sent, _per_epoch(measured.received_bytes)),
        "volume_by_level": _by_level(comm, sent, _per_epoch(measured.sent_between)),
    }


def best(trainer: Trainer) -> dict[str, Any] | None:
    """The record of the best epoch by what the task is judged by, and by what; ``None`` without.

    Of equally good ones the first.
    """
    judged, found = trainer.task.criterion, None
    for record in trainer.history:
        score = record.get(judged.name)
        if score is not None and (found is None or judged.better(score, found[judged.name])):
            found = record
    return None if found is None else {"by": judged.name, **found}


def of_runs(config: TrainConfig, trainers: Sequence[Trainer]) -> Report:
    """Several runs, and the mean and the standard deviation of their scores; ``None`` of one."""
    if config.training.runs == 1:
        return {"runs": None, "mean": None, "std": None}
    seed = config.training.seed
    runs = [summary(trainer, seed + number) for number, trainer in enumerate(trainers)]
    mean, std = statistics(runs)
    return {"runs": runs, "mean": mean, "std": std}


def memory(comm: Communicator, idle_bytes: int) -> dict[str, int]:
    """Peak memory of the ranks, and what of it is above idle. Collective.

    Rank 0 reads what the others are sent, so it says little of what a rank needs.
    """
    peak = peak_bytes()
    found = {}
    by_rank = _gather(comm, [peak, max(0, peak - idle_bytes)])
    for name, bytes_ in zip(("peak_bytes", "peak_above_idle_bytes"), by_rank.T, strict=True):
        found[f"max_rank_{name}"] = int(bytes_.max())
        found[f"rank_0_{name}"] = int(bytes_[0])
        found[f"median_rank_{name}"] = int(np.median(bytes_))
    return found


def _work(comm: Communicator, problem: Problem) -> dict[str, Any]:
    """Nonzeros that all ranks multiply in a product of each layer, and with the whole matrix.

    ``None`` for a first layer on propagated features, which multiplies none.
    """
    graph = problem.training.graph
    layers = [graph] if isinstance(graph, DistMatrix) else [layer.A for layer in graph]
    mine = [0 if A is None else A.plan.nonzeros for A in [problem.A, *layers]]
    whole, *of_layers = _gather(comm, mine).sum(axis=0).astype(int).tolist()
    counted = [None if A is None else n for A, n in zip(layers, of_layers, strict=True)]
    return {"whole_nonzeros": whole, "layer_nonzeros": counted}


def _ghosts(comm: Communicator, training: TrainingRows) -> dict[str, int]:
    """Rows that are recomputed on other ranks than their own, and the memory of their features."""
    by_rank = _gather(comm, [training.ghosts, training.ghost_bytes])
    (rows, bytes_), (most_rows, most_bytes) = by_rank.sum(axis=0), by_rank.max(axis=0)
    return {
        "total_rows": int(rows),
        "max_rank_rows": int(most_rows),
        "total_bytes": int(bytes_),
        "max_rank_bytes": int(most_bytes),
    }


def write(report: Report, path: str) -> None:
    """Write the report aside, then rename it into place.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    with atomic_file(path, f"--json {path}") as file:
        file.write(text.encode())


def publish(
    report: Report, path: str | None, shown: Callable[[Report], None] | None = None
) -> None:
    """Write the report and print the table; what went wrong is said last.

    Parameters
    ----------
    report : dict
    path : str, optional
    shown : callable, optional
        Prints another table than that of :func:`spgnn.train.shown.show`.

    Raises
    ------
    InputError
        If the report cannot be written, or training ended before it was done.
    """
    trouble = report["failure"]
    if path is not None:
        try:
            write(report, path)
        except InputError as error:
            trouble = trouble or str(error)
    (shown or show)(report)
    if trouble:
        raise InputError(trouble)


def _planned(task: GraphTask) -> Planned:
    """What an epoch moves; a mean where that changes with the epochs."""
    if task.wiring is not None or task.planned:
        per_epoch = zip(*task.planned, strict=True) if task.planned else [()] * 3
        return Planned(*(_per_epoch(counts) for counts in per_epoch))
    size = task.comm.ledger.node_size
    return Planned(*task.planned_bytes(), task.planned_between(size) if size else 0)


def _approximation(comm: Communicator, task: GraphTask) -> Report | None:
    """What wires were asked for, and the errors that they made; ``None`` of exact ones."""
    if task.wiring is None:
        return None
    return {
        "wires": task.wiring.described,
        "errors": relative_errors(task.wiring.errors, comm),
    }


def _per_epoch(counts: Sequence[int]) -> int:
    return sum(counts) // max(len(counts), 1)


def _volume(comm: Communicator, sent: int, received: int) -> dict[str, int | float]:
    # float64 holds bytes exactly up to 2⁵³.
    by_rank = _gather(comm, [sent, received])
    return {
        "total_bytes": int(by_rank[:, 0].sum()),
        "max_send_bytes": int(by_rank[:, 0].max()),
        "max_recv_bytes": int(by_rank[:, 1].max()),
        "avg_send_bytes": float(by_rank[:, 0].mean()),
    }


def _by_level(comm: Communicator, sent: int, crossing: int) -> dict[str, dict[str, int]] | None:
    """Bytes inside nodes and between them; ``None`` where it is not known which ranks are a node.

    Parameters
    ----------
    comm : Communicator
    sent : int
        By this rank.
    crossing : int
        How many of them go to other nodes.
    """
    if not comm.ledger.node_size:
        return None
    inside, between_nodes = _gather(comm, [sent - crossing, crossing]).T
    return {
        level: {"total_bytes": int(by_rank.sum()), "max_send_bytes": int(by_rank.max())}
        for level, by_rank in (("inside", inside), ("between", between_nodes))
    }


def _completed(trainer: Trainer, seconds: list[float]) -> list[dict[str, Any]]:
    """The history, with ``None`` for the scores of epochs that were not evaluated.

    An epoch takes as long as its slowest rank; those of an earlier run keep what they had.
    """
    names = dict.fromkeys(name for record in trainer.history for name in record)
    found = [{**names, **record} for record in trainer.history]
    # What ended training has taken time as well, and left no record.
    for record, slowest in zip(found[trainer.first_epoch :], seconds, strict=False):
        record["seconds"] = slowest
    return found


def _gather(comm: Communicator, values: Any) -> np.ndarray[Any, Any]:
    """One row of numbers from each rank, float64 [P, numbers]."""
    mine = torch.as_tensor(np.asarray(values, dtype=np.float64)).reshape(1, -1)
    rows = torch.empty(comm.size, mine.shape[1], dtype=torch.float64)
    if mine.shape[1]:
        comm.all_gather(mine, rows, [1] * comm.size)
    return rows.numpy()
