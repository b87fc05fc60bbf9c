"""The figures of experiments/ginex.py: what its baselines read, and that all learn the same."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import ginex
import numpy as np
import pytest
import torch

from spgnn.addons.batches import DiskRows

MEASURED = {"17": 12, "18": 9, "19": 12}  # values of each, by three systems
SMALL = "--dataset expanded-2-rmat-11-8 --width 24 --num-neighbors 4,4 --batches 4 --batch-size 8"


def made(command: str, tmp_path: Path, *more: str) -> list[dict[str, Any]]:
    """The lines of a figure's table."""
    output = tmp_path / "output"
    words = [command, *SMALL.split(), "--superbatch", "4", "--directory", str(tmp_path)]
    assert ginex.main([*words, "--output", str(output), *more]) == 0
    with (output / f"{command}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("width", [16, 300, 1024, 1500])
def test_pages_hold_rows(width, tmp_path):
    """Rows that share pages or cross them; each page is read once a batch, or once if it stays."""
    x = torch.randn(50, width)
    x.numpy().tofile(tmp_path / "x")
    batches = [torch.randint(50, (30,)) for _ in range(4)]
    ends = [(ids * 4 * width, (ids + 1) * 4 * width) for ids in batches]
    pages = [  # of 4096 bytes
        {
            page
            for a, b in zip(*both, strict=True)
            for page in range(int(a) // 4096, -(-int(b) // 4096))
        }
        for both in ends
    ]
    for memory, read in ((0, sum(map(len, pages))), (x.nbytes + 4096, len(set.union(*pages)))):
        rows = ginex.PagedRows(DiskRows(tmp_path / "x", 0, 50, width, torch.float32), memory)
        for ids, found in zip(batches, rows.gather_many(batches), strict=True):
            assert torch.equal(found, x[ids])
        out = torch.zeros(60, width)
        places = np.arange(1, 60, 2)
        rows.begin(batches[0].numpy(), out, places)()
        assert torch.equal(out[places], x[batches[0]])
        total = read + len(pages[0]) * (memory == 0)
        assert (rows.counts.rows_read, rows.counts.bytes_read) == (total, 4096 * total)


def test_systems_learn_the_same_of_different_reads(tmp_path):
    """Whoever holds the rows; seconds by stage are those of the epoch, and Belady misses least."""
    records = made("compare", tmp_path)
    assert [record["system"] for record in records] == list(ginex.SYSTEMS)
    assert len({record["loss"] for record in records}) == 1
    for record in records:
        spent = sum(float(record[name]) for name in ginex.STAGES)
        assert 0 < spent <= float(record["seconds"])
    rates = {record["system"]: float(record["miss_rate"]) for record in records}
    assert rates["ginex"] <= rates["ginex-pg"]


def test_misses_of_the_optimum_are_fewest(tmp_path):
    few = "--features-over-memory", "32"  # refused unless changesets read what the optimum does
    assert any(int(change["out"]) for change in made("changesets", tmp_path, *few))
    records = made("misses", tmp_path)
    rates = [float(record["miss_rate"]) for record in records]
    assert all(best <= static for static, best in zip(rates[::2], rates[1::2], strict=True))
    assert rates[1::2] == sorted(rates[1::2], reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("command", [*ginex.SWEEPS, "sweeps", "stages"])
def test_every_figure_is_made(command, tmp_path):
    records = made(command, tmp_path)
    which = ginex.SWEEPS.get(command)
    if which is None:
        lines = {"4a": 2, "4b": 4, "6": 3} if command == "stages" else {"16": 4, **MEASURED}
        assert Counter(record["figure"] for record in records) == lines
        return
    assert len({record[which.name] for record in records}) >= 3
    systems = {record["system"] for record in records}
    assert systems == ({"ginex"} if which.figure == 16 else {"pyg+", "ali+pg", "ginex"})
