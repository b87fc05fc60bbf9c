"""A rank that is killed in the middle of an epoch, with half of its tables on the disk."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from spgnn.parts.network import Network
from spgnn.train import main
from tests.comm.jobs import Ended, Forked
from tests.parts.runs import SMALL, check_equal
from tests.train.command import without_torch

EPOCHS, SECONDS = 5, 15.0
KILLED_IN = 3  # a checkpoint each epoch: that of two epochs is there


def flags_of(directory: Path, backend: str) -> list[str]:
    given = {**SMALL, "model": "sage", "norm": "batch", "parts": 3, "epochs": EPOCHS}
    given |= {"checkpoint": directory / "kept", "checkpoint_every": 1, "nproc": 2, "threads": 1}
    given |= {"spill": directory / "spill", "backend": backend, "json": directory / "report.json"}
    # Validation goes by running moments, which hold biases that are rounding in float32.
    given |= {"partition": "random", "dtype": "float64"}
    return [word for n, v in given.items() for word in (f"--{n.replace('_', '-')}", str(v))]


def started(directory: Path, backend: str, *more: str, spoil=None) -> Ended:
    def body() -> int:
        if spoil is not None:
            spoil(directory / "killed-at")
        return main([*flags_of(directory, backend), *more])

    return without_torch(Forked(body, directory).wait())


def in_forward(note: Path) -> None:
    """Rank 1 dies at the fourth writing of its third epoch."""
    loss, write, calls, writes = Network.loss, os.pwritev, [0], [0]

    def counted(self, *given):
        calls[0] += 1
        return loss(self, *given)

    def deadly(*given):
        if calls[0] == KILLED_IN and os.environ["RANK"] == "1":
            writes[0] += 1
            if writes[0] == 4:
                note.write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
        return write(*given)

    Network.loss, os.pwritev = counted, deadly


def in_backward(note: Path) -> None:
    """Both die, one at once, as when the machine runs out of memory."""
    calls, backward = [0], Network.backward

    def deadly(self, *given):
        calls[0] += 1
        if calls[0] == KILLED_IN and os.environ["RANK"] == "0":
            note.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        return backward(self, *given)

    Network.backward = deadly


def histories(directory: Path) -> list[dict[str, float]]:
    return json.loads((directory / "report.json").read_text())["history"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize(("spoil", "victim"), [(in_forward, 1), (in_backward, 0)])
def test_a_killed_rank(backend, spoil, victim, tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for directory in (straight, broken):
        directory.mkdir()
    assert started(straight, backend).status == 0
    ended = started(broken, backend, spoil=spoil)
    took = time.time() - float((broken / "killed-at").read_text())
    print(f"{backend}, rank {victim}: all ended {took:.2f} s after the kill")
    assert took < SECONDS, ended
    assert ended.status == 128 + signal.SIGKILL
    assert ended.err == f"error: rank {victim} was killed by SIGKILL\n"
    # What the dead wrote is still there; their checkpoint is whole.
    assert list((broken / "spill").iterdir())
    assert [path.name for path in (broken / "kept").iterdir()] == [
        path.name for path in (straight / "kept").iterdir()
    ]
    again = started(broken, backend, "--resume")
    assert again.status == 0, again
    assert not list((broken / "spill").iterdir())
    assert [path.name for path in (broken / "kept").iterdir()] == [
        path.name for path in (straight / "kept").iterdir()
    ]
    check_equal(histories(straight), histories(broken))
