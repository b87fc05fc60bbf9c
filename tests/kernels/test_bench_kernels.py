"""What the kernel benchmark does around the clock: graphs, contestants, files, DGL's own lines."""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# What the worker uses of DGL, and the lines that DGL prints where it is imported the first time.
PRETENDED_DGL = """
print("DGL backend not selected or invalid.  Assuming PyTorch for now.", flush=True)
print('Setting the default backend to "pytorch".', flush=True)

class graph:
    def __init__(self, data, num_nodes):
        assert data[0] == "csc" and num_nodes == len(data[1][0]) - 1
    def int(self):
        return self
    def formats(self, form):
        return self

class ops:
    def copy_u_sum(graph, X):
        print("a line in between", flush=True)
    def u_mul_e_sum(graph, X, weights):
        assert weights.shape[1] == 1
"""


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bench_kernels

    monkeypatch.setattr(bench_kernels, "triad_bandwidth", lambda threads: 1e9)
    return bench_kernels


def test_a_quick_run_writes_both_files(bench, tmp_path, monkeypatch):
    files = [str(tmp_path / name) for name in ("k.json", "k.md")]
    command = ["bench_kernels.py", "--graphs", "rmat-6-4", "--widths", "3", "16", "--rounds", "1"]
    monkeypatch.setattr(
        sys,
        "argv",
        [*command, "--quick", "--threads", "1", "--json", files[0], "--markdown", files[1]],
    )
    bench.main()
    report = json.loads(Path(files[0]).read_text())
    assert set(report["graphs"]["rmat-6-4"]["widths"]) == {"3", "16"}
    text = Path(files[1]).read_text()
    assert "| rmat-6-4 | 16 |" in text
    assert "| rmat-6-4 | 64 |" in text


def test_a_full_run_compares_with_the_best(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "clear_caches", lambda: None)
    files = [str(tmp_path / name) for name in ("k.json", "k.md")]
    command = ["bench_kernels.py", "--graphs", "rmat-6-4", "--widths", "16", "--rounds", "1"]
    monkeypatch.setattr(
        sys, "argv", [*command, "--threads", "1", "--json", files[0], "--markdown", files[1]]
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support")
        bench.main()
    case = json.loads(Path(files[0]).read_text())["graphs"]["rmat-6-4"]["widths"]["16"]
    for values in ("", " values"):
        for state in ("warm", "cold"):
            for who in ("spgnn", "torch.sparse"):
                assert case[f"{who}{values} {state}, 1 thread"]["median"] > 0
    text = Path(files[1]).read_text()
    assert "over torch.sparse and MKL: values, cold, 1 thread" in text


def test_dgl_may_print_lines_of_its_own(bench, tmp_path, monkeypatch):
    (tmp_path / "dgl.py").write_text(PRETENDED_DGL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    matrix = sp.csr_array(np.eye(5, dtype=bool))
    process = bench.DglProcess(sys.executable, matrix, 1)
    try:
        for operation in ("copy_u_sum", "u_mul_e_sum"):
            assert 0 <= process.seconds(operation, 3) < 60
    finally:
        process.close()
