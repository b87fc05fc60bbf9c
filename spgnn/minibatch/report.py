"""The report of mini-batch training: one JSON object and one table, gathered from all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from rich.table import Table

from spgnn.comm import Communicator
from spgnn.command import counted, show_table
from spgnn.minibatch.config import MiniBatchConfig
from spgnn.minibatch.counts import Sampled
from spgnn.minibatch.train import BatchTrainer
from spgnn.store import CachedRows, DiskPattern, PackedRows, Rows, optimal_hits
from spgnn.train import report as usual

Report = dict[str, Any]
# Rows in the trace of which the best hit rate is found: 8 bytes each, for a while.
LONGEST_TRACE = 1 << 25


def assemble(config: MiniBatchConfig, trainer: BatchTrainer, idle_bytes: int) -> Report:
    """The report of the mini-batch command, the same on every rank. Collective.

    Parameters
    ----------
    config : MiniBatchConfig
    trainer : BatchTrainer
        After it has run.
    idle_bytes : int
        Resident memory of this rank before it held any data.
    """
    task, comm = trainer.task, trainer.comm
    meta = task.made_of.meta
    found = usual.measurements(trainer)
    return {
        "config": config.flat(),
        "world_size": comm.size,
        "graph": {
            "name": meta.name,
            "vertices": meta.vertices,
            "edges": meta.edges,
            "features": task.made_of.features,
            "classes": task.made_of.classes,
        },
        **found,
        "batches_per_epoch": trainer.batches,
        "sampler": sampled(comm, trainer.task.loader.sampled),
        "features": _features(config, comm, trainer),
        "structure": _structure(config, comm, trainer),
        "memory": usual.memory(comm, idle_bytes),
        "failure": trainer.failure,
    }


def sampled(comm: Communicator, mine: Sampled) -> Report:
    """What all ranks have sampled; the rate is that of their sampling threads together."""
    batches, vertices, edges = summed(comm, [mine.batches, mine.vertices, mine.edges])
    seconds, rate = summed(comm, [mine.seconds, mine.edges_per_second])
    return {
        "batches": int(batches),
        "vertices": int(vertices),
        "edges": int(edges),
        "seconds": seconds,
        "edges_per_second": rate,
    }


def _features(config: MiniBatchConfig, comm: Communicator, trainer: BatchTrainer) -> Report:
    """What training asked of the features, and what was read for it; evaluation apart."""
    features, x = trainer.task.loader.features, trainer.task.loader.source.x
    told = dict.fromkeys(("rows_needed", "rows_read", "bytes_needed", "bytes_read", "hits"), 0)
    if isinstance(x, Rows):
        told |= trainer.rows_read
    told |= {name: getattr(features.counts, name) for name in ("rows_needed", "bytes_needed")}
    total = dict(zip(told, map(int, summed(comm, list(told.values()))), strict=True))
    rate = total.pop("hits") / max(total["rows_needed"], 1)
    cached = isinstance(x, CachedRows | PackedRows)
    best = _optimal(trainer, x.slots) if isinstance(x, CachedRows) else None
    return {
        **total,
        "hit_rate": rate if cached else None,
        "optimal_hit_rate": best,
        "cache_rows": x.slots if isinstance(x, CachedRows) else 0,
        "policy": _policy(config, x),
        "packed": _packed(comm, x) if isinstance(x, PackedRows) else None,
    }


def _policy(config: MiniBatchConfig, x: object) -> str | None:
    if isinstance(x, PackedRows):
        return "packed"
    return config.storage.cache_policy if isinstance(x, CachedRows) else None


def _packed(comm: Communicator, x: PackedRows) -> Report:
    """What packing took of the disk, over all ranks."""
    told = {"disk_bytes": x.disk_bytes, "bytes_read": x.packing.bytes_read}
    return dict(zip(told, map(int, summed(comm, list(told.values()))), strict=True))


def _structure(config: MiniBatchConfig, comm: Communicator, trainer: BatchTrainer) -> Report | None:
    """Blocks of neighbours that sampling asked for, and those that were read of the disk."""
    pattern = trainer.task.loader.source.pattern
    if not isinstance(pattern, DiskPattern):
        return None
    cached = isinstance(pattern.blocks, CachedRows)
    told = pattern.counts.record()
    total = dict(zip(told, map(int, summed(comm, list(told.values()))), strict=True))
    return {
        "blocks_needed": total["rows_needed"],
        "blocks_read": total["rows_read"],
        "bytes_needed": total["bytes_needed"],
        "bytes_read": total["bytes_read"],
        "hit_rate": total["hits"] / max(total["rows_needed"], 1) if cached else None,
        "policy": config.storage.structure_policy if cached else None,
        "block_bytes": pattern.block_bytes,
    }


def _optimal(trainer: BatchTrainer, slots: int) -> float | None:
    """The best that any rule could do on this rank's batches, all of them known beforehand.

    Batches are drawn again: they are functions of their numbers. `None` if that would be too much.
    """
    loader, needed = trainer.task.loader, trainer.task.loader.features.counts.rows_needed
    epochs = range(trainer.first_epoch, len(trainer.history))
    if not needed or needed > LONGEST_TRACE:
        return None

    def trace() -> Iterator[torch.Tensor]:
        for epoch in epochs:
            yield from loader.trace(epoch)

    return optimal_hits(trace(), slots) / needed


def summed(comm: Communicator, numbers: Sequence[float]) -> list[float]:
    """Each number's sum over all ranks. Collective."""
    mine = torch.from_numpy(np.asarray(numbers, np.float64))
    comm.all_reduce(mine).wait()
    return [float(number) for number in mine]


def publish(report: Report, path: str | None) -> None:
    """Write the report and print its table, as those of full-graph training."""
    usual.publish(report, path, show)


def show(report: Report) -> None:
    """Print the closing table."""
    graph, config = report["graph"], report["config"]
    table = Table(
        title=f"{graph['name']}: {graph['vertices']:,} vertices, {graph['edges']:,} edges, "
        f"{counted(report['world_size'], 'rank')}, {config['sampler']} {config['num_neighbors']}, "
        f"{counted(report['batches_per_epoch'], 'batch', 'batches')} of {config['batch_size']}",
        show_header=False,
        title_justify="left",
    )
    last = report["history"][-1] if report["history"] else {}
    for name, value in last.items():
        if name not in ("epoch", "lr", "seconds") and value is not None:
            table.add_row(name.replace("_", " "), f"{value:.4f}")
    table.add_row("seconds per epoch", f"{report['epoch_seconds']['median']:.4f}")
    table.add_row("sampled edges per second", f"{report['sampler']['edges_per_second']:,.0f}")
    told = report["features"]
    table.add_row("feature rows", f"{told['rows_needed']:,} needed, {told['rows_read']:,} read")
    past = report.get("historical")
    if past is not None:
        rates = ", ".join("–" if rate is None else f"{rate:.1%}" for rate in past["hit_rate"])
        table.add_row("hits of rows of others, by layer", rates)
    if told["hit_rate"] is not None:
        best = told["optimal_hit_rate"]
        beside = "" if best is None else f" (at best {best:.2%})"
        table.add_row(f"hits of the cache, {told['policy']}", f"{told['hit_rate']:.2%}{beside}")
    blocks = report.get("structure")
    if blocks is not None:
        hits = "" if blocks["hit_rate"] is None else f", {blocks['hit_rate']:.2%} hits"
        shown = f"{blocks['blocks_needed']:,} needed, {blocks['blocks_read']:,} read{hits}"
        table.add_row("blocks of neighbours", shown)
    for name, seconds in _last_reached(report["seconds_to"]):
        table.add_row(f"seconds to {name}", f"{seconds:.3f}")
    full = report.get("full")
    if full is not None:
        for name, seconds in _last_reached(full["seconds_to"]):
            table.add_row(f"full graph: seconds to {name}", f"{seconds:.3f}")
    show_table(table)


def _last_reached(seconds_to: dict[str, float]) -> list[tuple[str, float]]:
    """The best scores of the last three evaluations that reached a better one than before."""
    best = {seconds: score for score, seconds in seconds_to.items()}
    return [(score, seconds) for seconds, score in best.items()][-3:]
