"""What the GPU suite does around the GPU: statistics, tables, files, arguments, exit status."""

import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch

from spgnn.errors import InputError
from spgnn.kernels.cuda import device
from spgnn.train import config

from .cuda_suite import benchmark, wall_clock

# Torch's own, where it first differentiates in forward mode.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture
def suite():
    return benchmark("gpu_suite")


@pytest.fixture
def measured():
    return benchmark("gpu_measurements")


@pytest.fixture
def operations():
    return benchmark("gpu_operations")


@pytest.fixture
def reporting():
    return benchmark("gpu_report")


def test_spread_is_median_and_quartiles(reporting):
    spread = reporting.Spread.of([4.0, 1.0, 3.0, 2.0, 5.0])
    assert spread == reporting.Spread(3.0, 2.0, 4.0)
    assert str(reporting.Spread(0.002, 0.0019, 0.003)) == "2.000 ms ±50%"


def test_speed_is_over_the_faster_baseline(reporting):
    same = reporting.Spread.of
    times = {"cuSPARSE int32": same([3, 3]), "cuSPARSE int64": same([2, 2]), "0/1": same([1, 1])}
    assert reporting.speedups(times) == {"0/1": 2.0}
    summary = reporting.summarise([{"speedup": {"0/1": 2.0}}, {"speedup": {"0/1": 8.0}}])
    assert math.isclose(summary["0/1"]["geometric_mean"], 4.0)
    assert summary["0/1"]["worst"] == 2.0
    assert reporting.summarise([]) == {}


def test_graphs_of_a_folder_come_first(measured, monkeypatch, tmp_path):
    monkeypatch.delenv("SPGNN_DATA", raising=False)
    assert measured.graph_names() == ["rmat-20-8", "sbm-20-16"]
    (tmp_path / "wave.npz").touch()
    monkeypatch.setenv("SPGNN_DATA", str(tmp_path))
    assert measured.graph_names() == ["wave", "rmat-20-8", "sbm-20-16"]


def pretended_run(command, timeout, loss=1.0):
    """What tests and training would leave."""
    if "--json" in command:
        measurements = {
            "history": [{"loss": 2.0}, {"loss": loss}],
            "epoch_seconds": {"median": 0.01},
            "breakdown_seconds": {"spmm": 0.004, "bcast": 0.0},
        }
        Path(command[-1]).write_text(json.dumps(measurements))
    return {"status": 0, "seconds": 1.0, "output": ["7 passed"], "command": "pytest"}


@pytest.fixture
def pretended(suite, measured, operations, monkeypatch):
    """The suite with the CPU in the place of a GPU and no processes of its own."""
    monkeypatch.setattr(suite, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(device, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(measured, "DeviceClock", lambda: wall_clock)
    real = measured.bandwidth
    monkeypatch.setattr(measured, "bandwidth", lambda *a: real(*a[:3], 1000))
    list_rows = operations.row_operations
    monkeypatch.setattr(operations, "row_operations", lambda *a: list_rows(*a[:3], 100))
    heavy = operations.heavy_row
    monkeypatch.setattr(operations, "heavy_row", lambda *a: heavy(*a[:3], 2**10))
    attention = benchmark("gpu_attention")
    hub = attention.hub_attention
    monkeypatch.setattr(attention, "hub_attention", lambda *a: hub(*a[:3], 2**10))
    monkeypatch.setattr(suite, "run_command", pretended_run)
    described = {
        "command": "python benchmarks/gpu_suite.py",
        "commit": "0123",
        "date": "2026-01-01",
        "versions": {"torch": "2"},
        "device": {"name": "Pretended", "multiprocessors": 1, "memory_bytes": 2**30},
    }
    monkeypatch.setattr(suite, "describe_run", lambda _: described)
    return suite


SPREAD = {"median": 1.0, "low": 1.0, "high": 1.0}
ARGUMENTS = ["--graphs", "rmat-6-4", "rmat-7-4", "--widths", "3", "8", "--rounds", "2"]


def test_a_whole_run_writes_both_files(pretended, tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert pretended.main(["--output", str(folder), *ARGUMENTS]) == 0
    assert sorted(p.name for p in folder.iterdir()) == ["gpu_suite.json", "gpu_suite.md"]
    report = json.loads((folder / "gpu_suite.json").read_text())
    assert [(c["graph"], c["columns"]) for c in report["cases"]] == [
        ("rmat-6-4", 3),
        ("rmat-6-4", 8),
        ("rmat-7-4", 3),
        ("rmat-7-4", 8),
    ]
    text = (folder / "gpu_suite.md").read_text()
    assert text.strip() == capsys.readouterr().out.strip()
    assert "All checks passed" in text
    assert "| cuda, 2 ranks | 2.0000 → 1.0000 | 10.00 | spmm 4.00 |" in text
    for line in ("| gather_rows int32 | 1 × 16 |", "| edge_softmax | 8 × 1 |"):
        assert line in text
    steps = "rows", "nonzeros", "attention", "distributed"
    assert [len(report[step]) for step in steps] == [18, 14, 13, 2]
    assert "| rmat-7-4 | 8 |" in text
    for line in text.splitlines():
        if line.startswith("|") and "rmat-6-4" in line:
            assert "nan" not in line


def test_failures_decide_the_exit_status(pretended, measured, monkeypatch, tmp_path):
    monkeypatch.setattr(measured, "is_correct", lambda *_: False)
    assert pretended.main(["--output", str(tmp_path), *ARGUMENTS]) == 1
    assert "rmat-6-4, f = 3: wrong result" in (tmp_path / "gpu_suite.md").read_text()


def test_a_wrong_operation_decides_too(pretended, operations, monkeypatch, tmp_path):
    monkeypatch.setattr(operations, "is_near", lambda *_: False)
    arguments = ["--output", str(tmp_path), "--graphs", "rmat-6-4", "--steps", "distributed"]
    assert pretended.main(arguments) == 1
    text = (tmp_path / "gpu_suite.md").read_text()
    assert "product, against spmm, 1 × 64: wrong result" in text
    assert "WRONG" in text


def test_a_step_that_breaks_leaves_the_others(pretended, operations, monkeypatch, tmp_path, capsys):
    def broken(*_):
        yield {"operation": "first", "heads": 1, "columns": 2, "correct": True, "spgnn": SPREAD}
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr(operations, "nonzero_operations", broken)
    assert pretended.main(["--output", str(tmp_path), *ARGUMENTS]) == 1
    report = json.loads((tmp_path / "gpu_suite.json").read_text())
    assert report["broken"] == {"nonzeros": "OutOfMemoryError: CUDA out of memory."}
    assert [line["operation"] for line in report["nonzeros"]] == ["first"]
    assert len(report["cases"]) == 4
    said = capsys.readouterr()
    assert "nonzeros broke: OutOfMemoryError: CUDA out of memory." in said.out
    assert "Tried to allocate" in said.err


def test_failing_tests_and_training_are_reported(pretended, monkeypatch, tmp_path):
    run = {"status": 2, "seconds": 1.0, "output": ["1 failed"], "command": "pytest"}
    monkeypatch.setattr(pretended, "run_command", lambda *_: dict(run))
    steps = ["tests", "placement", "training"]
    assert pretended.main(["--output", str(tmp_path), "--steps", *steps]) == 1
    text = (tmp_path / "gpu_suite.md").read_text()
    assert "; ".join(f"{step} exited with status 2" for step in steps) in text


def test_training_that_differs_between_devices_is_reported(pretended, monkeypatch, tmp_path):
    monkeypatch.setattr(
        pretended,
        "run_command",
        lambda command, timeout: pretended_run(command, timeout, 1 + 0.1 * ("cuda" in command)),
    )
    assert pretended.main(["--output", str(tmp_path), "--steps", "training"]) == 1
    assert "training exited with status 1" in (tmp_path / "gpu_suite.md").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gpu_suite.json", "gpu_suite.md"]


def test_the_manual_names_all_steps(suite):
    manual = (suite.ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    table = manual.split("| step | what |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == suite.STEPS


def test_the_commands_of_the_suite_are_right(suite, tmp_path):
    """The flags of training exist; so do the files of tests."""
    for flags in suite.RUNS.values():
        assert config.parse([*suite.TRAINING, *flags]).training.epochs == suite.EPOCHS
    asked = []
    steps = suite.Steps({}, None, suite.Budget(60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "run_command", lambda command, _: asked.extend(command))
        steps.placement()
    files = [word for word in asked if word.startswith("tests/")]
    assert len(files) == 2
    assert all((suite.ROOT / name).exists() for name in files)


def test_a_training_runs_and_is_read(suite, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "TRAINING", ["--dataset", "sbm", "--epochs", "3"])
    monkeypatch.setattr(suite, "RUNS", {"cpu": suite.RUNS["cpu"]})
    found = suite.training(tmp_path, 600)
    assert found["status"] == 0, found
    run = found["runs"]["cpu"]
    assert len(run["losses"]) == 3
    assert run["epoch_seconds"]["median"] > 0
    assert run["breakdown_seconds"]["spmm"] > 0
    assert not list(tmp_path.iterdir())


def test_what_the_budget_leaves_out_is_a_failure(pretended, tmp_path):
    status = pretended.main(["--output", str(tmp_path), "--budget", "-1", *ARGUMENTS])
    assert status == 1
    assert "not run: table" in (tmp_path / "gpu_suite.md").read_text()


def test_bad_arguments(suite, tmp_path, capsys):
    output = ["--output", str(tmp_path)]
    for wrong in (["--rounds", "1"], ["--widths", "0"]):
        with pytest.raises(InputError, match=wrong[0]):
            suite.parse([*output, *wrong])
        assert suite.main([*output, *wrong]) == 2
        assert capsys.readouterr().err.startswith("error: " + wrong[0])
    with pytest.raises(SystemExit):
        suite.parse([*output, "--steps", "nonsense"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_and_status_3(suite, tmp_path, capsys):
    assert suite.main(["--output", str(tmp_path / "none")]) == 3
    assert capsys.readouterr().err == "error: no CUDA device; this suite needs one (docs/gpu.md)\n"
    assert not (tmp_path / "none").exists()


def test_commands_are_cut_off_and_quoted(suite):
    done = suite.run_command([sys.executable, "-c", "print('x'); raise SystemExit(5)"], 60)
    assert (done["status"], done["output"]) == (5, ["x"])
    code = "import time; print('begun', flush=True); time.sleep(60)"
    cut = suite.run_command([sys.executable, "-c", code], 2)
    assert cut["status"] == 124
    assert cut["output"][-1] == "stopped: out of time"


def test_losses_must_fall_and_agree(suite):
    assert suite.losses_agree([2.0, 1.0], [2.0001, 1.0])
    assert not suite.losses_agree([], [2.0, 1.0])
    assert not suite.losses_agree([2.0, 1.0, 0.5], [2.0, 1.0])
    assert not suite.losses_agree([2.0, 1.0], [2.0, 1.1])
    assert not suite.losses_agree([1.0, 2.0], [1.0, 2.0])
    assert not suite.losses_agree([math.nan, math.nan], [2.0, 1.0])
