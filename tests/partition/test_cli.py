"""The command: its files, its report, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from spgnn.data.shards.random_graphs import generate_rmat
from spgnn.partition import cli, read_labels
from spgnn.partition.__main__ import main
from tests.partition.oracle import community_graph

CONTRACT = {
    "method", "parts", "seconds", "peak_rss_bytes", "vertices", "edges", "total_volume",
    "max_send", "avg_send", "max_recv", "send_imbalance", "edge_cut", "nnz_imbalance",
    "vertex_imbalance", "cover_volume",
}  # fmt: skip


@pytest.fixture
def graph_file(tmp_path):
    A = community_graph(200, 4, seed=0).tocsr()
    path = tmp_path / "graph.npz"
    mask = np.arange(200) < 50
    np.savez(
        path,
        indptr=A.indptr.astype(np.int64),
        indices=A.indices.astype(np.int32),
        shape=np.array(A.shape),
        train_mask=mask,
    )
    return str(path)


def test_all_files_are_written_and_fit_together(graph_file, tmp_path, capsys):
    files = {name: str(tmp_path / name) for name in ("labels", "sizes", "order", "json", "p.svg")}
    status = main(
        [graph_file, "--parts", "4", "--method", "metis", "--compare", "random,metis",
         "--output", files["labels"], "--sizes", files["sizes"], "--permutation", files["order"],
         "--json", files["json"], "--plot", files["p.svg"], "--features", "10"]
    )  # fmt: skip
    assert status == 0
    labels = read_labels(files["labels"], 200, 4)
    sizes = np.loadtxt(files["sizes"], dtype=int)
    np.testing.assert_array_equal(sizes, np.bincount(labels, minlength=4))
    order = np.loadtxt(files["order"], dtype=int)
    np.testing.assert_array_equal(labels[order], np.repeat(np.arange(4), sizes))
    record = json.loads((tmp_path / "json").read_text())
    assert set(record) >= CONTRACT
    assert set(record["cover_volume"]) == {"column", "row", "minimum"}
    assert record["bytes"]["total"] == record["total_volume"] * 40
    assert [other["method"] for other in record["compared"]] == ["random"]
    assert "<svg" in (tmp_path / "p.svg").read_text()
    shown = capsys.readouterr()
    assert f"{record['total_volume']:,}" in shown.out
    assert "\r" not in shown.err
    assert sorted(os.listdir(tmp_path)) == sorted(["graph.npz", *files])


def test_labels_from_anywhere_are_reported(graph_file, tmp_path):
    labels = tmp_path / "labels"
    labels.write_text("\n".join(str(v % 3) for v in range(200)))
    assert main([graph_file, "--parts", "4", "--labels", str(labels), "--json",
                 str(tmp_path / "j")]) == 0  # fmt: skip
    record = json.loads((tmp_path / "j").read_text())
    assert record["method"] == "labels"
    assert record["empty_parts"] == 1


def test_labels_are_refined(graph_file, tmp_path):
    start = tmp_path / "start"
    start.write_text("\n".join(str(v % 4) for v in range(200)))
    common = [graph_file, "--parts", "4", "--json", str(tmp_path / "json")]
    assert main([*common, "--labels", str(start)]) == 0
    before = json.loads((tmp_path / "json").read_text())
    assert main([*common, "--refine-from", str(start), "--balance", "nnz,train"]) == 0
    after = json.loads((tmp_path / "json").read_text())
    assert after["total_volume"] < before["total_volume"]


def test_a_graph_on_disk_is_partitioned_in_place(tmp_path):
    generate_rmat(tmp_path / "g", 500, 5000)
    arguments = [str(tmp_path / "g"), "--parts", "3", "--method", "stream"]
    assert main([*arguments, "--json", str(tmp_path / "json")]) == 0
    assert json.loads((tmp_path / "json").read_text())["cover_volume"]["minimum"] is None
    assert main([*arguments, "--minimum", "--json", str(tmp_path / "json")]) == 0
    assert json.loads((tmp_path / "json").read_text())["cover_volume"]["minimum"] > 0


def _refused(arguments, capsys) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "0"], "number of parts k must be in"),
        (["--parts", "4", "--imbalance", "-1"], "imbalance must be"),
        (["--parts", "4", "--compare", "metis,magic"], "--compare: unknown method 'magic'"),
        (["--parts", "4", "--balance", "nnz,edges"], "unknown balance 'edges'"),
        (["--parts", "4", "--labels", "nowhere"], "nowhere: cannot be read"),
        (["--parts", "4", "--output", "no/such/dir"], "--output no/such/dir: its directory"),
        (["--parts", "4", "--json", "."], "--json .: is a directory"),
        (["--parts", "4", "--threads", "0"], "--threads must be at least 1"),
        (["--parts", "4", "--features", "0"], "--features must be at least 1"),
        (["--parts", "4", "--method", "metis", "--objective", "cover"], "only method gvb"),
        (["--parts", "4", "--method", "metis", "--refine-from", "LABELS"], "cannot refine"),
        (["--parts", "2", "--labels", "LABELS"], "line 4: label 3 is outside"),
        (["--parts", "4", "--plot", "x.what", "--method", "block"], "unknown suffix .what"),
    ],
)
def test_wrong_arguments_get_one_line(graph_file, arguments, message, tmp_path, capsys):
    labels = tmp_path / "labels"
    labels.write_text("\n".join(str(v % 4) for v in [0, 1, 0, 3] * 50))
    arguments = [str(labels) if a == "LABELS" else a for a in arguments]
    assert message in _refused([graph_file, *arguments], capsys)
    assert sorted(os.listdir(tmp_path)) == ["graph.npz", "labels"]


def test_wrong_graphs_get_one_line(tmp_path, capsys):
    assert "no such file" in _refused([str(tmp_path / "none.mtx"), "--parts", "2"], capsys)
    assert "not a graph directory: it has no meta.json" in _refused(
        [str(tmp_path), "--parts", "2"], capsys
    )
    scipy.io.mmwrite(tmp_path / "wide.mtx", sp.coo_array(np.ones((2, 3))))
    assert "2 × 3" in _refused([str(tmp_path / "wide.mtx"), "--parts", "2"], capsys)


def test_an_interrupt_ends_with_130_and_one_line(graph_file, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "partition", interrupted)
    assert main([graph_file, "--parts", "4", "--output", str(tmp_path / "labels")]) == 130
    assert capsys.readouterr().err.strip() == "interrupted; nothing was written"
    assert os.listdir(tmp_path) == ["graph.npz"]
