"""The training command in a process of its own, and what a refusal looks like."""

from __future__ import annotations

import resource
from pathlib import Path

from spgnn.train import main
from tests.comm.jobs import Ended, Forked


def run(directory: Path, *flags: object, largest_file: int | None = None) -> Ended:
    """The command in a process of its own; `flags` come after ones that keep it short."""

    def body() -> int:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        short = ["--threads", "1", "--epochs", "2", "--partition", "random"]
        return main([*short, *map(str, flags)])

    return Forked(body, directory).wait()


def check_refused(ended: Ended, *words: str) -> None:
    """One line, on stderr, that contains all the words."""
    assert ended.status not in (0, 99), ended
    assert ended.status > 0, ended
    assert ended.err.startswith("error: "), ended.err
    assert ended.err.count("\n") == 1, ended.err
    for word in words:
        assert word in ended.err
