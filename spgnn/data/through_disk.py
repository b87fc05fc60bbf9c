"""Graphs that are larger than memory: sorted into rows by way of a disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.data.edge_files import BothEndsFile, EdgeFile, Edges, check_sums
from spgnn.data.graph import GraphBlock
from spgnn.data.load import EDGE_FILES, open_source, suffix_of
from spgnn.data.reading import PIECE, name_in
from spgnn.data.shards import DirectoryWriter, PartWriter, directory_writer, open_shards
from spgnn.data.source import GraphSource, MemorySource, describe_bare
from spgnn.data.structure import added, from_entries, pattern_of, row_ranges, slice_rows, union
from spgnn.errors import InputError
from spgnn.files import AnyPath
from spgnn.memory import resident_bytes
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress, stage
from spgnn.sparse import CSR

# Of an entry while a bucket is put in order: as it was read, SciPy's two forms, merged. Measured.
_ENTRY_BYTES, _WEIGHTED_BYTES = 32, 96
Array = npt.NDArray[Any]
Pair = tuple[sp.csr_array, sp.csr_array | None]


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


_PARSED = 11  # times the text of a piece that its numbers take, dealt out to buckets
_VERTEX_BYTES = 32  # how long rows are, their names or lines, and where buckets begin
_LEAST_ENTRIES = 1 << 18  # of a bucket: smaller ones are files of no size


def open_through_disk(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    *,
    directory: AnyPath,
    memory: int,
    symmetrise: bool = False,
    progress: Progress | None = None,
) -> GraphSource:
    """As `open_source`, but no file of edges and no compressed features are in memory as a whole.

    What is generated or downloaded still is, and so is the adjacency of an .npz file.

    Parameters
    ----------
    name_or_path, data_dir, progress
        As of `spgnn.data.open_source`.
    directory : path
        Must not exist. A graph directory with one part is written there, if need be, and opened.
    memory : int
        Bytes that the process may have while it is written. Pages of mapped files, which the system
        takes back when it needs them, are not counted.
    symmetrise : bool
        The undirected graph with an edge wherever this one has one, in either direction; of two
        weights the larger.

    Raises
    ------
    InputError
        If there is nothing of that name, it cannot be read, the disk is full, or so little memory
        is not enough.
    """
    if is_edge_file(name_or_path):
        file = EDGE_FILES[suffix_of(Path(name_or_path))](Path(name_or_path))
        _Sorting(file, memory, symmetrise=symmetrise, progress=progress).write(directory)
        return open_shards(directory)
    source = open_source(name_or_path, data_dir, progress=progress)
    if symmetrise and source.meta.directed:
        if isinstance(source, MemorySource):
            return MemorySource(source.graph().symmetrised())
        edges = _SourceEdges(source)
        sorting = _Sorting(edges, memory, symmetrise=True, source=source, progress=progress)
        sorting.write(directory)
        return open_shards(directory)
    if source.random_access:
        return source
    _write_rows(source, directory, progress)
    return open_shards(directory)


def is_edge_file(path: AnyPath) -> bool:
    """Whether this is a file of edges that is read piece by piece."""
    return os.path.isfile(path) and suffix_of(Path(path)) in EDGE_FILES


class _SourceEdges(EdgeFile):
    """The edges of a source whose vertices are numbered already."""

    directed = True

    def __init__(self, source: GraphSource) -> None:
        self.path, self._source = Path(source.meta.name), source

    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """Row by row."""
        meta, tick = self._source.meta, stage(progress, "reading edges")
        rows = max(1, _LEAST_ENTRIES * meta.vertices // max(meta.edges, 1))
        for first in range(0, meta.vertices, rows):
            last = min(first + rows, meta.vertices)
            A = self._source.adjacency(slice(first, last))
            target = np.repeat(np.arange(first, last), A.row_lengths.numpy())
            weights = None if A.values is None else A.values.double().numpy()
            yield Edges(A.indices.numpy(), target, weights)
            if tick is not None:
                tick(last, meta.vertices)

    def vertices(self) -> int:
        """Those of the source."""
        return self._source.meta.vertices


class _Sorting:
    """Edges on their way to a graph directory.

    Parameters
    ----------
    file : EdgeFile
    memory : int
        Bytes that the process may have.
    symmetrise : bool
    source : GraphSource, optional
        What has the data of vertices.
    progress : called with (what, done, all), optional
    """

    def __init__(
        self,
        file: EdgeFile,
        memory: int,
        *,
        symmetrise: bool,
        source: GraphSource | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._file, self._memory, self._source = file, memory, source
        self._larger, self._progress = symmetrise and file.directed, progress
        self._ones = True  # whether all weights so far are 1
        self._check(_PARSED * PIECE)

    def write(self, directory: AnyPath) -> None:
        """The directory appears whole or not at all, and nothing else is left."""
        with directory_writer(directory) as writer:
            scratch = writer.folder / "sorting"
            scratch.mkdir()
            self._write(writer, scratch)
            scratch.rmdir()

    def _write(self, writer: DirectoryWriter, scratch: Path) -> None:
        file, source = self._file, self._source
        log = EdgeLog(scratch / "edges")
        log.write(file.pieces(self._progress))
        if source is not None:
            log.weighted = source.meta.weighted
        vertices, names = file.vertices(), None
        if vertices is None:
            names = file.named(_occurring(log.read("collecting names", self._progress)))
            vertices = len(names)
        buckets = self._dealt(log, scratch, vertices, names)
        log.remove()
        ids = None if names is None else torch.from_numpy(names)
        stored, weighted = 0, log.weighted
        with writer.part() as part:
            for first, A in self._rows(buckets):
                self._append(part, A, first, ids)
                stored += A.nnz
            # Weights that are all 1 say nothing; those of a source are what they are.
            if weighted and self._ones and source is None:
                part.drop("values")
                weighted = False
        directed = file.directed and not self._larger
        if source is not None:
            offsets = (0, vertices)
            meta = replace(source.meta, edges=stored, directed=directed, offsets=offsets)
        else:
            meta = describe_bare(
                name_in(file.path), vertices, stored, directed=directed, weighted=weighted
            )
        if isinstance(file, BothEndsFile):
            file.check_entries(stored)
        writer.finish(meta)

    def _dealt(
        self, log: EdgeLog, scratch: Path, vertices: int, names: npt.NDArray[np.int64] | None
    ) -> Buckets:
        def read(what: str) -> Iterator[Edges]:
            for piece in log.read(what, self._progress):
                if names is None:
                    yield piece
                else:
                    source, target = (
                        np.searchsorted(names, end) for end in (piece.source, piece.target)
                    )
                    yield Edges(source, target, piece.weights)

        beside, of_entry = _VERTEX_BYTES * vertices, entry_bytes(weighted=log.weighted)
        self._check(beside + of_entry * _LEAST_ENTRIES)
        return Buckets.deal(
            read,
            scratch,
            vertices,
            mirrored=self._larger or not self._file.directed,
            loops_mirrored=self._larger or isinstance(self._file, BothEndsFile),
            weighted=log.weighted,
            limit=(self._left() - beside) // of_entry,
        )

    def _rows(self, buckets: Buckets) -> Iterator[tuple[int, CSR]]:
        file, weighted = self._file, buckets.weighted
        if not buckets.vertices:
            yield 0, from_entries(sp.csr_array((0, 0), dtype=np.float64), weighted=weighted)
        for first, (rows, mirrored) in buckets.rows(self._progress):
            if mirrored is not None and isinstance(file, BothEndsFile):
                file.check_ends(rows, mirrored, first)
            elif mirrored is not None and not self._larger:
                if file.mixed:
                    file.check_mirrored(pattern_of(rows), pattern_of(mirrored), first)
                rows = added(rows, mirrored)  # noqa: PLW2901
            self._ones = self._ones and bool((rows.data == 1).all())
            check_sums(file, rows, first)
            if self._larger:
                assert mirrored is not None
                yield first, union(rows, mirrored, weighted=weighted)
            else:
                yield first, from_entries(rows, weighted=weighted)

    def _append(self, part: PartWriter, A: CSR, first: int, names: Tensor | None) -> None:
        """Rows from `first` on, and what the source says of their vertices, a piece at a time."""
        rows, source = A.shape[0], self._source
        ids = names if source is None else source.vertex_ids
        step = max(rows, 1) if source is None else source.piece_rows
        for begin in range(0, max(rows, 1), step):
            piece = slice(first + begin, first + min(begin + step, rows))
            data = {} if source is None else source.rows(piece).take(slice(None))
            named = torch.arange(piece.start, piece.stop) if ids is None else ids[piece]
            some = slice_rows(A, slice(begin, begin + len(named)))
            part.append_rows(GraphBlock(some, piece.start, named, **data), moved=ids is not None)

    def _left(self) -> int:
        return self._memory - resident_bytes()

    def _check(self, more: int) -> None:
        if self._left() < more:
            enough = (resident_bytes() + more) / 2**20
            raise InputError(
                f"{self._file.path}: to be read by way of a disk it takes {enough:.0f} MiB of "
                f"memory at least, and {self._memory / 2**20:.0f} are allowed"
            )


def _occurring(pieces: Iterator[Edges]) -> npt.NDArray[np.int64]:
    """All ends, each once and rising."""
    found = np.empty(0, np.int64)
    for piece in pieces:
        ends = np.union1d(piece.source, piece.target)
        found = np.union1d(found, ends)
    return found


def _write_rows(source: GraphSource, directory: AnyPath, progress: Progress | None) -> None:
    """A source that is best read from its beginning, as it stands."""
    tick, ids = stage(progress, "writing rows"), source.vertex_ids
    vertices = source.meta.vertices
    with directory_writer(directory) as writer:
        with writer.part() as part:
            for first, data in source.pieces():
                last = min(first + source.piece_rows, vertices)
                A = source.adjacency(slice(first, last))
                named = torch.arange(first, last) if ids is None else ids[first:last]
                block = GraphBlock(A, first, named, **data.take(slice(None)))
                part.append_rows(block, moved=ids is not None)
                if tick is not None:
                    tick(last, vertices)
        writer.finish(replace(source.meta, offsets=(0, vertices)))
