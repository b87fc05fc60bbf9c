"""Runs with approximate messages, stopped anywhere: resumed, they are as straight ones."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.testing import run_ranks
from spgnn.train import checkpoint
from spgnn.train.run import main
from tests.comm.jobs import Ended, Forked
from tests.train.command import check_refused, run, without_torch
from tests.train.test_codecs import base, scores, trained
from tests.training import write_dataset

LATE = {"delay": 2, "delay_bins": 2, "smoothing": 0.5, "bits": 2, "error_feedback": True}
SETTINGS = [
    {**LATE, "cover": "minimum", "hierarchy": 2},
    {"bits": "1,4@3", "dtype": "bfloat16"},
    {**LATE, "model": "gat", "heads": 2, "cover": "minimum"},
]
MORE = [
    LATE,
    {"delay": 1, "dtype": "bfloat16", "bits": 4, "error_feedback": True},
    {"delay": 2, "algo": "vertex-cut", "model": "sage", "dropout": 0.5, "exact_means": False},
    {"delay": 2, "algo": "feature", "c": 2, "task": "links"},
    {"boundary_sampling": "0.3,0.6@3", "delay": 1},
    {"fresh": 0.05, "bits": 8, "error_feedback": True},
    {"fresh": 0.05, "delay": 1, "cover": "row"},
    {"bits": 4, "error_feedback": True},
    {"bits": 2, "delay": 1, "hierarchy": 2, "exact_means": True},
    {"fresh": 0.05, "bits": 8, "model": "gatv2", "algo": "1.5d", "c": 2},
]


def check_resumed(rank: int, settings: list[TrainConfig], directory: Path) -> None:
    for number, config in enumerate(settings):
        kept = config.but(checkpoint=directory / str(number), checkpoint_every=2, epochs=6)
        problem = training_graph(config, connect())
        straight = trained(config.but(epochs=6), problem)
        # Each time nothing is left of codecs but the files.
        for epochs in (3, 5, 6):
            resumed = trained(kept.but(epochs=epochs, resume=epochs > 3), problem)
            # A plan has the layers' rows, and not those of drawn pairs.
            for name in ("volume", "volume_by_level") if config.aim.task == "vertices" else ():
                assert resumed[name] == resumed[f"planned_{name}"], config
        assert scores(resumed["history"]) == scores(straight["history"]), config


@pytest.mark.parametrize(
    "listed", [SETTINGS, pytest.param(MORE, marks=pytest.mark.slow)], ids=["some", "more"]
)
def test_resumed_histories_are_identical(tmp_path, listed):
    settings = [base(tmp_path).but(eval_every=1, **flags) for flags in listed]
    run_ranks(check_resumed, 4, settings, tmp_path)
    for number, config in enumerate(settings):
        files = sorted(path.name for path in (tmp_path / str(number)).iterdir())
        assert files[0] == checkpoint.FILE
        remembers = config.codec.remembers
        assert len(files) == (5 if remembers else 1)
        assert all(name.startswith("codecs-6-") for name in files[1:])


def test_codecs_that_keep_nothing_go_on_elsewhere(tmp_path):
    """On other ranks, and on one, where nothing travels."""
    config = base(tmp_path).but(checkpoint=tmp_path / "run", eval_every=1, epochs=3)
    config = config.but(bits="2,8@4")
    (first, *_) = run_ranks(lambda rank: trained(config), 3)
    (second, *_) = run_ranks(lambda rank: trained(config.but(epochs=6, resume=True)), 2)
    assert scores(second["history"][:3]) == scores(first["history"])
    assert {path.name for path in (tmp_path / "run").iterdir()} == {checkpoint.FILE}
    alone = trained(config.but(epochs=7, resume=True))
    assert scores(alone["history"][:6]) == scores(second["history"])


def flags_of(directory: Path) -> list[object]:
    """A run of two ranks whose rows are late."""
    path = directory / "graph.npz"
    if not path.exists():
        write_dataset(path)
    flags = [
        "--dataset",
        path,
        "--checkpoint",
        directory / "run",
        "--set",
        "training.checkpoint-every=2",
    ]
    flags += ["--nproc", 2, "--delay", 2, "--bits", 4, "--error-feedback"]
    return [*flags, "--epochs", 6, "--json", directory / "report.json"]


def killed(directory: Path, spoil: Callable[[], None]) -> Ended:
    """The command, some of whose functions were spoilt."""

    def body() -> int:
        spoil()
        short = ["--threads", "1", "--partition", "random"]
        return main([*short, *map(str, flags_of(directory))])

    return without_torch(Forked(body, directory).wait())


def history(directory: Path) -> list[dict]:
    return scores(json.loads((directory / "report.json").read_text())["history"])


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> list[dict]:
    directory = tmp_path_factory.mktemp("straight")
    assert run(directory, *flags_of(directory)).status == 0
    return history(directory)


def kill_at_sync(number: int) -> None:
    """Each rank dies in the number-th of its own files; of rank 0, every second is a checkpoint."""
    synced = [0]
    sync = os.fsync

    def counted(file: int) -> None:
        synced[0] += 1
        if synced[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(file)

    os.fsync = counted


def kill_before_removal() -> None:
    """A rank dies where it would remove what the second checkpoint does not name."""

    def killed_by(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("codecs-2-"):
            os.kill(os.getpid(), signal.SIGKILL)
        unlink(path, missing_ok)

    unlink, Path.unlink = Path.unlink, killed_by  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("spoil", "epochs"),
    [
        (lambda: kill_at_sync(2), None),  # codecs' files are there, a checkpoint not yet
        (lambda: kill_at_sync(3), 2),  # half of the second ones
        (lambda: kill_at_sync(4), 2),  # all of them, but not the checkpoint that names them
        (kill_before_removal, 4),
    ],
)
def test_killed_runs_go_on(tmp_path, straight, spoil, epochs):
    ended = killed(tmp_path, spoil)
    assert ended.status != 0
    flags = flags_of(tmp_path)
    if epochs is None:
        assert not (tmp_path / "run" / checkpoint.FILE).exists()
    else:
        assert checkpoint_epochs(tmp_path) == epochs
        flags.append("--resume")
    again = run(tmp_path, *flags)
    assert again.status == 0, again.err
    assert history(tmp_path) == straight
    assert sum(path.name.startswith("codecs-") for path in (tmp_path / "run").iterdir()) == 2


def checkpoint_epochs(directory: Path) -> int:
    return len(checkpoint._read(directory / "run" / checkpoint.FILE, "")[1]["history"])


def test_files_that_do_not_fit(tmp_path):
    flags = [*flags_of(tmp_path), "--epochs", 4]
    assert run(tmp_path, *flags).status == 0
    flags += ["--resume", "--epochs", 6]
    for other, words in (
        (["--nproc", 3], ["was made on 2 ranks, not 3", checkpoint.FILE]),
        (["--partition", "block"], ["of another rank, partition, algorithm, seed or codec"]),
        (
            ["--delay", 1],
            [
                "was made with codecs --bits 4",
                "--delay 2 messages.exact-means True, not",
                "--delay 1 messages.exact-means True",
            ],
        ),
        (
            ["--set", "messages.exact-means=false"],
            ["--delay 2 messages.exact-means True, not", "--delay 2"],
        ),
        (["--delay", 0, "--bits", 32, "--no-error-feedback"], ["was made with codecs --bits 4"]),
    ):
        check_refused(run(tmp_path, *flags, *other), *words)
    (mine,) = (tmp_path / "run").glob("codecs-4-1-*")
    whole = mine.read_bytes()
    for damaged in (whole[:200] + b"\0\1\2" + whole[203:], b""):
        mine.write_bytes(damaged)
        check_refused(run(tmp_path, *flags), str(mine), "a damaged file of a checkpoint")
    (theirs,) = (tmp_path / "run").glob("codecs-4-0-*")
    mine.write_bytes(theirs.read_bytes())
    check_refused(run(tmp_path, *flags), "its contents are not what the checkpoint says")
    mine.unlink()
    check_refused(run(tmp_path, *flags), f"there is no checkpoint {mine}")
