"""The training command on bad input: one line says what is wrong and where, and nothing is left."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field

import numpy as np
import pytest

from spgnn.train import main
from tests.comm.jobs import Forked, wait_for
from tests.train.command import check_refused, run
from tests.training import write_dataset


@dataclass(frozen=True)
class Bad:
    """Flags and files that cannot work, and what the one line must name."""

    name: str
    flags: list[str] = field(default_factory=list)
    arrays: dict[str, object] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def _nan_feature() -> np.ndarray:
    x = np.zeros((61, 5), np.float32)
    x[17, 3] = np.nan
    return x


GRAPHS = [
    Bad("index beyond", arrays={"indices": "beyond"}, words=["graph.npz", "indices[4]", "[0, 61)"]),
    Bad("index negative", arrays={"indices": "negative"}, words=["graph.npz", "indices[4]", "-1"]),
    Bad("NaN", arrays={"x": _nan_feature()}, words=["graph.npz", "x[17, 3]", "nan"]),
    Bad(
        "label >= classes",
        arrays={"classes": np.array(3)},
        words=["graph.npz", "y[", "is 3", "[0, 3)"],
    ),
    Bad("rectangular", arrays={"shape": np.array([61, 60])}, words=["graph.npz", "61 × 60"]),
    Bad("no labels", arrays={"y": None}, words=["graph", "no labels", "--random-classes"]),
    Bad("no features", arrays={"x": None}, words=["graph", "no features", "--random-features"]),
    Bad("short x", arrays={"x": np.zeros((60, 5), np.float32)}, words=["graph.npz", "'x'", "61"]),
    Bad("no graph", arrays={"indptr": None}, words=["graph.npz", "not a graph", "indptr"]),
    Bad("pickled", arrays={"y": np.array([None] * 61, object)}, words=["graph.npz", "'y'"]),
]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("bad", GRAPHS, ids=lambda bad: bad.name)
def test_bad_graphs(tmp_path, bad, ranks):
    path = write_dataset(tmp_path / "graph.npz")
    with np.load(path) as file:
        arrays = dict(file)
    for name, array in bad.arrays.items():
        if isinstance(array, str):
            arrays[name][4] = -1 if array == "negative" else 61
        elif array is None:
            del arrays[name]
        else:
            arrays[name] = array
    np.savez(path, **arrays)
    report = tmp_path / "report.json"
    ended = run(tmp_path, "--dataset", path, "--nproc", ranks, "--json", report)
    check_refused(ended, *bad.words)
    assert not report.exists()


FLAGS = [
    Bad("split", ["--split", "1"], words=["split"]),
    Bad("method", ["--partition", "nonsense"], words=["--partition nonsense", "gvb", "random"]),
    Bad("algo", ["--algo", "3d"], words=["--algo", "3d", "1.5d"]),
    Bad("c in 1d", ["--c", "2", "--nproc", "2"], words=["--c 2", "--algo 1.5d"]),
    Bad(
        "c does not divide",
        ["--algo", "1.5d", "--c", "2", "--nproc", "3"],
        words=["--c 2", "divide", "3"],
    ),
    Bad("c zero", ["--algo", "1.5d", "--c", "0"], words=["--c", "0"]),
    Bad("lr NaN", ["--lr", "nan"], words=["--lr", "nan"]),
    Bad("lr negative", ["--lr", "-1"], words=["--lr", "-1"]),
    Bad("lr infinite", ["--lr", "inf"], words=["--lr", "inf"]),
    Bad("decay NaN", ["--weight-decay", "nan"], words=["--weight-decay", "nan"]),
    Bad("dropout 1", ["--dropout", "1"], words=["--dropout", "[0, 1)"]),
    Bad("dropout NaN", ["--dropout", "nan"], words=["--dropout", "nan"]),
    Bad("epochs", ["--epochs", "0"], words=["--epochs", "0"]),
    Bad("layers", ["--layers", "half"], words=["--layers", "half"]),
    Bad("hidden", ["--hidden", "-3"], words=["--hidden", "-3"]),
    Bad("imbalance", ["--imbalance", "nan"], words=["--imbalance", "nan"]),
    Bad("nproc", ["--nproc", "0"], words=["--nproc", "0"]),
    Bad("seed", ["--seed", "-1"], words=["--seed", "-1"]),
    Bad("order", ["--order", "random"], words=["--order", "random"]),
    Bad("unknown flag", ["--colour", "red"], words=["--colour"]),
    Bad("abbreviation", ["--epoch", "3"], words=["--epoch"]),
    Bad("cover", ["--exchange", "oblivious", "--cover", "row"], words=["--cover row", "sparsity"]),
    Bad("resume alone", ["--resume"], words=["--resume", "--checkpoint"]),
    Bad("backend", ["--backend", "tcp"], words=["--backend", "tcp"]),
    Bad("json directory", ["--json", "missing/report.json"], words=["--json missing/report.json"]),
    Bad("shards", ["--dataset", "DIR"], words=["DIR"]),
    Bad("no such file", ["--dataset", "missing.npz"], words=["missing.npz", "no such file"]),
    Bad("no such name", ["--dataset", "missing"], words=["missing", "sbm"]),
]


@pytest.mark.parametrize("bad", FLAGS, ids=lambda bad: bad.name)
def test_bad_flags(tmp_path, bad):
    path = write_dataset(tmp_path / "graph.npz")
    (tmp_path / "DIR").mkdir()
    flags = [str(tmp_path / "DIR") if flag == "DIR" else flag for flag in bad.flags]
    before = sorted(tmp_path.iterdir())
    check_refused(run(tmp_path, "--dataset", path, *flags), *bad.words)
    left = {"job.out", "job.err"}
    assert [p for p in sorted(tmp_path.iterdir()) if p.name not in left] == before


@pytest.mark.parametrize("suffix", ["npz", "mtx", "txt", "graph", "csv.gz"])
def test_files_that_are_truncated_or_no_graph(tmp_path, suffix):
    path = tmp_path / f"broken.{suffix}"
    whole = write_dataset(tmp_path / "whole.npz").read_bytes()
    contents = {"garbage": whole[100:300], "empty": b""}
    if suffix == "npz":
        contents["truncated"] = whole[: len(whole) // 2]
    if suffix == "mtx":
        header = b"%%MatrixMarket matrix coordinate pattern general\n"
        contents["truncated"] = header + b"5 5 4\n1 2\n2 3\n"
        contents["rectangular"] = header + b"5 4 1\n1 2\n"
        contents["beyond"] = header + b"5 5 1\n1 6\n"
    if suffix == "graph":
        contents["truncated"] = b"3 2\n2\n"
        contents["beyond"] = b"3 2\n2\n1 4\n2\n"
    for content in contents.values():
        path.write_bytes(content)
        flags = ["--random-features", 3, "--random-classes", 2]
        check_refused(run(tmp_path, "--dataset", path, *flags), str(path))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["0", "1"] * 30, ["60", "61"]),
        (["0", "1"] * 31, ["61"]),
        (["0"] * 20 + ["2"] + ["0"] * 40, ["21", "2"]),
        (["0"] * 20 + ["-1"] + ["0"] * 40, ["21", "-1"]),
        (["0"] * 20 + ["x"] + ["0"] * 40, ["21"]),
    ],
    ids=["short", "long", "label = k", "negative", "no number"],
)
def test_bad_partition_files(tmp_path, lines, words):
    """The message names the file and, where there is one, the line."""
    path = write_dataset(tmp_path / "graph.npz")
    labels = tmp_path / "labels.part"
    labels.write_text("\n".join(lines) + "\n")
    ended = run(tmp_path, "--dataset", path, "--nproc", 2, "--partition", labels)
    check_refused(ended, str(labels), *words)


@pytest.mark.parametrize("ranks", [1, 2])
def test_full_disk_leaves_nothing_half_written(tmp_path, ranks):
    path = write_dataset(tmp_path / "graph.npz")
    common = ["--dataset", path, "--nproc", ranks]
    report, checkpoints = tmp_path / "report.json", tmp_path / "checkpoints"
    ended = run(tmp_path, *common, "--json", report, largest_file=1000)
    check_refused(ended, f"--json {report}", "cannot be written", "File too large")
    flags = ["--checkpoint", checkpoints, "--hidden", 64]
    ended = run(tmp_path, *common, *flags, largest_file=1000)
    check_refused(ended, f"--checkpoint {checkpoints}", "cannot be written", "File too large")
    assert list(checkpoints.iterdir()) == []
    kept = {"graph.npz", "checkpoints", "job.out", "job.err"}
    assert {p.name for p in tmp_path.iterdir()} == kept


def test_full_disk_keeps_the_checkpoint_before(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    flags = ["--dataset", path, "--checkpoint", tmp_path / "checkpoints", "--hidden", 64]
    assert run(tmp_path, *flags).status == 0
    before = (tmp_path / "checkpoints" / "checkpoint.npz").read_bytes()
    check_refused(run(tmp_path, *flags, "--epochs", 3, "--resume", largest_file=1000))
    assert (tmp_path / "checkpoints" / "checkpoint.npz").read_bytes() == before
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def test_checkpoint_directory_that_cannot_be_made(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    ended = run(tmp_path, "--dataset", path, "--checkpoint", path)
    check_refused(ended, f"--checkpoint {path}", "cannot be written")


def test_report_into_a_directory(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    (tmp_path / "there").mkdir()
    check_refused(run(tmp_path, "--dataset", path, "--json", tmp_path / "there"), "--json")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("ranks", [1, 2])
def test_interrupt_leaves_a_whole_checkpoint_and_no_report(tmp_path, ranks):
    path = write_dataset(tmp_path / "graph.npz")
    report, checkpoints = tmp_path / "report.json", tmp_path / "checkpoints"
    flags = [
        "--dataset",
        path,
        "--nproc",
        ranks,
        "--threads",
        1,
        "--epochs",
        10**6,
        "--json",
        report,
    ]
    flags += ["--checkpoint", checkpoints, "--checkpoint-every", 1, "--partition", "random"]
    job = Forked(lambda: main([str(flag) for flag in flags]), tmp_path)
    wait_for((checkpoints / "checkpoint.npz").exists)
    job.signal(signal.SIGINT)
    ended = job.wait()
    assert ended.status == 130
    assert "Traceback" not in ended.err
    assert not report.exists()
    assert [p.name for p in checkpoints.iterdir()] == ["checkpoint.npz"]
    with np.load(checkpoints / "checkpoint.npz") as file:
        epoch = json.loads(str(file["progress"]))["epoch"]
    again = [*flags, "--resume", "--epochs", epoch + 2]
    assert run(tmp_path, *again).status == 0
    assert len(json.loads(report.read_text())["history"]) == epoch + 2
