"""The benchmark of approximate wires refuses what it cannot do before it measures anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--jobs", "0"], "--jobs must be an integer of at least 1"),
        (["--json", "damaged.json"], "damaged.json: holds no cells of this command"),
        (["--output", "no/such.md"], "its directory does not exist"),
    ],
)
def test_odd_arguments_are_refused(tmp_path, monkeypatch, capsys, flags, why):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench_wires.py", *flags])
    Path("damaged.json").write_text("{")
    import bench_wires

    with pytest.raises(SystemExit) as ended:
        bench_wires.main()
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
