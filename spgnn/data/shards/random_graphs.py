"""Graphs that do not fit in memory: a CSR in memory-mapped files, and generators that write one.

A graph on disk is a directory with ``meta.json``, ``indptr.npy`` (int64 [n + 1]) and
``indices.npy`` (int32 [nnz]). It appears under its name only when it is complete.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from spgnn.data import _ondisk
from spgnn.errors import InputError
from spgnn.sparse import CSR

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Progress = Callable[[str, int, int], None]

FORMAT = "spgnn-csr"
_VERSION = 1
_PIECE = 1 << 22  # numbers that are checked or written at once

# The paper's largest graphs: vertices and nonzeros (twice the edges).
SHAPES = {"amazon": (14_249_639, 231_594_310), "papers": (111_059_956, 3_231_371_744)}


@dataclass(frozen=True, eq=False)
class OnDiskCSR:
    """A square 0/1 matrix in memory-mapped files; reading it takes no memory of its own.

    Parameters
    ----------
    path : Path
    indptr : int64 [n + 1]
    indices : int32 [nnz]
        Not checked on opening; whoever reads them checks that they are in [0, n).
    meta : dict
        What ``meta.json`` says: vertices, edges, how it was made.
    """

    path: Path
    indptr: Int64Array
    indices: Int32Array
    meta: dict[str, Any]

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return len(self.indptr) - 1, len(self.indptr) - 1


def open_on_disk(path: str | os.PathLike[str]) -> OnDiskCSR:
    """Open a graph on disk.

    Raises
    ------
    InputError
        If the directory or a file in it is missing, truncated, or contradicts ``meta.json``.
    """
    path = Path(path)
    meta = _read_meta(path)
    indptr = _map(path / "indptr.npy", np.dtype(np.int64), meta["vertices"] + 1)
    indices = _map(path / "indices.npy", np.dtype(np.int32), meta["edges"])
    first, last = int(indptr[0]), int(indptr[-1])
    if first != 0 or last != meta["edges"]:
        raise InputError(
            f"{path}/indptr.npy: runs {first} to {last}, must rise from 0 to {meta['edges']}"
        )
    for begin in range(0, meta["vertices"], _PIECE):
        falls = np.flatnonzero(np.diff(indptr[begin : begin + _PIECE + 1]) < 0)
        if len(falls):
            raise InputError(f"{path}/indptr.npy: falls after row {begin + int(falls[0])}")
    return OnDiskCSR(path, indptr, indices, meta)


def write_on_disk(path: str | os.PathLike[str], A: CSR) -> OnDiskCSR:
    """Write the pattern of a square CSR block; scalings and values are dropped.

    Raises
    ------
    InputError
        If A is not square, `path` exists, or the disk is full.
    """
    if A.shape[0] != A.shape[1]:
        raise InputError(f"the matrix is {A.shape[0]} × {A.shape[1]}; a graph on disk is square")
    indptr, indices = A.indptr.cpu().numpy(), A.indices.cpu().numpy()
    with _writing(path) as partial:
        rows = ((np.diff(indptr), indices.astype(np.int32, copy=False)) for _ in range(1))
        _write_rows(partial, A.shape[0], rows, {})
    return open_on_disk(path)


def generate_block_model(
    path: str | os.PathLike[str],
    vertices: int,
    nonzeros: int,
    *,
    community: int = 2000,
    district: int = 64,
    inside: float = 0.6,
    near: float = 0.25,
    exponent: float = 0.75,
    hub: float = 1e-4,
    seed: int = 0,
    buffer_bytes: int = 2 << 30,
    threads: int | None = None,
    progress: Progress | None = None,
) -> OnDiskCSR:
    """Write a degree-corrected block model with two levels of communities, in O(n) memory.

    After Karrer & Newman (2011). A share `inside` of the edges stays in its community, a share
    `near` in its district, the rest goes anywhere. Community sizes follow a power law; degrees do
    inside each community. Vertices are shuffled, so their order says nothing. The graph is
    undirected without self-loops, and the same for a seed whatever the threads and buffers.

    Parameters
    ----------
    path : path
        A directory that does not exist yet.
    vertices, nonzeros : int
        n, and how many entries to draw (twice the edges); duplicates make the graph a little
        smaller.
    community : int
        Average vertices of a community; they range over a factor of 100.
    district : int
        Average communities of a district.
    exponent, hub : float
        Density (x + hub)^-exponent at relative position x of a community.
    buffer_bytes : int
        Rows are drawn in ranges that fit this; each costs a pass over all edges.

    Raises
    ------
    InputError
        If a number makes no sense, `path` exists, or the disk is full.
    """
    _check_size(vertices, nonzeros)
    if not (inside >= 0 and near >= 0 and inside + near <= 1):
        raise InputError(f"inside {inside} and near {near} must be shares that sum to at most 1")
    if not (0 < exponent < 1 and hub > 0 and community >= 1 and district >= 1):
        raise InputError("exponent must be in (0, 1); hub, community and district positive")
    starts = _community_starts(vertices, min(community, vertices), seed)
    model = _ondisk.BlockModel(
        starts, min(vertices, community * district), inside, near, exponent, hub, seed
    )
    meta = {"generator": "block model", "seed": seed, "communities": len(starts) - 1}
    return _generate(
        path,
        model,
        vertices=vertices,
        nonzeros=nonzeros,
        meta=meta,
        buffer_bytes=buffer_bytes,
        threads=threads,
        progress=progress,
    )


def generate_rmat(
    path: str | os.PathLike[str],
    vertices: int,
    nonzeros: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    seed: int = 0,
    buffer_bytes: int = 2 << 30,
    threads: int | None = None,
    progress: Progress | None = None,
) -> OnDiskCSR:
    """Write an undirected R-MAT graph (Chakrabarti et al. 2004) in O(n) memory.

    Any number of vertices; they are shuffled. Parameters as `generate_block_model`.
    """
    _check_size(vertices, nonzeros)
    if min(a, b, c) < 0 or a + b + c > 1:
        raise InputError(f"a, b, c = {a}, {b}, {c} must be probabilities that sum to at most 1")
    model = _ondisk.Rmat(vertices, a, b, c, seed)
    meta = {"generator": "rmat", "seed": seed}
    return _generate(
        path,
        model,
        vertices=vertices,
        nonzeros=nonzeros,
        meta=meta,
        buffer_bytes=buffer_bytes,
        threads=threads,
        progress=progress,
    )


def _check_size(vertices: int, nonzeros: int) -> None:
    if not 2 <= vertices < 2**31:
        raise InputError(f"vertices must be in [2, 2³¹), got {vertices}")
    if nonzeros < 0:
        raise InputError(f"nonzeros must not be negative, got {nonzeros}")


def _community_starts(vertices: int, average: int, seed: int) -> Int64Array:
    """Where communities begin, int64 [communities + 1]; sizes log-uniform over a factor of 100."""
    count = max(1, vertices // average)
    sizes = 10 ** np.random.default_rng(seed).uniform(0, 2, count)
    starts = np.concatenate(([0], np.cumsum(sizes))) * (vertices / sizes.sum())
    # Rounding may leave a community empty, which no edge may be drawn from.
    return np.unique(np.round(starts).astype(np.int64))


def _generate(
    path: str | os.PathLike[str],
    model: _ondisk.Rmat | _ondisk.BlockModel,
    *,
    vertices: int,
    nonzeros: int,
    meta: dict[str, Any],
    buffer_bytes: int,
    threads: int | None,
    progress: Progress | None,
) -> OnDiskCSR:
    threads = threads or len(os.sched_getaffinity(0))
    edges = nonzeros // 2

    def stage(name: str) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, total: progress(name, done, total)

    def rows() -> Iterator[tuple[Int32Array, Int32Array]]:
        degrees = model.count_degrees(vertices, edges, threads, stage("counting degrees"))
        bounds = _row_ranges(degrees, max(1, buffer_bytes // 4))
        for i, (first, last) in enumerate(pairwise(bounds)):
            name = f"drawing rows, pass {i + 1} of {len(bounds) - 1}"
            yield model.draw_rows(first, degrees[first:last], edges, threads, stage(name))

    with _writing(path) as partial:
        _write_rows(partial, vertices, rows(), meta)
    return open_on_disk(path)


def _row_ranges(degrees: Int32Array, limit: int) -> list[int]:
    """Bounds of row ranges with at most `limit` entries each (a longer row stands alone)."""
    ends = np.cumsum(degrees, dtype=np.int64)
    bounds = [0]
    while bounds[-1] < len(degrees):
        before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        last = int(np.searchsorted(ends, before + limit, side="right"))
        bounds.append(max(last, bounds[-1] + 1))
    return bounds


@contextmanager
def _writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory beside `path` that becomes it in the end, or vanishes."""
    path = Path(path)
    if path.exists():
        raise InputError(f"{path}: exists already")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.mkdir()
        yield partial
        os.rename(partial, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_rows(
    directory: Path,
    vertices: int,
    rows: Iterator[tuple[npt.NDArray[Any], Int32Array]],
    meta: dict[str, Any],
) -> None:
    """Write (lengths, columns) of consecutive row ranges as a graph on disk."""
    edges = 0
    with (
        (directory / "indptr.npy").open("wb") as indptr,
        (directory / "indices.npy").open("wb") as indices,
    ):
        _write_header(indptr, np.dtype(np.int64), vertices + 1)
        _write_header(indices, np.dtype(np.int32), 0)
        indptr.write(np.zeros(1, np.int64).tobytes())
        for lengths, columns in rows:
            for begin in range(0, len(lengths), _PIECE):
                ends = edges + np.cumsum(lengths[begin : begin + _PIECE], dtype=np.int64)
                indptr.write(ends.tobytes())
                edges = int(ends[-1])
            for begin in range(0, len(columns), _PIECE):
                indices.write(columns[begin : begin + _PIECE].tobytes())
        indices.seek(0)
        _write_header(indices, np.dtype(np.int32), edges)
    record = {"format": FORMAT, "version": _VERSION, "vertices": vertices, "edges": edges, **meta}
    (directory / "meta.json").write_text(json.dumps(record, indent=2) + "\n")


def _write_header(file: BinaryIO, dtype: np.dtype[Any], length: int) -> None:
    """The .npy header of a vector; always 128 bytes, so that it can be written over."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    )
    assert header.tell() == 128
    file.write(header.getvalue())


def _read_meta(path: Path) -> dict[str, Any]:
    file = path / "meta.json"
    try:
        meta = json.loads(file.read_text())
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{file}: is not JSON: {error}") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise InputError(f"{file}: is not the description of a graph on disk")
    if meta.get("version") != _VERSION:
        raise InputError(f"{file}: version {meta.get('version')}; this program knows {_VERSION}")
    for name in ("vertices", "edges"):
        if not isinstance(meta.get(name), int) or meta[name] < 0:
            raise InputError(f"{file}: {name} must be a number of at least 0")
    return meta


def _map(file: Path, dtype: np.dtype[Any], length: int) -> npt.NDArray[Any]:
    if length == 0 and file.exists():
        return np.empty(0, dtype)  # an empty file section cannot be mapped
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{file}: truncated or no .npy file: {error}") from None
    if array.dtype != dtype or array.shape != (length,):
        raise InputError(
            f"{file}: is {array.dtype} {list(array.shape)}, meta.json promises {dtype} [{length}]"
        )
    return np.asarray(array)
