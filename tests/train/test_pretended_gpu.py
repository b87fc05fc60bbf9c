"""Training on a pretended GPU: the CPU's losses, all tensors there, and one wait of the host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.run import resolved, task_of
from tests.pretended_gpu import GPU, away, late_group, pretended_gpu
from tests.training import attending, other_models, variants, write_dataset

DELAYED = {"delay": 2, "delay_bins": 2, "smoothing": 0.3, "bits": "2,8@2", "error_feedback": True}
SAMPLED = {"boundary_sampling": 0.4, "bits": 8}
CODECS: list[dict[str, Any]] = [
    *({"bits": bits} for bits in (16, 8, 4, 2, 1)),
    {"bits": 4, "error_feedback": True, "dtype": "bfloat16"},
    {"delay": 1},
    {"delay": "never"},
    {"boundary_sampling": "0.3,0.7@2", "exact_means": False},
    {"boundary_sampling": 0.5, "delay": 1, "dtype": "float64"},
    {"fresh": 0.1, "delay": 1},
    DELAYED,
    SAMPLED,
]
SCHEMES: list[dict[str, Any]] = [
    {"cover": "minimum", "dropout": 0.5},
    {"algo": "1.5d", "c": 2, "cover": "row"},
    {"algo": "feature", "c": 2},
    {"algo": "vertex-cut"},
    {"algo": "vertex-cut", "clones": True, "model": "sage", "dropout": 0.3},
    {"algo": "vertex-cut", "delay": 2, "delay_bins": 2, "order": "paper"},
    {"hierarchy": 2, "recompute_halo": True},
    {"model": "sage", "norm": "batch", "layers": 2, "dtype": "bfloat16"},
    {"model": "gat", "algo": "1.5d", "c": 2, "heads": 2},
    {"model": "gatv2", "algo": "vertex-cut", "heads": 2, "dropout": 0.3},
    {"task": "links"},
]
MODELS: list[dict[str, Any]] = [
    *({"norm": norm, "dropout": 0.3} for norm in ("batch", "layer", "node", "graph", "pair")),
    {"residual": True, "jk": "cat"},
    {"jk": "max"},
    *({"model": "sage", "aggregate": how} for how in ("max", "min", "std", "sum")),
    {"model": "gat", "heads": 2, "attention_dropout": 0.3, "message_dropout": 0.2},
    {"model": "gatv2", "heads": 2, "attention_dropout": 0.3, "dtype": "bfloat16"},
    {"task": "links", "decoder": "mlp"},
    {"inductive": True},
    {"label_propagation": 0.5},
    {"class_weights": "balanced", "label_smoothing": 0.1},
    {"metric": "f1-macro", "patience": 1},
    {"dtype": "float64"},
    {"dtype": "bfloat16"},
]


def every(path: Path, ranks: int) -> list[TrainConfig]:
    """All schemes, models and codecs."""
    base = variants(path, ranks, 4)[0]
    found = [*variants(path, ranks, 4), *other_models(path, ranks, 4), *attending(path, ranks, 4)]
    found += [base.but(**flags) for flags in MODELS]
    if ranks > 1:
        found += [base.but(**flags) for flags in CODECS]
        found += [base.but(**flags, **how) for how in (DELAYED, SAMPLED) for flags in SCHEMES]
    return found


def history(config: TrainConfig, key: str = "") -> list[list[float]]:
    """Losses and scores of a training, or those whose name is `key`."""
    comm = connect()
    config = resolved(config, comm)
    trainer = Trainer(task_of(config, training_graph(config, comm)), options=config.training)
    trainer.run()
    records = [{**record, "seconds": None} for record in trainer.history]
    return [
        [v for name, v in record.items() if v is not None and key in ("", name)]
        for record in records
    ]


# Kernels, or where the device's own are compiled; and whether the process group is late.
Way = tuple[str | Path, bool]


def check(rank: int, runs: list[tuple[TrainConfig, list[Way]]]) -> None:
    """Each training on the CPU, and on the pretended GPU in each way."""
    comm = connect()
    host, emulated = comm.job.device, None
    for config, ways in runs:
        expected = history(config)
        for kernels, late in ways:
            if isinstance(kernels, Path) and emulated is None:
                from tests.addons.cuda.emulation import EmulatedDevice

                (kernels / str(rank)).mkdir()
                emulated = EmulatedDevice(kernels / str(rank))
            used = emulated if isinstance(kernels, Path) else kernels
            with pretended_gpu(used), late_group() if late else nullcontext():
                comm.job.device = GPU
                found = history(config)
            comm.job.device = host
            assert len(found) == len(expected), config
            # Where the kernels are the CPU's, so are the bits.
            how = {"rtol": 0} if kernels == "cpu" else {"rtol": 1e-4, "atol": 1e-6}
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(ours, theirs, **how, err_msg=str(config))


def test_training_is_that_of_the_cpu(tmp_path):
    """With messages through the host, and with a process group that takes tensors and is late."""
    base = variants(write_dataset(tmp_path / "graph.npz"), 4, 3)[0].but(layers=2)
    delayed = base.but(cover="minimum", dropout=0.5, **DELAYED)
    attending = base.but(algo="1.5d", c=2, model="gat", **SAMPLED)
    runs = [(delayed, [("cpu", False)]), (attending, [("cpu", True)])]
    run_ranks(check, 4, runs, backend="gloo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "kernels", "step"), [(1, "cpu", 1), (4, "cpu", 1), (4, "torch", 4)]
)
def test_every_training_is_that_of_the_cpu(tmp_path, ranks, kernels, step):
    configs = every(write_dataset(tmp_path / "graph.npz", sparse=kernels == "torch"), ranks)
    ways: list[list[Way]] = [[(kernels, True)], [(kernels, True), (kernels, False)]]
    runs = [(config, ways[n % 3 == 0]) for n, config in enumerate(configs[::step])]
    run_ranks(check, ranks, runs, backend="gloo")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "step"), [(1, 3), (2, 5)])
def test_the_kernels_of_the_device_train_alike(tmp_path, ranks, step):
    """Emulated: what they keep of a graph, and lists of rows, are on the device as well."""
    pytest.importorskip("spgnn.addons.cuda")
    configs = every(write_dataset(tmp_path / "graph.npz"), ranks)[::step]
    runs = [(config, [(tmp_path, True)]) for config in configs]
    run_ranks(check, ranks, runs, backend="gloo")


def losses_apart(rank: int, configs: list[TrainConfig]) -> list[str]:
    """Trainings whose losses on the GPU at hand are not the CPU's, and by how much."""
    comm = connect()
    gpu, found = comm.job.device, []
    for config in configs:
        losses = []
        for comm.job.device in (torch.device("cpu"), gpu):
            try:
                losses.append(np.array(history(config, "loss")))
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}: {config}")
                break
        else:
            apart = np.abs(losses[1] / losses[0] - 1).max()
            # Numbers that are rounded at random may be rounded the other way.
            coarse = config.training.dtype == "bfloat16" or config.messages.bits not in ("32", 32)
            if not apart <= (0.03 if coarse else 1e-4):
                found.append(f"losses are {apart:.2g} apart: {config}")
    return found


def report_of_the_gpu(folder: Path, ranks: int) -> None:
    """In a process of its own, for none that has used a GPU can fork ranks that do."""
    configs = every(write_dataset(folder / "graph.npz"), ranks)[::ranks]
    found = run_ranks(losses_apart, ranks, configs, device="cuda", backend="gloo")[0]
    print(len(configs), "trainings;", *(found or ["all are the CPU's"]), sep="\n")
    sys.exit(bool(found))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_training_on_a_gpu_is_that_of_the_cpu(tmp_path, ranks):
    ours = Path(__file__)
    call = f"report_of_the_gpu(Path({str(tmp_path)!r}), {ranks})"
    command = [sys.executable, "-c", f"from tests.train.{ours.stem} import *; {call}"]
    # Else a module that asks whether there are GPUs keeps ranks that it forks from using them.
    environment = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    how = {"cwd": ours.parents[2], "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(command, **how, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def waits_of_an_epoch(rank: int, configs: list[TrainConfig]) -> list[dict[str, float]]:
    """Waits of the host in epochs after the second, by line and operation."""
    comm = connect()
    found = []
    for config in configs:
        counts: list[Counter[str]] = []
        for epochs in (4, 7):
            with pretended_gpu() as waits, late_group():
                comm.job.device = GPU
                history(config.but(epochs=epochs, eval_every=100))
                counts.append(Counter(waits))
            comm.job.device = torch.device("cpu")
        found.append({name: n / 3 for name, n in (counts[1] - counts[0]).items()})
    return found


def check_waits(configs: list[TrainConfig], ranks: int) -> None:
    for of_rank in run_ranks(waits_of_an_epoch, ranks, configs, backend="gloo"):
        for config, waits in zip(configs, of_rank, strict=True):
            assert sum(waits.values()) == 1, (config, waits)


def test_the_host_waits_once_an_epoch(tmp_path):
    """For the loss."""
    base = variants(write_dataset(tmp_path / "graph.npz"), 2, 4)[0]
    check_waits([base.but(cover="minimum", dropout=0.5, **DELAYED)], 2)


@pytest.mark.slow
def test_the_host_always_waits_once_an_epoch(tmp_path):
    """But where an epoch draws what travels, or what is learnt: its sizes are numbers there."""

    def draws(config: TrainConfig) -> bool:
        how, aim = config.messages, config.aim
        sampled = how.boundary_sampling != "1" or config.flat()["fresh"] > 0
        return sampled or aim.task == "links" or config.flat()["label_propagation"] > 0

    configs = every(write_dataset(tmp_path / "graph.npz"), 4)
    check_waits([config for config in configs[::2] if not draws(config)], 4)


def test_what_is_mixed_is_refused():
    with pretended_gpu() as waits:
        X, W = away(torch.ones(3, 4)), torch.ones(4, 2)
        for mixed in (lambda: X @ W, lambda: X.add_(W.T[:1, :1].expand(3, 4)), X.numpy):
            with pytest.raises((RuntimeError, TypeError), match="cuda:0"):
                mixed()
        assert (X @ W.to("cuda")).device == (X * torch.tensor(2.0)).device == GPU
        assert not waits - Counter({"elsewhere to the device": 1})
        assert float(X.sum()) == 12
        assert len(X[X > 0]) == 12
        assert sum(waits.values()) == 3


def check_late(rank: int) -> None:
    comm = connect()
    with pretended_gpu(), late_group():
        buffer = torch.ones(3, device="cuda")
        pending = comm.all_reduce(buffer)
        assert buffer.isnan().all()
        pending.wait()
        assert buffer.tolist() == [2.0] * 3
        counts = comm.exchange_counts([1, 2])
        sent, received = (
            torch.ones(3, 2, device="cuda"),
            torch.empty(2 + 2 * rank, 2, device="cuda"),
        )
        for touched in (sent, received):
            pending = comm.alltoallv(sent, received, counts)
            touched.zero_()
            with pytest.raises(AssertionError, match="written to before"):
                pending.wait()


def test_what_is_not_waited_for_is_garbage():
    run_ranks(check_late, 2, backend="gloo")
