"""The training report: one JSON object and one table, gathered from all ranks."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.train.clock import CATEGORIES
from spgnn.train.loop import Trainer
from spgnn.train.memory import peak_bytes

FLOAT32_BYTES = 4


def assemble(trainer: Trainer, comm: Communicator, idle_bytes: int) -> dict[str, Any]:
    """The report of the whole job, the same on every rank. Collective.

    Parameters
    ----------
    trainer : Trainer
        After :meth:`Trainer.run`.
    comm : Communicator
    idle_bytes : int
        Resident memory of this rank before it held any data.
    """
    problem, measured = trainer.problem, trainer.measured
    seconds = _gather(comm, measured.seconds).max(axis=0)
    _write_slowest(trainer.history, seconds)
    timed = sorted(seconds[1:] if len(seconds) > 1 else seconds)
    parts = np.array(measured.breakdowns[1:] or measured.breakdowns).reshape(-1, len(CATEGORIES))
    per_category = _gather(comm, parts.mean(axis=0) if len(parts) else np.zeros(len(CATEGORIES)))
    peak = peak_bytes()
    memory = _gather(comm, [peak, max(0, peak - idle_bytes)])
    report = {
        "config": asdict(trainer.config),
        "world_size": comm.size,
        "graph": {
            "name": problem.meta.name,
            "vertices": problem.meta.vertices,
            "edges": problem.meta.edges,
            "features": problem.features,
            "classes": problem.classes,
        },
        "history": trainer.history,
        "epoch_seconds": {
            "median": median(timed) if timed else 0.0,
            "min": float(timed[0]) if timed else 0.0,
            "max": float(timed[-1]) if timed else 0.0,
        },
        "breakdown_seconds": dict(zip(CATEGORIES, per_category.max(axis=0).tolist(), strict=True)),
        "volume": _volume(
            comm, _per_epoch(measured.sent_bytes), _per_epoch(measured.received_bytes)
        ),
        "planned_volume": _volume(comm, *_planned(trainer)),
        "memory": {
            "max_rank_peak_bytes": int(memory[:, 0].max()),
            "max_rank_peak_above_idle_bytes": int(memory[:, 1].max()),
        },
        "partition": problem.partition_report,
    }
    return report


def write(report: dict[str, Any], path: str) -> None:
    """Write the report aside, then rename it into place.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        aside.write_text(json.dumps(report, indent=1) + "\n")
        aside.replace(target)
    except OSError as error:
        raise InputError(f"--json {path}: cannot be written: {error.strerror}") from None
    finally:
        aside.unlink(missing_ok=True)


def show(report: dict[str, Any]) -> None:
    """Print the closing table."""
    graph, config = report["graph"], report["config"]
    table = Table(
        title=f"{graph['name']}: {graph['vertices']:,} vertices, {graph['edges']:,} edges, "
        f"{report['world_size']} ranks, {config['algo']}, c = {config['c']}",
        show_header=False,
        title_justify="left",
    )
    last = report["history"][-1]
    table.add_row("loss", f"{last['loss']:.6f}")
    for name in ("train", "val", "test"):
        if last[f"{name}_acc"] is not None:
            table.add_row(f"{name} accuracy", f"{last[f'{name}_acc']:.2%}")
    epoch = report["epoch_seconds"]
    table.add_row(
        "seconds per epoch",
        f"{epoch['median']:.4f} (min {epoch['min']:.4f}, max {epoch['max']:.4f})",
    )
    spent = report["breakdown_seconds"]
    table.add_row("of which", "  ".join(f"{name} {spent[name]:.4f}" for name in CATEGORIES))
    for name, title in (("planned_volume", "planned"), ("volume", "counted")):
        volume = report[name]
        table.add_row(
            f"bytes per epoch, {title}",
            f"{volume['total_bytes']:,} in all, most sent by a rank {volume['max_send_bytes']:,}",
        )
    memory = report["memory"]
    table.add_row(
        "peak memory per rank",
        f"{memory['max_rank_peak_bytes'] / 2**20:,.0f} MiB, "
        f"{memory['max_rank_peak_above_idle_bytes'] / 2**20:,.0f} MiB of it for data",
    )
    Console().print(table)


def _planned(trainer: Trainer) -> tuple[int, int]:
    """Bytes this rank sends and receives in one epoch, according to the plan alone."""
    products = trainer.model.products(trainer.problem.X)
    volume = trainer.problem.A.volume
    forward, adjoint = sum(products.forward), sum(products.adjoint)
    sent = volume.send * forward + volume.receive * adjoint
    received = volume.receive * forward + volume.send * adjoint
    return sent * FLOAT32_BYTES, received * FLOAT32_BYTES


def _per_epoch(counts: list[int]) -> int:
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


def _write_slowest(history: list[dict[str, Any]], seconds: np.ndarray[Any, Any]) -> None:
    """An epoch takes as long as its slowest rank (those of an earlier run keep what they had)."""
    for record, slowest in zip(history[len(history) - len(seconds) :], seconds, strict=True):
        record["seconds"] = float(slowest)


def _gather(comm: Communicator, values: Any) -> np.ndarray[Any, Any]:
    """One row of numbers from each rank, float64 [P, numbers]."""
    mine = torch.as_tensor(np.asarray(values, dtype=np.float64)).reshape(1, -1)
    rows = torch.empty(comm.size, mine.shape[1], dtype=torch.float64)
    if mine.shape[1]:
        comm.all_gather(mine, rows, [1] * comm.size)
    return rows.numpy()
