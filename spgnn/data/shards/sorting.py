"""Entries of a matrix in any order, sorted into rows by way of a disk.

Entries are written down as they come, then dealt out to buckets of neighbouring rows, each small
enough to be put in order in memory. So a pass reads or writes long stretches, and memory is that
of a bucket and of a few numbers a vertex.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn.data.formats.edge_file import Edges
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress, stage

# Of an entry while a bucket is put in order: as it was read, SciPy's two forms, merged. Measured.
_ENTRY_BYTES, _WEIGHTED_BYTES = 32, 96
Array = npt.NDArray[Any]
Pair = tuple[sp.csr_array, sp.csr_array | None]


def row_ranges(lengths: npt.NDArray[np.integer], limit: int) -> list[int]:
    """Bounds of row ranges with at most `limit` entries each (a longer row stands alone)."""
    ends = np.cumsum(lengths, dtype=np.int64)
    bounds = [0]
    while bounds[-1] < len(lengths):
        before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        last = int(np.searchsorted(ends, before + limit, side="right"))
        bounds.append(max(last, bounds[-1] + 1))
    return bounds


def entry_bytes(*, weighted: bool) -> int:
    """Memory that an entry takes while its bucket is put in order."""
    return _WEIGHTED_BYTES if weighted else _ENTRY_BYTES


class EdgeLog:
    """Edges as they come, in a file.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    weighted : bool
        Whether those that were written have weights.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.weighted = path, False
        self._pieces: list[tuple[np.dtype[Any], int, bool]] = []

    def write(self, pieces: Iterator[Edges]) -> None:
        """All of them."""
        with self._path.open("wb") as file:
            for piece in pieces:
                source, target = np.ascontiguousarray(piece.source), piece.target
                for array in (source, np.ascontiguousarray(target, source.dtype)):
                    file.write(array.data)
                if piece.weights is not None:
                    file.write(np.ascontiguousarray(piece.weights, np.float64).data)
                    self.weighted = True
                self._pieces.append((source.dtype, len(piece), piece.weights is not None))

    def read(self, what: str, progress: Progress | None) -> Iterator[Edges]:
        """As they were written."""
        tick = stage(progress, what)
        with self._path.open("rb") as file:
            for number, (dtype, edges, weighted) in enumerate(self._pieces):
                source, target = (np.fromfile(file, dtype, edges) for _ in range(2))
                weights = np.fromfile(file, np.float64, edges) if weighted else None
                yield Edges(source, target, weights)
                if tick is not None:
                    tick(number + 1, len(self._pieces))

    def remove(self) -> None:
        """It is not needed any more."""
        self._path.unlink()


@dataclass(frozen=True)
class Buckets:
    """Entries by row, and those of the transpose if they are wanted.

    Attributes
    ----------
    folder : Path
    vertices : int
    mirrored : bool
        Whether the transpose's are there.
    weighted : bool
    bounds : list of int
        Of the rows of each bucket.
    """

    folder: Path
    vertices: int
    mirrored: bool
    weighted: bool
    bounds: list[int]

    @classmethod
    def deal(
        cls,
        read: Callable[[str], Iterator[Edges]],
        folder: Path,
        vertices: int,
        *,
        mirrored: bool,
        loops_mirrored: bool,
        weighted: bool,
        limit: int,
    ) -> Buckets:
        """Edge source → target is entry (target, source).

        Parameters
        ----------
        read : callable
            What it is read for, to all edges.
        folder, vertices, mirrored, weighted
        loops_mirrored : bool
            Whether a loop is among the transpose's entries, too.
        limit : int
            Entries of a bucket, both kinds.
        """
        lengths = np.zeros(vertices, np.int64)
        for piece in read("counting entries"):
            _count(lengths, piece.target)
            if mirrored:
                _count(lengths, piece.source)
        made = cls(folder, vertices, mirrored, weighted, row_ranges(lengths, limit))
        del lengths
        for piece in read("sorting entries"):
            made._add("entries", piece.target, piece.source, piece.weights)
            if mirrored:
                keep = slice(None) if loops_mirrored else piece.source != piece.target
                weights = None if piece.weights is None else piece.weights[keep]
                made._add("mirrored", piece.source[keep], piece.target[keep], weights)
        return made

    def rows(self, progress: Progress | None = None) -> Iterator[tuple[int, Pair]]:
        """First row of each bucket, its rows, and those of the transpose; each once.

        Entries that occur twice are summed, in the order of the edges. What has been read is
        removed.
        """
        tick = stage(progress, "writing rows")
        for bucket, (first, last) in enumerate(pairwise(self.bounds)):
            entries = self._take("entries", bucket, first, last)
            mirrored = self._take("mirrored", bucket, first, last) if self.mirrored else None
            yield first, (entries, mirrored)
            if tick is not None:
                tick(bucket + 1, len(self.bounds) - 1)

    @property
    def _record(self) -> np.dtype[Any]:
        index = numpy_index_dtype(self.vertices)
        fields: list[tuple[str, Any]] = [("row", index), ("column", index)]
        return np.dtype([*fields, ("weight", np.float64)] if self.weighted else fields)

    def _add(self, kind: str, rows: Array, columns: Array, weights: Array | None) -> None:
        bucket = np.searchsorted(self.bounds, rows, side="right") - 1
        order = np.argsort(bucket, kind="stable")
        records = np.empty(len(rows), self._record)
        records["row"], records["column"] = rows[order], columns[order]
        if weights is not None:
            records["weight"] = weights[order]
        ends = np.concatenate(([0], np.cumsum(np.bincount(bucket, minlength=len(self.bounds) - 1))))
        for number in np.flatnonzero(np.diff(ends)).tolist():
            with self._path(kind, number).open("ab") as file:
                file.write(records[ends[number] : ends[number + 1]].view(np.uint8).data)

    def _take(self, kind: str, bucket: int, first: int, last: int) -> sp.csr_array:
        path = self._path(kind, bucket)
        there = path.exists()
        records = np.fromfile(path, self._record) if there else np.empty(0, self._record)
        data = records["weight"] if self.weighted else np.ones(len(records), np.bool_)
        place = (records["row"] - first, records["column"])
        rows = sp.coo_array((data, place), shape=(last - first, self.vertices)).tocsr()
        if there:
            path.unlink()
        return rows

    def _path(self, kind: str, bucket: int) -> Path:
        return self.folder / f"{kind}-{bucket}"


def _count(lengths: npt.NDArray[np.int64], rows: Array) -> None:
    # Counting into an array of all vertices for each piece would take a pass over them.
    found, times = np.unique(rows, return_counts=True)
    lengths[found] += times
