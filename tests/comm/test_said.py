"""The line of a job's first failure is written before any other rank ends."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from spgnn import InputError
from spgnn.comm import connect, guarded, launch
from tests.comm.jobs import Forked, wait_for


class Slow:
    """A stream that takes its time, as on a machine with much else to do."""

    def __init__(self, begun: Path) -> None:
        self._begun = begun

    def write(self, text: str) -> int:
        self._begun.touch()
        time.sleep(2)
        return os.write(2, text.encode())

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("fails_too", [True, False])
def test_however_slowly_it_is_written(tmp_path, fails_too):
    """The launcher kills whoever is left a moment after the first rank has ended."""

    def body() -> None:
        comm = connect()
        with guarded(comm):
            if comm.rank == 0:
                sys.stderr = Slow(tmp_path / "begun")
                raise InputError("the seventh bridge is missing")
            if fails_too:
                wait_for((tmp_path / "begun").exists)
                raise InputError("so is the eighth")
            time.sleep(100)

    ended = Forked(lambda: launch(body, 2), tmp_path).wait()
    assert ended.err == "error: rank 0: the seventh bridge is missing\n"
    assert ended.status == 2
