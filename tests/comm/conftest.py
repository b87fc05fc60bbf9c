"""A short training under any launcher, and its losses on one rank."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.comm.jobs import ROOT, TRAINING


def losses(report: Path) -> list[float]:
    return [epoch["loss"] for epoch in json.loads(report.read_text())["history"]]


@pytest.fixture(scope="session")
def check_report(tmp_path_factory) -> Callable[[Path, int], None]:
    """Checks that a report is of so many ranks, and their losses those of one process."""
    alone = tmp_path_factory.mktemp("one") / "one.json"
    subprocess.run([sys.executable, *TRAINING, "--json", alone], cwd=ROOT, check=True)

    def check(report: Path, ranks: int) -> None:
        assert json.loads(report.read_text())["world_size"] == ranks
        assert losses(report) == pytest.approx(losses(alone), rel=1e-5)

    return check
