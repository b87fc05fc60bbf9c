"""Sizes of superbatches and caches, from a few batches (section 3.5 of Ginex)."""

from __future__ import annotations

import shutil
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from spgnn.addons.batches import Counts, SampleCounts
from spgnn.addons.diskbatches.batch_training import BatchTask
from spgnn.addons.diskbatches.cached_rows import CachedRows
from spgnn.addons.diskbatches.disk_pattern import DiskPattern
from spgnn.addons.diskbatches.minibatch_config import MiniBatchConfig
from spgnn.addons.diskbatches.superbatch import SampleFile
from spgnn.comm import Communicator
from spgnn.command import say
from spgnn.errors import InputError
from spgnn.memory import peak_bytes, resident_bytes
from spgnn.train import gathered

PROFILED = 4  # batches that are drawn for it
DISK = 0.5  # share of what is free that samples may take
RESERVE = 1 / 16  # of the memory, for what varies from batch to batch


def choose_sizes(task: BatchTask, config: MiniBatchConfig, comm: Communicator) -> dict[str, int]:
    """Set the superbatch and the caches as far as the configuration leaves them open."""
    loader, dataset, storage = task.loader, task.dataset, config.storage
    if dataset is None or (config.superbatch and not storage.memory):
        return {}
    x, pattern = loader.graph.x, loader.graph.pattern
    superbatch, cache, each = config.superbatch, storage.cache, 0
    if not superbatch:
        assert dataset.scratch is not None
        each = _sample_bytes(task, dataset.scratch)
        files = 1 + config.sampling.overlap  # two at once
        room = shutil.disk_usage(dataset.scratch).free * DISK / files / comm.ranks_here
        superbatch = max(1, min(len(loader), int(room / max(each, 1))))
        # As many superbatches, but all alike.
        superbatch = -(-len(loader) // -(-len(loader) // superbatch))
    if storage.memory:
        used = _step_bytes(task, config) + (storage.structure_cache or 0)
        cache = int(storage.memory * (1 - RESERVE)) - used
    least = gathered(comm, [superbatch, cache, each]).min(axis=0)
    superbatch, cache, each = (int(number) for number in least)
    if storage.memory and cache <= 0:
        limit, taken = _text(storage.memory), _text(storage.memory - cache)
        raise InputError(f"storage.memory {limit}: training takes {taken} without any cache")
    loader.superbatch = replace(loader.superbatch, size=superbatch)
    loader.counts, loader.sampled = Counts(), SampleCounts()
    if storage.memory and isinstance(x, CachedRows):
        x.resize(cache)
        if isinstance(pattern, DiskPattern) and storage.structure_cache is None:
            pattern.resize(cache * config.takes_turns)
    if comm.rank == 0:
        sizes = f"superbatches of {superbatch} of {len(loader)} batches"
        if each:
            sizes += f", {_text(each)} of samples each in {storage.store_dir}"
        if storage.memory:
            sizes += f"; a cache of {_text(cache)} of {_text(storage.memory)}"
        say(f"chosen: {sizes}")
    return {"superbatch": superbatch, "cache": cache, "sample_bytes": each}


def _text(nbytes: float) -> str:
    return f"{nbytes / 1e6:.4g} MB"


def _sample_bytes(task: BatchTask, directory: Path) -> int:
    """Bytes on a disk of the sample of a batch, the mean of some."""
    loader = task.loader
    order, count = loader.order(0), min(PROFILED, len(loader))
    if not count:
        return 0
    with closing(SampleFile(directory, count)) as file:
        for number in range(count):
            sample = loader.draw(0, loader.rank + number * loader.ranks, order)
            file.put(number, sample)
            file.put_uses(number, sample.nodes.int().numpy())
        return file.nbytes // count


def _step_bytes(task: BatchTask, config: MiniBatchConfig) -> int:
    """Resident memory at the peak of a step, and of batches made ahead; nothing is learnt."""
    loader = task.loader
    with suppress(OSError):  # Otherwise it is the peak so far.
        Path("/proc/self/clear_refs").write_text("5")
    state = deepcopy(task.model.state_dict())
    task.model.train()
    batch = loader.sample(0, min(loader.rank, loader.batches - 1))
    loss, _ = task.loss_of(batch)
    if loss is not None:
        loss.backward()
    task.model.zero_grad()
    task.model.load_state_dict(state)
    assert loader.graph.x is not None
    rows, width = len(batch.n_id), task.features
    ahead = (config.sampling.prefetch + 2) * rows * 4 * width
    tables = 16 * loader.graph.rows  # of both caches: where each row is, and its next use
    return max(peak_bytes(), resident_bytes()) + ahead + tables
