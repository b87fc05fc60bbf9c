"""The report of mini-batch training where each rank holds its part of the graph."""

from __future__ import annotations

from typing import Any

from spgnn.minibatch.config import MiniBatchConfig
from spgnn.minibatch.local import HistoricalLoader
from spgnn.minibatch.ranked import RankedTrainer
from spgnn.minibatch.report import Report, sampled, summed
from spgnn.train import report as usual


def of_ranks(config: MiniBatchConfig, trainer: RankedTrainer, idle_bytes: int) -> Report:
    """The report, the same on every rank. Collective.

    ``features`` counts rows that batches needed and, of these, those that came from other ranks;
    ``historical`` is what :meth:`HistoricalLoader.report` says.

    Parameters
    ----------
    config : MiniBatchConfig
    trainer : RankedTrainer
        After it has run.
    idle_bytes : int
        Resident memory of this rank before it held any data.
    """
    task, comm = trainer.task, trainer.comm
    meta, loader = task.share.meta, task.loader
    found = usual.measurements(trainer)
    is_historical = isinstance(loader, HistoricalLoader) and loader.history is not None
    return {
        "config": config.flat(),
        "world_size": comm.size,
        "graph": {
            "name": meta.name,
            "vertices": meta.vertices,
            "edges": meta.edges,
            "features": task.features,
            "classes": task.classes,
        },
        **found,
        "batches_per_epoch": len(loader) * comm.size,
        "sampler": sampled(comm, loader.sampled),
        "features": _features(trainer),
        "historical": _historical(loader) if is_historical else None,
        "memory": usual.memory(comm, idle_bytes),
        "partition": task.partition_report,
        "failure": trainer.failure,
    }


def _features(trainer: RankedTrainer) -> dict[str, Any]:
    told = trainer.task.loader.ranks.counts.record()
    numbers = summed(trainer.comm, list(told.values()))
    found = {name: int(number) for name, number in zip(told, numbers, strict=True)}
    del found["hits"]
    unknown = dict.fromkeys(("hit_rate", "optimal_hit_rate", "policy"))
    return {**found, **unknown, "cache_rows": 0}


def _historical(loader: Any) -> dict[str, Any]:
    found: dict[str, Any] = loader.report()
    return found
