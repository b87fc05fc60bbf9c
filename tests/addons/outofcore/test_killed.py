"""A rank that is killed in the middle of an epoch, with half of its tables on the disk."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from spgnn.addons.outofcore.passes import ChunkedPass
from spgnn.train.run import main
from tests.addons.outofcore.runs import SMALL
from tests.comm.jobs import Ended, Forked, slowness
from tests.train.command import without_torch

EPOCHS, SECONDS = 5, 15.0
KILLED_IN = 3  # a checkpoint each epoch: that of two epochs is there
SAGE = {"model": "sage", "norm": "batch"}
GAT = {"model": "gat", "heads": 2, "hidden": 6, "dropout": 0.5}  # of edges, too


def flags_of(directory: Path, backend: str, model: dict[str, object]) -> list[str]:
    options = {**SMALL, **model, "chunks": 3, "epochs": EPOCHS}
    options |= {"checkpoint": directory / "kept", "nproc": 2, "threads": 1}
    options |= {"spill": directory / "spill", "backend": backend, "json": directory / "report.json"}
    # Validation goes by running moments, which hold biases that are rounding in float32.
    options |= {"partition": "random", "dtype": "float64"}
    flags = [word for n, v in options.items() for word in (f"--{n.replace('_', '-')}", str(v))]
    return [*flags, "--set", "training.checkpoint-every=1"]


def started(directory: Path, backend: str, model, *more: str, spoil=None) -> Ended:
    def body() -> int:
        if spoil is not None:
            spoil(directory / "killed-at")
        return main([*flags_of(directory, backend, model), *more])

    return without_torch(Forked(body, directory).wait())


def in_forward(note: Path) -> None:
    """Rank 1 dies at the fourth writing of its third epoch."""
    loss, write, calls, writes = ChunkedPass.loss, os.pwritev, [0], [0]

    def counted(self, *arguments):
        calls[0] += 1
        return loss(self, *arguments)

    def deadly(*arguments):
        if calls[0] == KILLED_IN and os.environ["RANK"] == "1":
            writes[0] += 1
            if writes[0] == 4:
                note.write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
        return write(*arguments)

    ChunkedPass.loss, os.pwritev = counted, deadly


def in_backward(note: Path, victim=os.getpid, number: int = signal.SIGKILL) -> None:
    """Rank 0 sends a signal at the end of its third epoch: to itself by default."""
    calls, backward = [0], ChunkedPass.backward

    def deadly(self, *arguments):
        calls[0] += 1
        if calls[0] == KILLED_IN and os.environ["RANK"] == "0":
            note.write_text(str(time.monotonic()))
            os.kill(victim(), number)
        return backward(self, *arguments)

    ChunkedPass.backward = deadly


def terminated(note: Path) -> None:
    """The launcher is asked to end."""
    in_backward(note, os.getppid, signal.SIGTERM)


def histories(directory: Path) -> list[dict[str, float]]:
    epochs = json.loads((directory / "report.json").read_text())["history"]
    return [{name: value for name, value in e.items() if name != "seconds"} for e in epochs]


def checkpoints(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "kept").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "status", "said"),
    [
        (in_forward, 128 + signal.SIGKILL, "rank 1 was killed by SIGKILL"),
        (in_backward, 128 + signal.SIGKILL, "rank 0 was killed by SIGKILL"),
        (terminated, 128 + signal.SIGTERM, "terminated (SIGTERM), and all ranks with it"),
    ],
)
@pytest.mark.parametrize(("backend", "model"), [("shm", SAGE), ("gloo", SAGE), ("shm", GAT)])
def test_a_job_that_is_killed(backend, model, spoil, status, said, tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for directory in (straight, broken):
        directory.mkdir()
    assert started(straight, backend, model).status == 0
    ended = started(broken, backend, model, spoil=spoil)
    took = time.monotonic() - float((broken / "killed-at").read_text())
    print(f"{backend}, {said}: all ended {took:.2f} s after the signal")
    assert took < SECONDS or took < SECONDS * slowness(), ended
    assert (ended.status, ended.err) == (status, f"error: {said}\n")
    # What the dead wrote is still there; their checkpoint is whole.
    assert list((broken / "spill").iterdir()) or spoil is terminated
    assert checkpoints(broken) == checkpoints(straight)
    again = started(broken, backend, model, "--resume")
    assert again.status == 0, again
    assert not list((broken / "spill").iterdir())
    assert checkpoints(broken) == checkpoints(straight)
    assert histories(straight) == histories(broken)
