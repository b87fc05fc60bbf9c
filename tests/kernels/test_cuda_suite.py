"""What the GPU suite does around the GPU: statistics, tables, files, arguments, exit status."""

import itertools
import json
import math
import sys
import time
from pathlib import Path

import pytest
import torch

from spgnn.errors import InputError
from spgnn.kernels.cuda import device

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def benchmarks_on_path():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def suite():
    import gpu_suite

    return gpu_suite


@pytest.fixture
def measured():
    import gpu_measurements

    return gpu_measurements


@pytest.fixture
def reporting():
    import gpu_report

    return gpu_report


def wall_clock(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start + 1e-9


def small_block(measured):
    return measured.make_blocks(measured.load_graph("rmat-8-8"), "cpu")


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


def test_calls_are_timed_in_turns(measured):
    asked = []
    ticks = itertools.count(1)

    def clock(call):
        call()
        return float(next(ticks))

    calls = {name: lambda name=name: asked.append(name) for name in "ab"}
    times = measured.measure(calls, clock, 4)
    assert "".join(asked) == "abab" + "abbaabba"
    assert times["a"].median == (1 + 4 + 5 + 8) / 4


def test_a_case_holds_times_ratios_and_a_check(measured):
    blocks = small_block(measured)
    case = measured.spmm_case(blocks, 16, wall_clock, 3)
    assert case["correct"]
    assert case["gathered_bytes"] == blocks.plain.nnz * 64
    assert set(case["speedup"]) == {"0/1", "values", "scaled", "Y +=", "bfloat16"}
    assert set(case["seconds"]) - set(case["speedup"]) == {"cuSPARSE int32", "cuSPARSE int64"}


def test_a_wrong_product_is_noticed(measured, monkeypatch):
    blocks = small_block(measured)
    X = torch.randn(blocks.plain.shape[1], 4)
    assert measured.is_correct(blocks, X)
    spmm = measured.kernels.spmm
    monkeypatch.setattr(measured.kernels, "spmm", lambda A, X: spmm(A, X) * 1.001)
    assert not measured.is_correct(blocks, X)


def test_the_other_measurements_run(measured, monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda _: 132)
    blocks = small_block(measured)
    sweep = measured.tile_sweep(blocks.plain, 8, wall_clock, 2)
    assert set(sweep["seconds"]) == {"1024", "512", "256"}
    assert sweep["rule"] == 256
    found = measured.bandwidth(wall_clock, 2, "cpu", 1000)
    assert set(found) == {"copy", "triad"}
    assert set(measured.heavy_row(wall_clock, 2, "cpu", 2**10)) == {"even", "heavy"}
    assert len(measured.row_operations(wall_clock, 2, "cpu", 100)) == 6
    assert set(measured.host_microseconds("cpu", 3)) == {"torch", "spgnn"}


def test_graphs_of_a_folder_come_first(measured, monkeypatch, tmp_path):
    monkeypatch.delenv("SPGNN_DATA", raising=False)
    assert list(measured.graph_names()) == ["rmat-20-8", "sbm-20-16"]
    (tmp_path / "wave.npz").touch()
    monkeypatch.setenv("SPGNN_DATA", str(tmp_path))
    assert list(measured.graph_names()) == ["wave", "rmat-20-8", "sbm-20-16"]


@pytest.fixture
def pretended(suite, measured, monkeypatch):
    """The suite with the CPU in the place of a GPU and no processes of its own."""
    monkeypatch.setattr(suite, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(device, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(measured, "DeviceClock", lambda: wall_clock)
    real = measured.bandwidth
    monkeypatch.setattr(measured, "bandwidth", lambda *a: real(*a[:3], 1000))
    monkeypatch.setattr(measured, "row_operations", lambda *a: [])
    monkeypatch.setattr(measured, "heavy_row", lambda *a: None)
    run = {"status": 0, "seconds": 1.0, "output": ["7 passed"], "command": "pytest"}
    monkeypatch.setattr(suite, "run_command", lambda *_: dict(run))
    monkeypatch.setattr(
        suite, "training", lambda *_: {"status": 0, "losses": {"cuda": [2.0, 1.0], "cpu": [2, 1]}}
    )
    described = {
        "command": "python benchmarks/gpu_suite.py",
        "commit": "0123",
        "date": "2026-01-01",
        "versions": {"torch": "2"},
        "device": {"name": "Pretended", "multiprocessors": 1, "memory_bytes": 2**30},
    }
    monkeypatch.setattr(suite, "describe_run", lambda _: described)
    return suite


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
    assert "| rmat-7-4 | 8 |" in text
    for line in text.splitlines():
        if line.startswith("|") and "rmat-6-4" in line:
            assert "nan" not in line


def test_failures_decide_the_exit_status(pretended, monkeypatch, tmp_path):
    import gpu_measurements

    monkeypatch.setattr(gpu_measurements, "is_correct", lambda *_: False)
    assert pretended.main(["--output", str(tmp_path), *ARGUMENTS]) == 1
    assert "rmat-6-4, f = 3: wrong result" in (tmp_path / "gpu_suite.md").read_text()


def test_failing_tests_and_training_are_reported(pretended, monkeypatch, tmp_path):
    run = {"status": 2, "seconds": 1.0, "output": ["1 failed"], "command": "pytest", "losses": {}}
    monkeypatch.setattr(pretended, "run_command", lambda *_: run)
    monkeypatch.setattr(pretended, "training", lambda *_: run)
    status = pretended.main(["--output", str(tmp_path), "--steps", "tests", "training"])
    assert status == 1
    text = (tmp_path / "gpu_suite.md").read_text()
    assert "tests exited with status 2; training exited with status 2" in text


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
    assert not suite.losses_agree([2.0, 1.0], [2.0, 1.1])
    assert not suite.losses_agree([1.0, 2.0], [1.0, 2.0])
    assert not suite.losses_agree([math.nan, math.nan], [2.0, 1.0])
