"""Mini-batches on a GPU: the CPU's training, with features that come from pinned memory, late."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from spgnn import InputError
from spgnn.addons.batches import CopyAhead
from spgnn.addons.diskbatches.minibatch import train
from spgnn.addons.diskbatches.minibatch_config import MiniBatchConfig
from spgnn.comm import connect
from spgnn.testing import run_ranks
from tests.addons.cuda.emulation import EMULATION, EmulatedDevice
from tests.pretended_gpu import GPU, late_group, pretended_gpu
from tests.training import write_dataset

RUNS: list[dict[str, Any]] = [
    {"model": "sage", "dropout": 0.3, "norm": "batch"},
    {"model": "gcn", "superbatch": 2, "prefetch": 0, "class_weights": "balanced"},
    {"model": "gat", "heads": 2, "dropout": 0.2, "store": "disk", "cache": 4000, "superbatch": 3},
]


def config_of(path: Path, **flags: Any) -> MiniBatchConfig:
    usual: dict[str, Any] = {"num_neighbors": "4,3", "batch_size": 7, "hidden": 8, "epochs": 2}
    if flags.get("store") == "disk":
        usual["store_dir"] = str(path.parent)
    return MiniBatchConfig.of(**{"dataset": str(path), **usual, **flags})


@contextmanager
def gpu(kernels: str | EmulatedDevice = "cpu") -> Iterator[list[Any]]:
    """A pretended GPU; yields whether each batch was copied ahead, and where it arrived."""
    seen, arrived = [], CopyAhead.arrived

    def noted(copies: CopyAhead, batch: Any) -> Any:
        moved = arrived(copies, batch)
        seen.append((batch.copied is not None, moved.x.device, moved.device))
        return moved

    comm = connect()
    host = comm.job.device
    with ExitStack() as stack:
        stack.enter_context(pretended_gpu(kernels))
        stack.enter_context(late_group())
        stack.enter_context(patch.object(CopyAhead, "arrived", noted))
        comm.job.device = GPU
        yield seen
    comm.job.device = host


def history(config: MiniBatchConfig) -> list[dict[str, Any]]:
    records = train(config, connect())["history"]
    return [
        {name: v for name, v in record.items() if name != "seconds" and v is not None}
        for record in records
    ]


def check(rank: int, configs: list[MiniBatchConfig]) -> None:
    """Each training on the CPU, and on the pretended GPU, whose kernels are the CPU's."""
    for config in configs:
        expected = history(config)
        with gpu() as seen:
            assert history(config) == expected, config
        assert set(seen) == {(True, GPU, GPU)}


def test_training_is_that_of_the_cpu(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    configs = [config_of(path, **flags) for flags in RUNS]
    run_ranks(check, 1, configs, backend="gloo")
    run_ranks(check, 2, configs[:1], backend="gloo")


def check_kernels(rank: int, configs: list[MiniBatchConfig], folder: Path) -> None:
    """Each training with the device's own kernels, and torch's."""
    emulated = EmulatedDevice(folder)
    for config in configs:
        expected = history(config)
        for kernels in ("torch", emulated):
            with gpu(kernels):
                found = history(config)
            for ours, theirs in zip(found, expected, strict=True):
                for name, value in theirs.items():
                    assert ours[name] == pytest.approx(value, rel=1e-5), (config, name)


@EMULATION
@pytest.mark.slow
def test_the_kernels_of_the_device_train_alike(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    configs = [config_of(path, **flags) for flags in (*RUNS, {"aggregate": "max"})]
    run_ranks(check_kernels, 1, configs, tmp_path, backend="gloo")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_on_a_gpu_is_that_of_the_cpu(tmp_path):
    path, found = write_dataset(tmp_path / "graph.npz"), []
    for device in ("cpu", "cuda"):
        words = f"--num-neighbors 4,3 --batch-size 7 --hidden 8 --epochs 3 --device {device}"
        report = tmp_path / f"{device}.json"
        command = [sys.executable, "experiments/minibatch.py", "--dataset", str(path)]
        root = Path(__file__).parents[3]
        subprocess.run([*command, *words.split(), "--json", str(report)], check=True, cwd=root)
        history = json.loads(report.read_text())["history"]
        found.append([record["loss"] for record in history])
    assert found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"distributed": "exact"}, "needs --distributed none"),
        ({"task": "links"}, "needs --task vertices"),
        ({"jk": "cat"}, "needs --jk none"),
    ],
)
def test_what_has_no_device_is_refused(flags, named):
    config = MiniBatchConfig.of(dataset="sbm", device="cuda", **flags)
    with pytest.raises(InputError, match=f"--device cuda {named}"):
        config.check(1)
