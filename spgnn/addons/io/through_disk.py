"""Graphs that are larger than memory: sorted into rows by way of a disk.

Edges are written to a log as they come, dealt out to buckets of neighbouring rows, and each bucket
is put in order in memory; so that takes a bucket, a piece of text and a few numbers a vertex.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import scipy
import torch

from spgnn.addons.io.edge_files import EdgeFile, Edges, order_of_entries
from spgnn.addons.io.text import PIECE
from spgnn.data import (
    IDS,
    GraphMeta,
    GraphSource,
    MemorySource,
    ShardDirectory,
    VertexData,
    directory_writer,
    from_entries,
    graph_file,
    is_graph_file,
    narrow,
    open_shards,
    open_source,
    row_ranges,
    shown_name,
    slice_rows,
    union,
)
from spgnn.errors import InputError
from spgnn.files import AnyPath, errors_of, name_in
from spgnn.memory import resident_bytes
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress, stage

Array = npt.NDArray[Any]
# Of an entry while a bucket is put in order: as it was read, SciPy's two forms, merged. Measured.
_ENTRY_BYTES, _WEIGHTED_BYTES = 32, 96
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
    """As `open_source`, but in `memory` bytes: files of edges go by way of a disk."""
    if is_graph_file(name_or_path) and isinstance(file := graph_file(name_or_path), EdgeFile):
        return _sorted_rows(file, None, directory, memory, symmetrise, progress)
    source = open_source(name_or_path, data_dir, progress=progress)
    attr = source.edge_attr()
    if symmetrise and source.meta.directed and attr is not None:
        _refuse_symmetrising(source.meta.name)
    if symmetrise and source.meta.directed:
        if isinstance(source, MemorySource):
            return MemorySource(source.graph().symmetrised(), write_ids=source.write_ids)
        return _sorted_rows(_SourceEdges(source), source, directory, memory, True, progress)
    if source.random_access:
        return source
    # Compressed: best read once, from its beginning.
    tick, vertices = stage(progress, "writing rows"), source.meta.vertices
    with directory_writer(directory) as writer:
        for first, data in source.pieces():
            last = min(first + source.piece_rows, vertices)
            ids = None if source.vertex_ids is None else source.vertex_ids[first:last]
            A = source.adjacency(slice(first, last))
            writer.append_rows(A, ids, data)
            if attr is not None:
                writer.append("edge_attr", attr[: A.nnz].numpy())
                attr = attr[A.nnz :]
            if tick is not None:
                tick(last, vertices)
        writer.end_part()
        writer.finish(source.meta)
    return open_shards(directory)


def _refuse_symmetrising(what: object) -> NoReturn:
    raise InputError(
        f"{what}: symmetrise: edges have features, and those of reverse edges are not known"
    )


class _SourceEdges(EdgeFile):
    """The edges of a source whose vertices are numbered already."""

    directed = True

    def __init__(self, source: GraphSource) -> None:
        self.path, self._source = Path(source.meta.name), source

    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
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
        return self._source.meta.vertices


def _sorted_rows(
    file: EdgeFile,
    source: GraphSource | None,
    directory: AnyPath,
    memory: int,
    symmetrise: bool,
    progress: Progress | None,
) -> ShardDirectory:
    """Sort edges into rows of a graph directory; ``source`` is what the edges are of, if any is."""
    symmetrise = symmetrise and file.directed

    def left(needed: int) -> int:
        """The memory that is left, if it is as much as needed."""
        resident = resident_bytes()
        if memory - resident < needed:
            raise InputError(
                f"{file.path}: to be read by way of a disk it takes "
                f"{(resident + needed) / 2**20:.0f} MiB of memory at least, "
                f"and {memory / 2**20:.0f} are allowed"
            )
        return memory - resident

    left(_PARSED * PIECE)
    with directory_writer(directory) as writer:
        scratch = writer.folder / "sorting"
        scratch.mkdir()
        # Names are in memory.
        pieces = (edges for edges in file.pieces(progress) if left(0) >= 0)
        log = EdgeLog(scratch / "edges", pieces, progress)
        weighted = log.weighted if source is None else source.meta.weighted
        if symmetrise and log.width is not None:
            _refuse_symmetrising(file.path)
        vertices, names = file.vertices(), None
        if vertices is None:
            ends = np.empty(0, np.int64)
            for edges in log.read("collecting names"):
                ends = np.union1d(ends, np.union1d(edges.source, edges.target))
            names = file.named(ends)
            vertices = len(names)

        def read(what: str) -> Iterator[Edges]:
            for edges in log.read(what):
                source_rows, target_rows, weights, features = edges
                if names is not None:
                    source_rows, target_rows = (
                        np.searchsorted(names, end) for end in (source_rows, target_rows)
                    )
                elif file.ranks is not None:
                    source_rows, target_rows = file.ranks[source_rows], file.ranks[target_rows]
                yield Edges(source_rows, target_rows, weights, features)

        per_vertex = _VERTEX_BYTES * vertices
        per_entry = (_WEIGHTED_BYTES if weighted else _ENTRY_BYTES) + 12 * (log.width or 0)
        room = left(per_vertex + per_entry * _LEAST_ENTRIES) - per_vertex
        buckets = Buckets(scratch, vertices, weighted=weighted, width=log.width)
        both, loops = symmetrise or not file.directed, symmetrise or file.both_ends
        buckets.fill(read, mirrored=both, loops_mirrored=loops, limit=room // per_entry)
        log.path.unlink()
        ids = None if names is None else torch.from_numpy(names)
        table = source or file.vertex_table
        if table is not None:
            ids = table.vertex_ids
        stored, all_ones = 0, True
        for first, rows, mirrored, entries in buckets.rows(both, progress):
            A = file.combined(rows, None if symmetrise else mirrored, first)
            all_ones = all_ones and bool((A.data == 1).all())
            if symmetrise:
                assert mirrored is not None
                block = union(A, mirrored, weighted=weighted)
            else:
                block = from_entries(A, weighted=weighted)
            with errors_of(file.path):
                block = narrow(block, name_in(file.path), first)
            stored += block.nnz
            if log.width is not None:
                order = order_of_entries(file.path, entries["row"], entries["column"])
                writer.append("edge_attr", entries["features"][order])
            # With the data of their vertices, a piece at a time.
            step = max(block.shape[0], 1) if table is None else table.piece_rows
            for begin in range(0, max(block.shape[0], 1), step):
                end = min(begin + step, block.shape[0])
                piece = slice(first + begin, first + end)
                data = VertexData() if table is None else table.rows(piece)
                some = slice_rows(block, slice(begin, end))
                writer.append_rows(some, None if ids is None else ids[piece], data)
        # Weights that are all 1 say nothing; those of a source are what they are.
        if weighted and all_ones and source is None:
            writer.drop("values")
            weighted = False
        writer.end_part()
        file.check_entries(stored)
        sizes: dict[str, Any] = {"edges": stored, "offsets": (0, vertices)}
        sizes["directed"] = file.directed and not symmetrise
        if table is None:
            name = shown_name(name_in(file.path))
            meta = GraphMeta(name=name, vertices=vertices, weighted=weighted, **sizes)
        else:
            meta = replace(table.meta, weighted=weighted, **sizes)
        writer.finish(meta)
        file.write_ids(writer.folder / IDS)
        scratch.rmdir()
    return open_shards(directory)


class EdgeLog:
    """Edges as they come, in a file."""

    def __init__(self, path: Path, pieces: Iterator[Edges], progress: Progress | None) -> None:
        self.path, self.weighted, self._progress = path, False, progress
        self.width: int | None = None  # of features
        self._pieces: list[tuple[np.dtype[Any], int, bool]] = []
        with path.open("wb") as file:
            for source, target, weights, features in pieces:
                self.width = None if features is None else features.shape[1]
                for array in (source, target.astype(source.dtype, copy=False), weights, features):
                    if array is not None:
                        file.write(np.ascontiguousarray(array).data)
                self._pieces.append((source.dtype, len(source), weights is not None))
                self.weighted = self.weighted or weights is not None

    def read(self, what: str) -> Iterator[Edges]:
        tick = stage(self._progress, what)
        with self.path.open("rb") as file:
            for number, (dtype, edges, weighted) in enumerate(self._pieces):
                source, target = (np.fromfile(file, dtype, edges) for _ in range(2))
                weights = np.fromfile(file, np.float64, edges) if weighted else None
                features = None
                if self.width is not None:
                    table = np.fromfile(file, np.float32, edges * self.width)
                    features = table.reshape(edges, self.width)
                yield Edges(source, target, weights, features)
                if tick is not None:
                    tick(number + 1, len(self._pieces))


class Buckets:
    """Files of the entries of neighbouring rows, and of those of the transpose if wanted."""

    def __init__(
        self, folder: Path, vertices: int, *, weighted: bool, width: int | None = None
    ) -> None:
        self._folder, self._vertices, self._weighted = folder, vertices, weighted
        index = numpy_index_dtype(vertices)
        fields: list[tuple[str, Any]] = [("row", index), ("column", index)]
        if weighted:
            fields.append(("weight", np.float64))
        if width is not None:
            fields.append(("features", (np.float32, width)))
        self._record = np.dtype(fields)
        self._bounds: list[int] = [0]  # of the rows of each bucket

    def fill(
        self,
        read: Callable[[str], Iterator[Edges]],
        *,
        mirrored: bool,
        loops_mirrored: bool,
        limit: int,
    ) -> None:
        """Edge source → target is entry (target, source) of a bucket of at most `limit` entries."""
        lengths = np.zeros(self._vertices, np.int64)
        for edges in read("counting entries"):
            for rows in (edges.target, edges.source)[: 1 + mirrored]:
                # Counting into an array of all vertices for each piece would take a pass over them.
                row, times = np.unique(rows, return_counts=True)
                lengths[row] += times
        self._bounds = row_ranges(lengths, limit)
        del lengths
        for source, target, weights, features in read("sorting entries"):
            self._add("entries", target, source, weights, features)
            if mirrored:
                keep = slice(None) if loops_mirrored else source != target
                turned = None if weights is None else weights[keep]
                self._add("mirrored", source[keep], target[keep], turned)

    def rows(
        self, mirrored: bool, progress: Progress | None = None
    ) -> Iterator[tuple[int, scipy.sparse.csr_array, scipy.sparse.csr_array | None, Array]]:
        """First row of each bucket, its rows, those of the transpose, and its entries."""
        tick = stage(progress, "writing rows")
        bounds = self._bounds if self._vertices else [0, 0]
        for bucket, (first, last) in enumerate(pairwise(bounds)):
            rows, entries = self._take("entries", bucket, first, last)
            of_transpose = None
            if mirrored:
                of_transpose, _ = self._take("mirrored", bucket, first, last)
            yield first, rows, of_transpose, entries
            if tick is not None:
                tick(bucket + 1, len(bounds) - 1)

    def _add(
        self,
        kind: str,
        rows: Array,
        columns: Array,
        weights: Array | None,
        features: Array | None = None,
    ) -> None:
        bucket = np.searchsorted(self._bounds, rows, side="right") - 1
        order = np.argsort(bucket, kind="stable")
        records = np.empty(len(rows), self._record)
        records["row"], records["column"] = rows[order], columns[order]
        if weights is not None:
            records["weight"] = weights[order]
        if features is not None:
            records["features"] = features[order]
        counts = np.bincount(bucket, minlength=len(self._bounds) - 1)
        ends = np.concatenate(([0], np.cumsum(counts)))
        for number in np.flatnonzero(counts).tolist():
            with (self._folder / f"{kind}-{number}").open("ab") as file:
                file.write(records[ends[number] : ends[number + 1]].view(np.uint8).data)

    def _take(
        self, kind: str, bucket: int, first: int, last: int
    ) -> tuple[scipy.sparse.csr_array, Array]:
        path = self._folder / f"{kind}-{bucket}"
        records = np.empty(0, self._record)
        if path.exists():
            records = np.fromfile(path, self._record)
            path.unlink()
        data = records["weight"] if self._weighted else np.ones(len(records), np.bool_)
        place = (records["row"] - first, records["column"])
        shape = (last - first, self._vertices)
        return scipy.sparse.coo_array((data, place), shape=shape).tocsr(), records
