"""Superbatches through a disk: the same batches and losses, fewest reads, memory, and their end."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import spgnn
from spgnn import InputError
from spgnn.addons.batches import DiskRows, LinkNeighborLoader, MemoryRows, Sample
from spgnn.addons.diskbatches import (
    CachedRows,
    DiskPattern,
    DiskSuperbatch,
    MiniBatchConfig,
    superbatch,
    train,
)
from spgnn.addons.diskbatches.cached_rows import POLICIES, hits
from spgnn.comm import SoloCommunicator, connect
from spgnn.data import open_shards, write_shards
from spgnn.data.generators import block_model
from spgnn.direct import PAGE, pages_held
from spgnn.memory import resident_bytes
from spgnn.testing import run_ranks
from tests.addons.batches.graphs import N, arrays, directed, written

X = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
TIMES = torch.arange(N)


def geometric() -> Any:
    """A graph with all that the sample of a batch may hold."""
    data = pytest.importorskip("torch_geometric.data")
    row, column = directed().nonzero()
    index = torch.from_numpy(np.stack((column, row))).long()
    weight = torch.rand(index.shape[1], generator=torch.Generator().manual_seed(1))
    return data.Data(x=X, edge_index=index, edge_weight=weight, time=TIMES)


def same(one: Any, other: Any) -> None:
    for a, b in zip(arrays(one._sample), arrays(other._sample), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    mine, theirs = one._sample.extra, other._sample.extra
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.dtype == theirs[name].dtype
        assert torch.equal(value, theirs[name])
    assert (one.place, one.batch_size) == (other.place, other.batch_size)
    for a, b in ((one.x, other.x), (one.input_id, other.input_id), (one.n_id, other.n_id)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_disk_changes_no_batch(tmp_path, overlap):
    links = torch.arange(40).view(2, 20)
    label = torch.arange(40, dtype=torch.float64).view(20, 2) + 1
    for kind, given, options in (
        (spgnn.NeighborLoader, None, {"shuffle": True}),
        (spgnn.NeighborLoader, None, {"sampler": "labor"}),
        (spgnn.NeighborLoader, None, {"weight_attr": "edge_weight", "replace": True}),
        (spgnn.NeighborLoader, None, {"time_attr": "time", "input_time": TIMES + 20}),
        (LinkNeighborLoader, links, {"edge_label": label, "neg_sampling_ratio": 2}),
    ):
        size = {"batch_size": 7}
        wanted = list(kind(geometric(), [3, 2], given, **size, **options))
        for together, workers, prefetch in ((2, 1, 2), (4, 3, 1), (100, 2, 3), (3, 0, 2)):
            loader = kind(
                geometric(),
                [3, 2],
                given,
                superbatch=DiskSuperbatch(together, tmp_path, overlap),
                num_workers=workers,
                prefetch=prefetch,
                **size,
                **options,
            )
            for one, other in zip(wanted, loader, strict=True):
                same(one, other)
            assert not list(tmp_path.iterdir())
            assert not [t for t in threading.enumerate() if t.name.startswith("spgnn-")]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_rows_read_are_those_of_the_rule(tmp_path, policy, overlap):
    """With Belady's rule the fewest: `hits` is held to all choices in test_cached_rows."""
    features = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    record = block_model(400, 4000, classes=3, homophily=0.7, features=3, seed=1)
    disk = DiskRows(written(tmp_path / "x", features), 0, 400, 3, torch.float32)
    samples = tmp_path / "samples"
    samples.mkdir()
    scores = torch.arange(400).flip(0)
    for slots, size in ((1, 4), (60, 4), (60, 50), (400, 7)):
        store = CachedRows(disk, policy, slots * 12, scores=scores)
        loader = spgnn.NeighborLoader(
            replace(record, x=None),
            [3, 2],
            batch_size=20,
            shuffle=True,
            store=store,
            superbatch=DiskSuperbatch(size, samples, overlap),
            num_workers=2,
        )
        before, trace = disk.counts.rows_read, []
        for batch in loader:
            assert torch.equal(batch.x, features[batch.n_id])
            trace.append(batch.n_id.numpy())
        found = disk.counts.rows_read - before
        if overlap:
            had = sum(hits(policy, trace, slots, ahead=size, scores=scores))
        else:  # each superbatch begins with an empty cache
            had = sum(
                sum(hits(policy, trace[first : first + size], slots, scores=scores))
                for first in range(0, len(trace), size)
            )
        needed = sum(map(len, trace))
        assert found == needed - had
        assert store.counts.hits == had
        assert loader.counts.rows_needed == needed


def test_the_first_read_is_what_is_needed_first():
    class Noted(MemoryRows):
        def begin(self, ids: Any, out: Tensor, places: Any = None) -> Any:
            asked.append(ids.tolist())
            return super().begin(ids, out, places)

    asked: list[list[int]] = []
    rows = CachedRows(Noted(X), "belady", 4 * 20)
    trace = [torch.tensor(ids) for ids in ([9, 3], [3, 1], [7, 5, 2, 9], [5, 2])]
    for ids, found in zip(trace, rows.gather_many(trace), strict=True):
        assert torch.equal(found, X[ids])
    assert asked[0] == [1, 2, 3, 9]  # all of two batches, and one row of the third
    read = Counter(row for some in asked for row in some)
    assert read == Counter({1: 1, 2: 1, 3: 1, 5: 1, 7: 1, 9: 1})


class Alive:
    """Bytes of the samples that are in memory, and the most that there were."""

    def __init__(self) -> None:
        self.now = self.most = self.largest = self.total = 0
        self.lock = threading.Lock()

    def add(self, sample: Sample) -> None:
        size = sum(a.nbytes for a in arrays(sample))
        with self.lock:
            self.now, self.total = self.now + size, self.total + size
            self.most, self.largest = max(self.most, self.now), max(self.largest, size)
        weakref.finalize(sample, self.leave, size)

    def leave(self, size: int) -> None:
        with self.lock:
            self.now -= size


@pytest.mark.parametrize("overlap", [False, True])
def test_memory_of_samples_does_not_depend_on_the_superbatch(tmp_path, overlap, monkeypatch):
    alive = Alive()
    read = superbatch.SampleFile.__getitem__

    def noted(self: Any, number: int) -> Any:
        sample = read(self, number)
        alive.add(sample)
        return sample

    monkeypatch.setattr(superbatch.SampleFile, "__getitem__", noted)
    n, workers, ahead = 4000, 2, 2
    record = block_model(n, 20_000, classes=3, homophily=0.7, features=1, seed=1)
    disk = DiskRows(written(tmp_path / "x", record.x), 0, n, 1, torch.float32)
    samples = tmp_path / "samples"
    samples.mkdir()
    for size in (20, 400):
        loader = spgnn.NeighborLoader(
            replace(record, x=None),
            [10, 10],
            batch_size=10,
            store=CachedRows(disk, "belady", n),
            superbatch=DiskSuperbatch(size, samples, overlap),
            num_workers=workers,
            prefetch=ahead,
        )
        draw = loader.draw

        def drawn(*arguments: Any, draw: Any = draw) -> Any:
            sample = draw(*arguments)
            alive.add(sample)
            return sample

        monkeypatch.setattr(loader, "draw", drawn)
        alive.most = alive.total = 0
        held = max(pages_held() for _ in loader)
        # Those of the threads, ready ones, the one in use, and the one that is being made.
        assert alive.most <= (workers + ahead + 4) * alive.largest
        assert alive.total > 300 * alive.largest
        assert held < (workers + ahead + 6) * 4 * alive.largest + 16 * PAGE


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    write = os.pwritev

    def until_full(descriptor: int, buffers: Any, offset: int) -> int:
        if offset > 8 * PAGE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, buffers, offset)

    for workers, overlap in ((0, False), (2, False), (2, True)):
        loader = spgnn.NeighborLoader(
            geometric(),
            [3, 2],
            superbatch=DiskSuperbatch(10, tmp_path, overlap),
            num_workers=workers,
        )
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", until_full)
            with pytest.raises(InputError) as refused:
                list(loader)
        assert str(refused.value) == f"{tmp_path}: cannot be written: No space left on device"
        assert not list(tmp_path.iterdir())
        assert not [t for t in threading.enumerate() if t.name.startswith("spgnn-")]
    with pytest.raises(InputError, match="no such directory"):
        DiskSuperbatch(2, tmp_path / "none")


@pytest.mark.parametrize("overlap", [False, True])
def test_leaving_and_failing_end_everything(tmp_path, overlap):
    disk = DiskRows(written(tmp_path / "x", X), 0, N, 5, torch.float32)
    store = CachedRows(disk, "belady", 600)
    samples = tmp_path / "samples"
    samples.mkdir()
    loader = spgnn.NeighborLoader(
        replace(block_model(N, 400, classes=3, homophily=0.7, features=5, seed=1), x=None),
        [3, 2],
        store=store,
        superbatch=DiskSuperbatch(20, samples, overlap),
        num_workers=2,
    )
    batches = iter(loader)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("spgnn-")]
    draw, loader.epoch = loader.draw, 0

    def failing(epoch: int, number: int, order: Tensor) -> Any:
        if number == 33:
            raise RuntimeError("of a sampler")
        return draw(epoch, number, order)

    loader.draw = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="of a sampler"):
        list(loader)
    loader.draw = draw  # type: ignore[method-assign]
    for batch in loader:
        assert torch.equal(batch.x, X[batch.n_id])
    assert not list(samples.iterdir())


# The command: losses, sizes that a profile chooses, and what is refused.


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    where = tmp_path_factory.mktemp("set") / "graph"
    record = block_model(600, 6000, classes=3, homophily=0.7, features=9, seed=1)
    write_shards(record, None, 1, where)
    return str(where)


SHORT: dict[str, Any] = {"num_neighbors": "4,3", "batch_size": 20, "hidden": 8, "epochs": 2}
OTHERS: list[dict[str, Any]] = [{"workers": 0}, {"workers": 3, "prefetch": 7, "superbatch": 2}]
MODES: list[dict[str, Any]] = [
    {"cache": 1400, "cache_policy": "lru"},
    {"superbatch": 3},
    {"cache": 4000},
    {"cache": 4000, "superbatch": 5},
    {"cache": 4000, "superbatch": 5, "overlap": True, "workers": 2},
    {"cache": 4000, "structure": "disk"},
    {"cache": 4000, "structure": "disk", "structure_policy": "degree", "superbatch": 7},
    {"cache": 4000, "structure": "disk", "structure_cache": 900, "overlap": True},
    {"cache": 4000, "structure": "disk", "cache_policy": "degree", "structure_cache": 900},
    {"structure": "disk", "structure_cache": 2000, "structure_policy": "lru", "superbatch": 1},
    {"superbatch": 6, "cache_policy": "none"},
    {"memory": 10**10, "structure": "disk"},
]


def losses(rank: int, flags: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    comm = connect("gloo", "cpu") if rank >= 0 else SoloCommunicator()
    report = train(MiniBatchConfig.of(**SHORT | flags), comm)
    return [record["loss"] for record in report["history"]], report


@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_are_those_of_memory_bit_for_bit(directory, tmp_path, ranks):
    def every(rank: int) -> list[list[float]]:
        disk = {"store": "disk", "store_dir": str(tmp_path)}
        ways = [{}, *OTHERS, *(disk | mode for mode in MODES[::ranks])]
        return [losses(rank, {"dataset": directory, **way})[0] for way in ways]

    found = [every(-1)] if ranks == 1 else run_ranks(every, ranks)
    for wanted, *others in found:
        assert wanted[0] != wanted[1]
        for mode, other in zip([*OTHERS, *MODES[::ranks]], others, strict=True):
            assert other == wanted, mode
    links = {"dataset": directory, "task": "links", "batch_size": 500, "epochs": 1}
    disk = {"store": "disk", "store_dir": str(tmp_path), "superbatch": 3, "cache": 4000}
    if ranks == 1:
        assert losses(-1, links | disk)[0] == losses(-1, links)[0]
    assert not list(tmp_path.iterdir())


def test_each_stage_has_the_whole_cache(directory, tmp_path, monkeypatch):
    """All of --cache for neighbours, then all of it for features, never both."""
    seen: list[tuple[str, int, int]] = []

    def sizes(loader: Any, stage: str) -> None:
        cache, lists = loader.graph.x._cache, loader.graph.pattern.lists._memory
        held = 0 if cache is None else cache.nbytes
        seen.append((stage, held, 0 if lists is None else lists[1].nbytes))

    stage = spgnn.NeighborLoader._stage

    def noted(self: spgnn.NeighborLoader, name: str) -> None:
        sizes(self, f"before {name}")
        stage(self, name)
        sizes(self, name)

    monkeypatch.setattr(spgnn.NeighborLoader, "_stage", noted)
    flags = {"dataset": directory, "store": "disk", "store_dir": str(tmp_path), "cache": 6000}
    _, report = losses(-1, flags | {"structure": "disk", "superbatch": 9})
    at = {name: [found for found in seen if found[0] == name] for name, *_ in seen}
    assert len(at["sample"]) > 2
    assert all(found[1:] == (0, 0) for found in (*at["sample"], *at["gather"]))
    for _, x, pattern in at["before gather"]:
        assert x == 0
        assert 6000 - 4 * 40 < pattern <= 6000
    for _, x, pattern in at["before sample"][1:]:
        assert pattern == 0
        assert x in (0, 6000 // 36 * 36)
    told = report["structure"]
    assert told["unit"] == "rows"
    assert told["loaded_bytes"] > 0
    assert 0 < told["hit_rate"] < 1


def test_a_profile_chooses_the_superbatch(directory, tmp_path, monkeypatch, capsys):
    flags = {"dataset": directory, "store": "disk", "store_dir": str(tmp_path), "cache": 4000}
    _, report = losses(-1, flags)
    batches = report["batches_per_epoch"]
    assert report["chosen"]["superbatch"] == batches
    each = report["chosen"]["sample_bytes"]
    assert f"chosen: superbatches of {batches} of {batches} batches" in capsys.readouterr().out
    usage = shutil.disk_usage(tmp_path)
    # Room for a third of an epoch: superbatches that are all alike.
    room = usage._replace(free=2 * each * (batches // 3))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room)
    _, report = losses(-1, flags)
    chosen = report["chosen"]["superbatch"]
    assert -(-batches // 4) <= chosen <= batches // 3
    _, overlapping = losses(-1, flags | {"overlap": True})
    assert overlapping["chosen"]["superbatch"] < chosen
    assert losses(-1, flags | {"superbatch": 3})[1]["chosen"] is None


def test_a_profile_chooses_the_cache(directory, tmp_path, capsys):
    flags = {"dataset": directory, "store": "disk", "store_dir": str(tmp_path)}
    limit = resident_bytes() + (1 << 28)
    _, report = losses(-1, flags | {"memory": limit})
    cache = report["chosen"]["cache"]
    assert 0 < cache < limit - resident_bytes() / 2
    assert report["features"]["cache_rows"] == min(600, cache // 36)
    assert "; a cache of " in capsys.readouterr().out
    with pytest.raises(InputError, match=r"storage\.memory 1 MB: training takes .* without any"):
        losses(-1, flags | {"memory": 10**6})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"cache": 4000}, r"--cache needs storage.store-dir DIR, .*or sampling.superbatch 1"),
        ({"superbatch": 5}, "sampling.superbatch 5 needs storage.store-dir DIR, for the samples"),
        ({"superbatch": 1, "overlap": True}, "sampling.overlap needs superbatches"),
        ({"memory": 10**9, "cache": 5, "superbatch": 1}, "storage.memory chooses the size"),
        ({"memory": 10**9, "store": "memory"}, "storage.memory chooses the size of a cache"),
    ],
)
def test_what_does_not_go_together(directory, flags, said):
    with pytest.raises(InputError, match=said):
        losses(-1, {"dataset": directory, "store": "disk", **flags})


def test_a_cache_of_whole_rows(tmp_path):
    """The rows of the highest ratios; reads are counted as a plain model counts them."""
    write_shards(block_model(500, 9000, classes=2, homophily=0.6, seed=3), None, 1, tmp_path / "g")
    shards = open_shards(tmp_path / "g")
    indptr = torch.from_numpy(shards.pattern().indptr.copy())
    plain = DiskPattern(*shards.place(0, "indices"), indptr, 500)
    out, lengths = torch.randint(1, 90, (500,)), indptr.diff()
    capacity = plain.nnz  # a quarter
    order = (-(out / lengths.clamp(min=1))).sort(stable=True).indices
    order = order[lengths[order] > 0]
    kept = set(order[: int((lengths[order].cumsum(0) * 4 <= capacity).sum())].tolist())
    assert 20 < len(kept) < 480
    block, begin = plain.block_bytes, plain._offset
    full = (begin + 4 * plain.nnz) // block
    for directory in (None, tmp_path):
        reader = DiskPattern(*shards.place(0, "indices"), indptr, 500)
        pattern = reader.cached("ratio", capacity, out, directory)
        reads = blocks = needed = hit = 0
        for turn in range(3):
            ids = torch.randperm(500, generator=torch.Generator().manual_seed(turn))[:80]
            for one, other in zip(plain.rows(ids), pattern.rows(ids), strict=True):
                assert torch.equal(one, other)
            touched: set[int] = set()
            for i in ids.tolist():
                needed += int(lengths[i] > 0)
                hit += i in kept
                if i not in kept and lengths[i]:
                    first, last = (begin + 4 * int(end) for end in indptr[i : i + 2])
                    touched |= set(range(first // block, -(-last // block)))
            touched -= {full}  # a last block that is not full is in memory
            blocks += len(touched)
            reads += sum(number - 1 not in touched for number in touched)
        counts = pattern.counts
        assert (counts.rows_needed, counts.hits, counts.rows_read) == (needed, hit, needed - hit)
        if reader.blocks.direct:  # type: ignore[attr-defined]
            assert (counts.reads, counts.bytes_read) == (reads, blocks * block)
        pattern.release()
        assert torch.equal(pattern.rows(ids)[1], plain.rows(ids)[1])
        assert pattern.lists is not None
        assert (pattern.lists.loaded_bytes > 0) == (directory is not None)
    with pytest.raises(InputError, match="cache policy ratio needs scores, one a row"):
        plain.cached("ratio", 5)
