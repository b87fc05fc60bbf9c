"""The training command in a process of its own, and what a refusal looks like."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.options import Configuration, options_of
from spgnn.train.run import main
from tests.comm.jobs import Ended, Forked

HIDDEN = 8


def run(
    directory: Path,
    *flags: object,
    largest_file: int | None = None,
    kill_while_saving: bool = False,
) -> Ended:
    """The command in a process of its own; `flags` come after ones that keep it short."""

    def body() -> int:
        if kill_while_saving:
            os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        short = ["--threads", "1", "--epochs", "2", "--partition", "random"]
        return main([*short, *map(str, flags)])

    return without_torch(Forked(body, directory).wait())


def report_of(directory: Path, *flags: object) -> dict:
    """The report that the command writes."""
    path = directory / "report.json"
    ended = run(directory, "--hidden", HIDDEN, "--json", path, *flags)
    assert (ended.status, ended.err) == (0, "")
    found = json.loads(path.read_text())
    path.unlink()
    return found


def losses_of(found: dict) -> list[float]:
    return [record["loss"] for record in found["history"]]


def without_torch(ended: Ended) -> Ended:
    """Torch itself warns of hooks where its log level was not set before it was imported."""
    lines = ended.err.splitlines(keepends=True)
    return replace(ended, err="".join(line for line in lines if "ProcessGroup.hpp" not in line))


def check_refused(ended: Ended, *words: str, status: int | None = None) -> None:
    """One line, on stderr, that contains all the words."""
    assert status in (None, ended.status), ended
    assert ended.status not in (0, 99), ended
    assert ended.status > 0, ended
    assert ended.err.startswith("error: "), ended.err
    assert ended.err.count("\n") == 1, ended.err
    for word in words:
        assert word in ended.err


def check_help(kind: type[Configuration], capsys) -> None:
    """A page names every flag once, and not many of them."""
    options = [o for record in kind.sections().values() for o in options_of(record)]
    assert max(Counter(option.name for option in options).values()) == 1
    with pytest.raises(SystemExit) as ended:
        kind.read(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    flags = re.findall(r"^  --(?!no-)[\w-]+", shown, re.MULTILINE)
    assert len(flags) <= (35 if kind is TrainConfig else 45)
    assert sum(option.mark.level in ("flag", "rare") for option in options) <= 75
    for option in options:
        assert (re.search(f"  {option.flag}[ ,]", shown) is not None) == (
            option.mark.level == "flag" and option.name not in kind.fixed
        )


def check_slip(kind: type[Configuration], words: str, meant: str) -> None:
    """A line says what was meant."""
    with pytest.raises(InputError) as refused:
        kind.read(words.split())
    assert str(refused.value).endswith(meant) or f"{meant}." in str(refused.value)
