"""The training command on bad input: one line says what is wrong and where, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from spgnn.comm import launch
from spgnn.train import checkpoint
from spgnn.train.checkpoint import FILE
from spgnn.train.run import main
from tests.comm.jobs import PATIENCE, Ended, Forked, wait_for
from tests.train.command import check_refused, run, without_torch
from tests.training import write_dataset


@dataclass(frozen=True)
class Bad:
    """Flags and files that cannot work, and what the one line must name."""

    name: str
    flags: list[str] = field(default_factory=list)
    arrays: dict[str, object] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    ranks: int = 1


def _nan_feature() -> np.ndarray:
    x = np.zeros((61, 5), np.float32)
    x[17, 3] = np.nan
    return x


NO_SPLIT = {f"{name}_mask": np.zeros((61, 0), np.bool_) for name in ("train", "val", "test")}
EMPTY = {"indptr": np.zeros(1, np.int64), "indices": np.zeros(0, np.int32)}
EMPTY |= {"shape": np.zeros(2, np.int64), "x": np.zeros((0, 3), np.float32)}
EMPTY |= {"y": np.zeros(0, np.int64), "train_mask": None, "val_mask": None, "test_mask": None}
# What readers refuse is tested in tests/data; here, that every rank ends, in one line.
GRAPHS = [
    Bad("NaN", arrays={"x": _nan_feature()}, words=["graph.npz", "x[17, 3]", "nan"], ranks=3),
    Bad("no labels", arrays={"y": None}, words=["graph", "no labels", "--random-classes"]),
    Bad("no features", arrays={"x": None}, words=["no features", "--random-features"], ranks=3),
    Bad("no graph", arrays={"indptr": None}, words=["graph.npz", "not a graph", "indptr"]),
    Bad("none labelled", arrays={"y": np.full(61, -1)}, words=["no vertex", "label"], ranks=3),
    Bad("no split", arrays=NO_SPLIT, words=["graph.npz", "masks without columns"], ranks=2),
    Bad("no vertices", arrays=EMPTY, words=["graph.npz", "without vertices"], ranks=2),
]


@pytest.mark.parametrize("bad", GRAPHS, ids=lambda bad: f"{bad.name} {bad.ranks}")
def test_bad_graphs(tmp_path, bad):
    path = write_dataset(tmp_path / "graph.npz")
    with np.load(path) as file:
        arrays = dict(file)
    for name, array in bad.arrays.items():
        arrays[name] = array
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    report = tmp_path / "report.json"
    ended = run(tmp_path, "--dataset", path, "--nproc", bad.ranks, "--json", report)
    check_refused(ended, *bad.words)
    assert not report.exists()


FLAGS = [
    Bad("choice", ["--algo", "4d"], words=["--algo", "4d", "1.5d"]),
    Bad("combination", ["--c", "2", "--nproc", "2"], words=["--c 2", "--algo 1.5d"]),
    Bad("absurd", ["--algo", "1.5d", "--c", "2147483647"], words=["--c 2147483647", "divide"]),
    Bad("range", ["--lr", "nan"], words=["--lr", "nan"]),
    Bad("5000 digits", ["--epochs", "9" * 5000], words=["--epochs", "int"]),
    Bad("unknown flag", ["--colour", "red"], words=["--colour"]),
]


@pytest.mark.parametrize("bad", FLAGS, ids=lambda bad: bad.name)
def test_bad_flags(capsys, bad):
    """Nothing is started, and nothing looked up."""
    status = main(["--dataset", "nowhere", *bad.flags])
    printed = capsys.readouterr()
    check_refused(Ended(status, printed.out, printed.err), *bad.words)


NAMES = [
    Bad("split", ["--split", "1"], words=["split"]),
    Bad(
        "method", ["--partition", "metsi"], words=["error: --partition metsi", "'metis'?"], ranks=2
    ),
    Bad("json directory", ["--json", "missing/report.json"], words=["--json missing/report.json"]),
    Bad("json is a directory", ["--json", "DIR"], words=["--json", "is a directory"]),
    Bad("json of 5000 letters", ["--json", "x" * 5000], words=["--json", "too long"]),
    Bad("json over the graph", ["--json", "graph.npz"], words=["--json", "this run reads"]),
    Bad("json read-only", ["--json", "/proc/x.json"], words=["--json", "cannot be written"]),
    Bad("checkpoint", ["--checkpoint", "graph.npz"], words=["--checkpoint graph.npz", "directory"]),
    Bad("checkpoint read-only", ["--checkpoint", "/proc/a/b"], words=["--checkpoint", "written"]),
    Bad(
        "buffer",
        ["--schedule", "peers", "--buffer", "64", "--partition", "block"],
        words=["--buffer 64", "16 columns", "bytes at least"],
        ranks=2,
    ),
    Bad("shards", ["--dataset", "DIR"], words=["DIR"]),
    Bad("no such file", ["--dataset", "missing.npz"], words=["missing.npz", "no such file"]),
    Bad("no such name", ["--dataset", "missing"], words=["missing", "sbm"], ranks=2),
]


@pytest.mark.parametrize("bad", NAMES, ids=lambda bad: bad.name)
def test_bad_names(tmp_path, monkeypatch, bad):
    """Found out before training, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "graph.npz")
    (tmp_path / "DIR").mkdir()
    before = sorted(tmp_path.rglob("*"))
    flags = ["--dataset", "graph.npz", "--nproc", str(bad.ranks), *bad.flags]
    check_refused(run(tmp_path, *flags), *bad.words)
    left = {"job.out", "job.err"}
    assert [p for p in sorted(tmp_path.rglob("*")) if p.name not in left] == before


def test_files_that_are_truncated(tmp_path):
    path = tmp_path / "broken.npz"
    whole = write_dataset(tmp_path / "whole.npz").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    check_refused(run(tmp_path, "--dataset", path, "--nproc", 2), str(path))
    labels = tmp_path / "labels.part"
    labels.write_text("\n".join(["0"] * 20 + ["2"] + ["0"] * 40))
    flags = ["--dataset", tmp_path / "whole.npz", "--nproc", 2, "--partition", labels]
    check_refused(run(tmp_path, *flags), str(labels), "21", "2")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_loses_no_result(tmp_path, ranks):
    """The table is printed, the line says what could not be written, and nothing is left of it."""
    path = write_dataset(tmp_path / "graph.npz")
    common = ["--dataset", path, "--nproc", ranks]
    if ranks > 1:  # the limit holds for shared memory as well
        common += ["--backend", "gloo"]
    report, checkpoints = tmp_path / "report.json", tmp_path / "checkpoints"
    ended = run(tmp_path, *common, "--json", report, "--epochs", 60, largest_file=12_000)
    check_refused(ended, f"--json {report}", "cannot be written", "File too large", status=2)
    assert "seconds per epoch" in ended.out
    flags = [
        "--checkpoint",
        checkpoints,
        "--hidden",
        64,
        "--epochs",
        9,
        "--set",
        "training.checkpoint-every=2",
    ]
    ended = run(tmp_path, *common, *flags, largest_file=12_000)
    check_refused(
        ended, f"--checkpoint {checkpoints}", "cannot be written", "File too large", status=2
    )
    assert "seconds per epoch" in ended.out
    assert list(checkpoints.iterdir()) == []
    kept = {"graph.npz", "checkpoints", "job.out", "job.err"}
    assert {p.name for p in tmp_path.iterdir()} == kept


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path):
    """The report of the epochs so far is written all the same."""
    path, report = write_dataset(tmp_path / "graph.npz"), tmp_path / "report.json"
    flags = ["--dataset", path, "--checkpoint", tmp_path / "checkpoints", "--hidden", 64]
    assert run(tmp_path, *flags).status == 0
    before = (tmp_path / "checkpoints" / FILE).read_bytes()
    flags += ["--json", report, "--set", "training.checkpoint-every=1", "--epochs", 9]
    ended = run(tmp_path, *flags, "--resume", largest_file=20_000)
    check_refused(ended, "--checkpoint", "File too large", status=2)
    found = json.loads(report.read_text())
    assert len(found["history"]) == 3
    assert found["failure"] == ended.err.removeprefix("error: ").strip()
    assert (tmp_path / "checkpoints" / FILE).read_bytes() == before
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loss_that_is_not_finite_ends_in_one_line_and_a_report(tmp_path, ranks):
    path, report = write_dataset(tmp_path / "graph.npz"), tmp_path / "report.json"
    flags = ["--dataset", path, "--nproc", ranks, "--epochs", 9, "--lr", "1e30", "--json", report]
    ended = run(tmp_path, *flags)
    check_refused(ended, "val_loss of epoch 0 is", "training ends", "--lr", status=2)
    assert "seconds per epoch" in ended.out
    found = json.loads(report.read_text(), parse_constant=pytest.fail)
    (record,) = found["history"]
    assert record["loss"] == pytest.approx(1.4, abs=0.3)
    assert record["val_loss"] is None
    assert found["failure"] in ended.err
    assert found["volume"] == found["planned_volume"]


def each_rank(directory: Path, ranks: int, *flags: object, first: dict[int, list[str]]) -> Ended:
    """The command on forked ranks, some with other flags, or in another working directory."""

    def body() -> int:
        def one() -> int:
            mine = first.get(int(os.environ["RANK"]), [])
            if mine and not mine[0].startswith("--"):
                os.chdir(mine[0])
                mine = []
            short = ["--epochs", "2", "--hidden", "8", "--partition", "random"]
            return main([*short, *map(str, flags), *mine])

        return launch(one, ranks)

    return without_torch(Forked(body, directory).wait())


def test_ranks_with_different_flags_are_refused(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    ended = each_rank(tmp_path, 3, "--dataset", path, first={1: ["--hidden", "16"]})
    check_refused(ended, "hidden of flags: 8 on ranks 0, 2; 16 on rank 1")
    ended = each_rank(
        tmp_path, 2, "--dataset", path, first={1: ["--set", "data.data-dir=elsewhere"]}
    )
    assert ended.status == 0, ended.err


def test_only_rank_0_looks_at_files(tmp_path, monkeypatch):
    """Rank 1 stands where there are none; nothing depends on what it sees."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "graph.npz")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "labels").write_text("0\n1\n" * 30 + "1\n")
    flags = ["--dataset", "graph.npz", "--partition", "labels", "--checkpoint", "run"]
    for more in (["--json", "report.json"], ["--resume", "--epochs", 4, "--json", "more.json"]):
        ended = each_rank(tmp_path, 2, *flags, *more, first={1: [str(elsewhere)]})
        assert ended.status == 0, ended.err
    assert len(json.loads(Path("more.json").read_text())["history"]) == 4
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(("ranks", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_interrupt_leaves_a_whole_checkpoint_and_no_report(tmp_path, monkeypatch, ranks, number):
    # A busy disk may take longer than a launcher usually waits for what is being written.
    for module in ("spgnn.comm.launch", "spgnn.signals"):
        monkeypatch.setattr(sys.modules[module], "END_SECONDS", PATIENCE)
    path = write_dataset(tmp_path / "graph.npz")
    report, checkpoints = tmp_path / "report.json", tmp_path / "checkpoints"
    flags = ["--dataset", path, "--nproc", ranks, "--threads", 1, "--epochs", 10**6]
    flags += ["--json", report, "--partition", "random"]
    flags += ["--checkpoint", checkpoints, "--set", "training.checkpoint-every=1"]
    job = Forked(lambda: main([str(flag) for flag in flags]), tmp_path)
    wait_for((checkpoints / FILE).exists)
    job.signal(number)
    ended = job.wait(PATIENCE / 2)  # nobody waits for END_SECONDS
    assert (ended.status, ended.err.count("\n")) == (128 + number, 1)
    assert not report.exists()
    assert [p.name for p in checkpoints.iterdir()] == [FILE]
    epochs = len(checkpoint._read(checkpoints / FILE, "")[1]["history"])
    again = [*flags, "--resume", "--epochs", epochs + 2]
    assert run(tmp_path, *again).status == 0
    assert len(json.loads(report.read_text())["history"]) == epochs + 2
