"""What is freed is used again, what can never fit is refused, and running out is one line."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from statistics import median

import numpy as np
import pytest
import torch

from spgnn import InputError, memory
from spgnn import memory as limits
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.testing import run_ranks
from spgnn.train import train
from tests.comm.jobs import ROOT
from tests.train.command import check_refused, run
from tests.training import write_dataset


@pytest.mark.parametrize("begin", [0, 7, 1 << 19])
def test_collapsed_pages_keep_what_they_hold(begin):
    rows = torch.arange(3 << 20, dtype=torch.int32)
    part = rows[begin : begin + (1 << 20) + 5]
    memory.collapse_pages(part.data_ptr(), part.nbytes)
    memory.collapse_pages(part.data_ptr(), 12)
    assert torch.equal(rows, torch.arange(3 << 20, dtype=torch.int32))


def test_epochs_use_the_memory_of_those_before():
    """An epoch has more than ten results of 4 MiB, and takes no memory anew for them."""
    command = [sys.executable, "-m", "tests.train.page_faults"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept, given_back = json.loads(done.stdout)
    assert median(given_back[3:]) > 20 * 2**20
    assert median(kept[3:]) < 2 * 2**20


LIMIT = "memory.limit_in_bytes"


def quota(group: str, microseconds: int) -> dict[str, str]:
    """Of version 1, in 100 ms."""
    return {f"{group}/cpu.cfs_quota_us": f"{microseconds}", f"{group}/cpu.cfs_period_us": "100000"}


SLURM = "/system.slice/slurmstepd.scope/job_1/step_0"


@pytest.mark.parametrize(
    ("own", "settings", "nbytes", "threads"),
    [
        ("", {}, 8000, 6),
        # Version 2: in a container, in a job without a namespace, half a processor, none.
        ("0::/", {"memory.max": "500", "cpu.max": "200000 100000"}, 500, 2),
        (f"0::{SLURM}", {f"{SLURM}/memory.max": "500", f"{SLURM}/cpu.max": "50000 100000"}, 500, 1),
        ("0::/", {"memory.max": "max", "cpu.max": "max 100000"}, 8000, 6),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "700", "a/cpu.max": "25 10"}, 700, 3),
        ("0::/a/b", {"a/b/memory.max": "600", "a/memory.max": "700", "c/memory.max": "5"}, 600, 6),
        ("0::/../../other", {"other/memory.max": "5"}, 8000, 6),
        ("0::/a", {"a/memory.max": "9000", "a/cpu.max": "9000 1000"}, 8000, 6),
        ("0::/a:b c", {"a:b c/memory.max": "500"}, 500, 6),
        # Version 1: all in one place, in a container without a namespace, in a job, no limit.
        ("4:memory:/\n2:cpu,cpuacct:/", {f"memory/{LIMIT}": "500", **quota("cpu", 150000)}, 500, 2),
        (
            "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc",
            {f"memory/{LIMIT}": "500", **quota("cpu,cpuacct", 100000)},
            500,
            1,
        ),
        (
            "4:memory:/slurm/job\n3:cpuacct,cpu:/slurm/job\n1:name=systemd:/other\n0::/",
            {
                f"memory/{LIMIT}": "9223372036854771712",
                f"memory/slurm/job/{LIMIT}": "500",
                f"memory/other/{LIMIT}": "5",
                **quota("cpuacct,cpu/slurm", -1),
                **quota("cpuacct,cpu/slurm/job", 400000),
            },
            500,
            4,
        ),
        # Both versions at once.
        (
            "4:memory:/a\n0::/b",
            {f"memory/a/{LIMIT}": "500", "unified/b/cpu.max": "300 100"},
            500,
            3,
        ),
        ("4:memory:/a\n0::/b", {f"memory/b/{LIMIT}": "5"}, 8000, 6),
        ("damaged", {"memory.max": "", "cpu.max": "1"}, 8000, 6),
    ],
)
def test_limits_of_control_groups(own, settings, nbytes, threads, tmp_path, monkeypatch):
    for name, text in settings.items():
        path = tmp_path / "groups" / name.strip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    monkeypatch.setattr(memory, "_CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 80, "SC_PAGE_SIZE": 100}.get)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert (memory.memory_limit(), memory.processors()) == (nbytes, threads)


@pytest.mark.parametrize("begin", ["keep_freed", "give_back_large"])
def test_what_set_up_freed_goes_back(begin):
    """A block in the middle of the heap too: nothing of it is resident when training begins."""

    def resident(rank: int) -> tuple[int, int]:
        memory.give_back_freed()
        pieces = [torch.ones(2**14) for _ in range(1024)]  # 64 KiB each: from the heap
        last = torch.ones(2**14)
        before = memory.resident_bytes()
        del pieces
        getattr(memory, begin)()
        assert bool(last.all())
        return before, memory.resident_bytes()

    ((before, after),) = run_ranks(resident, 1)
    assert before - after > 32 * 2**20


@pytest.mark.parametrize(
    ("ranks", "here", "limit", "done"),
    [
        (1, 1, 0, ["keep_freed"]),
        (4, 4, 1600, ["give_back_large", "keep_freed"]),
        (4, 4, 1599, ["give_back_large"]),
        (4, 2, 800, ["give_back_large", "keep_freed"]),
    ],
)
def test_ranks_keep_what_is_freed_where_there_is_plenty(monkeypatch, ranks, here, limit, done):
    """Where all ranks of a machine could have twice their peak in half of its memory."""
    called: list[str] = []
    for name in ("keep_freed", "give_back_large"):
        monkeypatch.setattr(memory, name, lambda name=name: called.append(name))
    monkeypatch.setattr(memory, "peak_bytes", lambda: 100)
    monkeypatch.setattr(memory, "memory_limit", lambda: limit)
    freed = memory.FreedMemory(ranks, here)
    freed.begin()
    for _ in range(3):
        freed.after_epoch()
    assert called == done


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--random-features", 2**31 - 1], ["--random-features 2147483647", "GiB"]),
        (["--hidden", 2**31 - 1], ["23→2147483647→2147483647→4", "GiB"]),
    ],
)
def test_absurd_sizes_are_refused_before_the_machine_runs_out(tmp_path, flags, words):
    path = write_dataset(tmp_path / "graph.npz")
    if "--random-features" in flags:
        with np.load(path) as file:
            arrays = {name: array for name, array in file.items() if name != "x"}
        np.savez(path, **arrays)
    check_refused(run(tmp_path, "--dataset", path, *flags), *words)


def test_sparse_features_that_would_not_fit_dense(tmp_path, monkeypatch):
    """One line, rather than a process that is killed."""
    path = write_dataset(tmp_path / "graph.npz", sparse=True)
    monkeypatch.setattr(limits, "memory_limit", lambda: 61 * 23 * 4 - 1)
    config = TrainConfig.of(dataset=path, order="paper", partition="block")
    with pytest.raises(InputError, match="--order paper with dense features, 61 × 23: needs"):
        train(config, connect())
