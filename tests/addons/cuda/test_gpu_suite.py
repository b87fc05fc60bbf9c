"""The GPU suite where there is no GPU: its steps on the CPU, with stand-ins for what CUDA has."""

import importlib
import json
import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from spgnn import kernels
from spgnn.addons.cuda import device

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
ON_CPU = ["--device", "cpu"]


class Product:
    """What stands in for cuSPARSE."""

    def __init__(self, algorithm, A, X):
        self.product = partial(kernels.spmm, A, X)

    def __call__(self):
        return self.product()

    def close(self):
        """Nothing to let go of."""


def wall_clock(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@pytest.fixture
def suite(monkeypatch):
    """The module, which takes the CPU for a GPU; processes that it forks do so too."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("suite", "graphs", "measurements", "cusparse")
    suite, graphs, measured, cusparse = (importlib.import_module(f"gpu_{name}") for name in names)
    monkeypatch.setattr(suite, "DEVICE", "cpu")
    monkeypatch.setattr(suite, "trouble", lambda: None)
    monkeypatch.setattr(suite, "RUNS", {"cpu": ON_CPU, "alone": ["--one-rank-world", *ON_CPU]})
    monkeypatch.setattr(measured, "DeviceClock", lambda: wall_clock)
    monkeypatch.setattr(cusparse, "Product", Product)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    card = SimpleNamespace(name="pretended", multi_processor_count=8, total_memory=2**30)
    card.L2_cache_size = 2**20
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(device, "properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setitem(graphs.GRAPHS, "tiny", (1000, partial(graphs.uniform, 1000, 10)))
    monkeypatch.setattr(suite, "ONE_GRAPH", "tiny")
    monkeypatch.setattr(suite, "EPOCH_GRAPHS", ("tiny",))
    for size in ("COPIED", "ROWS", "HEAVY", "HUB"):
        monkeypatch.setattr(suite, size, 2**12)
    return suite


def run(suite, folder, *steps):
    """Exit status and report."""
    arguments = ["--output", str(folder), "--graphs", "tiny", "--widths", "16", "--rounds", "2"]
    status = suite.main([*arguments, "--steps", *steps])
    return status, json.loads((folder / "gpu_suite.json").read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore")  # of PyTorch Geometric
def test_every_step_runs_and_is_right(suite, tmp_path):
    steps = [step for step in suite.STEPS if step not in ("tests", "placement")]
    status, report = run(suite, tmp_path, *steps)
    assert status == 0, suite.failures(report)
    keys = "bandwidth rows heavy_row host_microseconds nonzeros attention distributed training"
    assert all(report[key] for key in (*keys.split(), "tiles", "epochs", "cases", "summary"))


def test_steps_that_fail_are_reported_and_the_others_run(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(suite.Steps, "rows", lambda self: os.abort())
    monkeypatch.setattr(suite.Steps, "distributed", lambda self: 1 / 0)
    monkeypatch.setattr(suite.measured, "is_correct", lambda *_: False)
    status, report = run(suite, tmp_path, "rows", "distributed", "memory", "table")
    assert status == 1
    assert report["bandwidth"]
    assert suite.failures(report) == [
        "rows broke: ended with status -6",
        "distributed broke: ZeroDivisionError: division by zero",
        "tiny, f = 16: wrong result",
    ]


def test_first_lines_of_failed_tests_are_kept(suite, tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert 1 == 2, 'one\\ntwo'\n")
    found = suite.pytest(tmp_path, "tests", 60, str(tmp_path))
    assert found["status"] == 1
    assert found["failed"]["test_it.test_it"][:2] == ["AssertionError: one", "  two"]
