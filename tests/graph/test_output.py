"""Rows of all vertices as one file: whole, in order, at any P, and in small stretches."""

from __future__ import annotations

import resource

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect
from spgnn.graph import vertices as output
from spgnn.testing import run_ranks

N = 53


def shares(rank: int, size: int, owners: int, dtype: torch.dtype, width: tuple[int, ...]):
    """Rows and ids of this rank; only the first `owners` ranks have any."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randperm(N, generator=generator)
    whole = (torch.rand((N, *width), generator=generator) * 100).to(dtype)
    mine = ids[torch.arange(N) % owners == rank] if rank < owners else ids[:0]
    return whole, whole[mine], mine


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("chunk", [100, 1 << 25])
def test_files_equal_the_whole_array(tmp_path, monkeypatch, ranks, chunk):
    monkeypatch.setattr(output.in_order, "__defaults__", (chunk,))
    kinds = [(torch.float32, (7,)), (torch.int64, ()), (torch.float64, (2, 3)), (torch.bool, (1,))]
    kinds += [(torch.float32, (0,)), (torch.bfloat16, (4,))]

    def body(rank: int) -> int:
        comm, arrays, ids = connect(), {}, None
        for number, (dtype, width) in enumerate(kinds):
            whole, rows, ids = shares(rank, ranks, max(1, ranks - 1), dtype, width)
            arrays[f"a{number}"] = rows
            path = str(tmp_path / f"a{number}.npy")
            output.write_rows(path, {"x": rows}, ids, comm, "")
            expected = (whole.float() if dtype == torch.bfloat16 else whole).numpy()
            for found in (np.load(path), np.load(path, mmap_mode="r")) if not rank else ():
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)
        output.write_rows(str(tmp_path / "all.npz"), arrays, ids, comm, "")
        if rank == 0:
            with np.load(tmp_path / "all.npz") as file:
                for name in arrays:
                    np.testing.assert_array_equal(file[name], np.load(tmp_path / f"{name}.npy"))
                return len(file.files)
        return len(arrays)

    assert run_ranks(body, ranks) == [len(kinds)] * ranks
    assert len(list(tmp_path.iterdir())) == len(kinds) + 1  # nothing is left beside them


def test_equal_rows_make_equal_files(tmp_path):
    _, rows, ids = shares(0, 1, 1, torch.float32, (3,))
    for name in ("a.npz", "b.npz"):
        output.write_rows(str(tmp_path / name), {"x": rows}, ids, connect(), "")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize("name", ["rows.npy", "rows.npz"])
# Noticed at the end, on the way, and in the middle of a write.
@pytest.mark.parametrize(("width", "chunk"), [(3, 4096), (300, 4096), (300, 1 << 20)])
def test_a_full_disk_is_everyones_error(tmp_path, monkeypatch, name, width, chunk):
    """Nothing is left, and what was there stays."""
    (tmp_path / name).write_text("before")
    monkeypatch.setattr(output, "CHUNK_BYTES", chunk)

    def body(rank: int) -> str:
        _, rows, ids = shares(rank, 3, 3, torch.float32, (width,))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
        path = str(tmp_path / name)
        with pytest.raises(InputError) as raised:
            output.write_rows(path, {"a": rows}, ids, connect(), "--output x")
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return str(raised.value)

    said = ["--output x: cannot be written: File too large"]
    assert run_ranks(body, 3) == said * 3
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "before"


def test_ranks_that_do_not_fit_each_other(tmp_path):
    def body(rank: int) -> list[str]:
        said = []
        for width, short in ((rank, 0), (3, rank)):
            _, rows, ids = shares(rank, 2, 2, torch.float32, (width,))
            path, some = str(tmp_path / "x.npy"), {"x": rows[short:]}
            with pytest.raises(InputError) as raised:
                output.write_rows(path, some, ids, connect(), "--output x")
            said.append(str(raised.value))
        return said

    widths, rows = run_ranks(body, 2)[1]
    assert "width of rows of all vertices" in widths
    assert "one_row_a_vertex of rows of all vertices" in rows
    assert not list(tmp_path.iterdir())
