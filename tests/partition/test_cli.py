"""The command: its files, its report, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn.data.generators import generate_block_model
from spgnn.data.load import load_dataset
from spgnn.partition import __main__ as cli
from spgnn.partition import cut_vertices, methods, partition, read_labels
from spgnn.partition.__main__ import main
from tests.comm.jobs import Forked
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


def test_labels_from_anywhere_are_reported_compared_and_refined(graph_file, tmp_path):
    labels = tmp_path / "labels"
    labels.write_text("\n".join(str(v % 3) for v in range(200)))
    assert main([graph_file, "--parts", "4", "--labels", str(labels), "--compare", "gvb,block",
                 "--json", str(tmp_path / "j")]) == 0  # fmt: skip
    record = json.loads((tmp_path / "j").read_text())
    assert (record["method"], record["empty_parts"]) == ("labels", 1)
    assert [other["method"] for other in record["compared"]] == ["gvb", "block"]
    assert record["compared"][0]["total_volume"] < record["total_volume"]
    refined = ["--refine-from", str(labels), "--balance", "nnz,train"]
    assert main([graph_file, "--parts", "4", *refined, "--json", str(tmp_path / "j")]) == 0
    after = json.loads((tmp_path / "j").read_text())
    assert after["total_volume"] < record["compared"][1]["total_volume"]


def test_a_vertex_cut_is_written_and_read(graph_file, tmp_path, capsys):
    edges, labels, record = (str(tmp_path / name) for name in ("edges.npy", "labels", "json"))
    common = [graph_file, "--parts", "4", "--json", record]
    assert main([*common, "--method", "libra", "--edges", edges, "--output", labels]) == 0
    found = json.loads((tmp_path / "json").read_text())
    assert found["method"] == "libra"
    assert "vertex cut: parts a vertex" in capsys.readouterr().out
    assert np.load(edges).dtype == np.uint8
    for given in (["--edge-labels", edges, "--labels", labels], ["--edge-labels", edges]):
        assert main([*common, *given, "--compare", "block"]) == 0
        again = json.loads((tmp_path / "json").read_text())
        assert again["method"] == "labels"
        assert "vertex_cut" not in again["compared"][0]
        assert again["vertex_cut"]["nonzeros"] == found["vertex_cut"]["nonzeros"]
        if "--labels" in given:
            assert again["vertex_cut"] == found["vertex_cut"]
    assert "–" in capsys.readouterr().out


def test_edges_of_a_partition_are_written(graph_file, tmp_path, capsys):
    edges, labels, record = (str(tmp_path / name) for name in ("edges.npy", "labels", "json"))
    arguments = [graph_file, "--parts", "4", "--nodes", "2", "--preset", "fast"]
    assert main([*arguments, "--edges", edges, "--output", labels, "--json", record]) == 0
    found = json.loads((tmp_path / "json").read_text())
    cut = cut_vertices(load_dataset(graph_file).adjacency, 4, labels=read_labels(labels, 200, 4))
    np.testing.assert_array_equal(np.load(edges), cut.edges)
    assert found["vertex_cut"] == cut.report
    assert found["levels"]["nodes"] == 2
    minimum, total = found["levels"]["minimum"], found["cover_volume"]["minimum"]
    assert sum(minimum[level]["total"] for level in ("between_flat", "inside")) == total > 0
    assert f"between nodes {minimum['between_flat']['total']}" in " ".join(
        capsys.readouterr().out.split()
    )


def test_shares_and_fixed_vertices_come_from_files(graph_file, tmp_path):
    shares, fixed, labels = tmp_path / "shares", tmp_path / "fixed", tmp_path / "labels"
    shares.write_text("1\n3e0\n2\n 1.0\r\n")
    fixed.write_text("3\n-1\n0\n" + "-1\n" * 197)
    common = [graph_file, "--parts", "4", "--json", str(tmp_path / "json"), "--shares", str(shares)]
    given = ["--fixed", str(fixed), "--output", str(labels), "--imbalance", "0.1"]
    for method in ("gvb", "stream", "random"):
        assert main([*common, *given, "--method", method, "--objective", "both"]) == 0
        made = json.loads((tmp_path / "json").read_text())
        assert read_labels(labels, 200, 4)[[0, 2]].tolist() == [3, 0]
        assert made["nnz_imbalance"] < 0.3
    assert main([*common, "--labels", str(labels)]) == 0
    again = json.loads((tmp_path / "json").read_text())
    assert again["nnz_imbalance"] == made["nnz_imbalance"]


def test_a_graph_on_disk_is_partitioned_in_place(tmp_path):
    generate_block_model(tmp_path / "g", 500, 5000)
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


WRONG = [
    ("", "--parts requires an argument"),
    ("--parts 0", "--parts must be an integer in [1,"),
    ("--parts two", "--parts: 'two' is no integer"),
    ("--parts " + "9" * 5000, "--parts"),
    ("--parts 4 --imbalance -1", "--imbalance must be in [0, "),
    ("--parts 4 --imbalance nan", "--imbalance must be in [0, "),
    ("--parts 4 --threads 0", "--threads must be an integer in [1, 1024]"),
    ("--parts 4 --features 0", "--features must be an integer in [1, 2147483647]"),
    ("--parts 4 --method gbv", '"gbv" for --method. Choose from'),
    ("--parts 4 --objective cove", 'Did you mean "cover"'),
    ("--parts 4 --compare metis,magic", "--compare magic: choose one of"),
    ("--parts 4 --balance nnz,vertex", "--balance vertex: choose one of nnz"),
    ("--parts 4 --outptu x", "Did you mean --output"),
    ("--parts 4 --labels nowhere", "nowhere: no such file"),
    ("--parts 4 --labels .", ".: cannot be read: Is a directory"),
    ("--parts 4 --labels LABELS --refine-from LABELS", "give one"),
    ("--parts 4 --method metis --objective cover", "method metis takes no objective cover"),
    ("--parts 4 --method metis --refine-from LABELS", "cannot refine"),
    ("--parts 2 --labels LABELS", "line 4: label 3 is outside"),
    ("--parts 4 --shares SHARES", "shares: line 2: '0' is no positive number"),
    ("--parts 4 --shares FEW", "few: 3 shares for 4 parts"),
    ("--parts 4 --shares nowhere", "nowhere: no such file"),
    ("--parts 4 --fixed FEW", "few: line 4: the file ends after 3 labels"),
    ("--parts 2 --fixed LABELS", "labels: line 4: label 3 is outside [-1, 2)"),
    ("--parts 4 --fixed LABELS --method metis", "metis takes no fixed vertices"),
    ("--parts 4 --fixed LABELS --labels LABELS", "--fixed needs --nodes and --output"),
    ("--parts 4 --fixed LABELS --output LABELS", "would overwrite --fixed"),
    ("--parts 4 --shares SHARES --method libra", "--method libra balances nonzeros"),
    ("--parts 4 --nodes 3", "--nodes 3 must divide the number of parts, which is 4"),
    ("--parts 4 --method libra --objective send", "it takes no --refine-from"),
    ("--parts 4 --receive", "did you mean '--objective'"),
    ("--parts 4 --edge-labels nowhere.npy", "nowhere.npy: no such file"),
    ("--parts 4 --edge-labels LABELS", "labels: truncated or damaged: no .npy"),
    ("--parts 4 --edge-labels x --refine-from LABELS", "only reports on"),
    ("--parts 4 --plot x.jpg", "x.jpg: unknown suffix .jpg; known are png, svg, pdf"),
    ("--parts 4 --weights LABELS", "Unknown option: --weights; did you mean '--balance'?"),
    # Before any work: there is no such graph.
    ("NONE --fixed nowhere --compare gvb,metis", "method metis takes no fixed vertices"),
    ("NONE --labels nowhere --shares nowhere --compare pagraph", "pagraph makes parts equal"),
    ("NONE --compare metis,morton", "method morton needs positions"),
    ("NONE --positions nowhere --compare metis", "--positions needs method morton"),
    ("NONE --method stream --balance nnz,vertices", "method stream balances one weight only"),
    ("NONE --method metis --objective send", "method metis takes no objective send"),
    ("NONE", "nowhere.npz: no such file"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=lambda value: value[:40])
def test_wrong_arguments_get_one_line(graph_file, words, message, tmp_path, capsys):
    labels = tmp_path / "labels"
    labels.write_text("\n".join(str(v % 4) for v in [0, 1, 0, 3] * 50))
    (tmp_path / "shares").write_text("1\n0\n2\n3\n")
    (tmp_path / "few").write_text("1\n1\n2\n")
    files = {name: str(tmp_path / name.lower()) for name in ("LABELS", "SHARES", "FEW")}
    arguments = [graph_file, *(files.get(word, word) for word in words.split())]
    if "NONE" in arguments:
        arguments[:2] = ["nowhere.npz", "--parts", "4"]
    error = _refused(arguments, capsys)
    assert message in error
    assert len(error) < 320
    assert sorted(os.listdir(tmp_path)) == ["few", "graph.npz", "labels", "shares"]


@pytest.mark.parametrize(
    "flag", ["--output", "--edges", "--sizes", "--permutation", "--json", "--plot"]
)
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "must be a text that is not empty"),
        (".", "is a directory"),
        ("graph.npz", "would overwrite the graph"),
        ("./elsewhere/../graph.npz", "would overwrite the graph"),
        ("link", "would overwrite the graph"),
        ("labels", "would overwrite --refine-from"),
    ],
    ids=lambda value: value[:20],
)
def test_targets_are_tried_before_anything_is_read(
    graph_file, flag, target, message, tmp_path, capsys, monkeypatch
):
    def read(path):
        raise AssertionError("read before its targets were tried")

    monkeypatch.setattr(cli, "_read", read)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("graph.npz")
    (tmp_path / "labels").write_text("0\n" * 200)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    error = _refused(["graph.npz", "--parts", "2", "--refine-from", "labels", flag, target], capsys)
    assert error.startswith(f"error: {flag}")
    assert message in error
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_what_is_read_or_written_is_not_written_over(graph_file, tmp_path, capsys, monkeypatch):
    """No two targets are one file; neither are a target and a part of a graph, or a named set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPGNN_DATA", str(tmp_path))
    generate_block_model(tmp_path / "g", 50, 200)
    np.savez("0.npz", indptr=[0], indices=np.zeros(0, np.int32), shape=[0, 0])
    for words, message in (
        ("0.npz --output x", "0.npz: a graph without vertices"),
        ("graph.npz --output x --json ./x", "--json ./x: would overwrite --output"),
        ("g --json g/meta.json", "--json g/meta.json: would overwrite the graph"),
        ("g --json g/part-00000/indices.npy", "indices.npy: would overwrite the graph"),
        (f"graph --json {graph_file}", "would overwrite the graph"),
    ):
        assert message in _refused([*words.split(), "--parts", "2"], capsys)
    assert main(["g", "--parts", "2", "--method", "block", "--output", "g/labels"]) == 0


def test_what_cannot_be_written_keeps_nothing_else_from_it(
    graph_file, tmp_path, capsys, monkeypatch
):
    """The directory goes away during the work: the table and the other files are there."""
    (tmp_path / "gone").mkdir()
    partition = methods.partition

    def slow(*arguments, **options):
        (tmp_path / "gone").rmdir()
        return partition(*arguments, **options)

    monkeypatch.setattr(methods, "partition", slow)
    lost, kept = str(tmp_path / "gone" / "labels"), str(tmp_path / "json")
    assert main([graph_file, "--parts", "2", "--method", "block", "--output", lost,
                 "--json", kept]) == 2  # fmt: skip
    shown = capsys.readouterr()
    total = json.loads((tmp_path / "json").read_text())["total_volume"]
    assert f"{total:,}" in shown.out
    assert shown.err.splitlines() == [
        f"wrote {kept}",
        f"error: --output {lost}: cannot be written: No such file or directory",
    ]


def test_a_closed_pipe_is_one_line_and_the_files_are_there(graph_file, tmp_path):
    target = tmp_path / "labels"

    def body() -> int:
        reading, writing = os.pipe()
        os.dup2(writing, 1)
        os.close(reading)
        return main([graph_file, "--parts", "2", "--method", "block", "--output", str(target)])

    ended = Forked(body, tmp_path).wait()
    assert ended.status == 141
    assert ended.err.splitlines() == [
        f"wrote {target}", "error: the output was closed before all was written"
    ]  # fmt: skip
    assert len(read_labels(target, 200, 2)) == 200


def test_out_of_memory_is_one_line_that_says_for_what(graph_file, monkeypatch, capsys):
    def read(path):
        raise MemoryError("Unable to allocate 3 GiB")

    monkeypatch.setattr(cli, "_read", read)
    error = _refused([graph_file, "--parts", "2"], capsys)
    assert error == f"error: out of memory: reading {graph_file} (3 GiB more)\n"


def test_an_interrupt_ends_with_130_and_one_line(graph_file, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(methods, "partition", interrupted)
    assert main([graph_file, "--parts", "4", "--output", str(tmp_path / "labels")]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert os.listdir(tmp_path) == ["graph.npz"]


def test_a_large_imbalance_of_vertices_is_explained(capsys):
    """A few long rows are as many nonzeros as all others."""
    path = sp.diags_array([np.ones(1999)] * 2, offsets=[-1, 1])
    _, uneven = partition(sp.block_diag([np.ones((64, 64)), path], format="csr"), 2, "gvb")
    cli._print_reports([uneven], None)
    largest = 1 + uneven["vertex_imbalance"]
    assert largest > 1.5
    said = capsys.readouterr().out.splitlines()[-1]
    assert f"gvb: parts are even in nonzeros; the largest one has {largest:.1f} times" in said
    _, even = partition(sp.csr_array(sp.eye_array(100)), 4, "gvb")
    cli._print_reports([even], None)
    assert "even in nonzeros" not in capsys.readouterr().out
