"""Graph directories: parts of neighbouring rows, an .npy file an array, mapped when needed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.data.arrays import HEADER_BYTES, Array, ArrayRecord, ArrayWriter, check_array, open_array
from spgnn.data.graph import (
    MASKS,
    Graph,
    GraphBlock,
    VertexData,
    inverse_permutation,
    labels_in_files,
    labels_of_table,
)
from spgnn.data.reading import check_regular, reading
from spgnn.data.source import GraphMeta, GraphSource, MemorySource, ids_of, is_count, json_object
from spgnn.data.structure import block_of, rename_columns, stack_rows
from spgnn.errors import InputError, shortened
from spgnn.files import AnyPath, digest, directory_written_aside
from spgnn.layout import RowLayout, grouped_order
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress
from spgnn.sparse import CSR, take_rows

PART = "part.json"
# What a description may name: nothing else is opened, wherever a name may lead.
ARRAYS = (
    "indptr",
    "indices",
    "values",
    "vertex_ids",
    "x",
    "x_indptr",
    "x_indices",
    "x_values",
    "y",
)
_LONGEST_RECORD = 1 << 20  # bytes of a description


class Part:
    """Rows [offsets[part], offsets[part + 1]) of a graph directory, opened."""

    def __init__(self, folder: Path, part: int, meta: GraphMeta, expected: str) -> None:
        self.folder, self.meta = folder, meta
        self.first, last = meta.offsets[part : part + 2]
        self.rows = last - self.first
        self._verified: set[str] = set()
        check_regular(folder / PART)
        with reading(folder / PART, "not the description of a part"):
            if (folder / PART).stat().st_size > _LONGEST_RECORD:
                raise ValueError(f"more than {_LONGEST_RECORD} bytes")
            text = (folder / PART).read_bytes()
        self.records = _records(self, part, text, expected)

    def wrong(self, what: str) -> InputError:
        """What an error in this part looks like."""
        return InputError(f"{self.folder}: {what}")

    def check(self) -> None:
        """Compare all bytes of all arrays with their digests."""
        for name, record in self.records.items():
            check_array(self._path(name), record)
            self._verified.add(name)

    def array(self, name: str, dtype: str, shape: tuple[int, ...], *, writable: bool) -> Array:
        """Map an array; its digest is compared the first time."""
        record = self._record(name)
        if (record.dtype, record.shape) != (dtype, shape):
            raise InputError(
                f"{self._path(name)}: is {record.dtype} {list(record.shape)}, "
                f"but must be {dtype} {list(shape)}"
            )
        unknown = name not in self._verified
        array = open_array(self._path(name), record, writable=writable, check=unknown)
        if unknown and dtype == "|b1" and array.size and array.view(np.uint8).max() > 1:
            raise self.wrong(f"{name} holds something that is neither false nor true")
        self._verified.add(name)
        return array

    def tensor(self, name: str, dtype: str, row: tuple[int, ...] = ()) -> Tensor:
        """An array of one entry a row, mapped privately: written pages never reach the file."""
        return torch.from_numpy(self.array(name, dtype, (self.rows, *row), writable=True))

    def take(self, name: str, dtype: str, row: tuple[int, ...], rows: Array) -> Tensor:
        """Some entries of an array of one entry a row."""
        return torch.from_numpy(self.array(name, dtype, (self.rows, *row), writable=False)[rows])

    def pattern(self, prefix: str = "", *, writable: bool = False) -> tuple[Array, Array]:
        """(indptr, indices) of the adjacency (prefix ``""``) or the features (``"x_"``)."""
        dtype = np.dtype(numpy_index_dtype(self._columns(prefix))).str
        indptr = self.array(f"{prefix}indptr", "<i8", (self.rows + 1,), writable=writable)
        entries = self._record(f"{prefix}indices").shape[:1]
        return indptr, self.array(f"{prefix}indices", dtype, entries, writable=writable)

    def csr(self, prefix: str = "") -> CSR:
        """The adjacency or the features, mapped privately."""
        indptr, indices = self.pattern(prefix, writable=True)
        values = None
        if prefix or self.meta.weighted:
            values = self.array(f"{prefix}values", "<f4", indices.shape, writable=True)
        return self._block(indptr, indices, prefix, values)

    def take_csr(self, prefix: str, rows: Array) -> CSR:
        """Some rows of the adjacency or the features; only their entries are read."""
        indptr, indices = self.pattern(prefix)
        begins, ends = indptr[rows], indptr[rows + 1]
        if len(rows) and not (begins.min() >= 0 and (begins <= ends).all()):
            raise self.wrong(f"{prefix}indptr must rise from 0")
        if len(rows) and ends.max() > len(indices):
            raise self.wrong(f"{prefix}indptr ends beyond the {len(indices)} entries")
        taken = np.concatenate(([0], np.cumsum(ends - begins)))
        place = np.arange(taken[-1]) + np.repeat(begins - taken[:-1], ends - begins)
        values = None
        if prefix or self.meta.weighted:
            values = self.array(f"{prefix}values", "<f4", indices.shape, writable=False)[place]
        return self._block(taken, indices[place], prefix, values)

    def place(self, name: str) -> tuple[Path, int] | None:
        """The file of an array, and where its numbers begin; ``None`` if there is no such array.

        Its size, and a sample of its numbers, are those that were written.
        """
        if name not in self.records:
            return None
        open_array(self._path(name), self.records[name], writable=False)
        return self._path(name), HEADER_BYTES

    def vertex_ids(self) -> Tensor:
        """Where each vertex stood in the source."""
        if not self.moved:
            return torch.arange(self.first, self.first + self.rows)
        ids = self.tensor("vertex_ids", "<i8")
        if len(ids) and int(ids.min()) < 0:
            raise self.wrong(f"vertex_ids holds {int(ids.min())}; ids are at least 0")
        return ids

    @property
    def moved(self) -> bool:
        """Whether vertices stood elsewhere in the source."""
        return "vertex_ids" in self.records

    def check_labels(self, y: Tensor) -> None:
        """Refuse classes outside [-1, classes), and what is no label."""
        if y.dim() == 2:
            try:
                labels_of_table(y.numpy())
            except InputError as error:
                raise self.wrong(str(error)) from None
            return
        wrong = (y < -1) | (y >= self.meta.classes)
        if bool(wrong.any()):
            row = int(wrong.int().argmax())
            allowed = f"[0, {self.meta.classes}), or -1"
            raise self.wrong(f"y[{row}] is {int(y[row])}; it must be in {allowed}")

    def row_arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The arrays of one entry a row that the graph has: dtype and shape of an entry."""
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
        if self.meta.features and not self.meta.sparse_features:
            arrays["x"] = ("<f4", (self.meta.features,))
        if self.meta.labelled:
            y = self._record("y")
            arrays["y"] = labels_in_files(y.dtype, len(y.shape), self.meta.classes)
        if self.meta.splits:
            # With splits there is a training mask at least; one split may be a vector.
            vector = self.meta.splits == 1 and len(self._record(MASKS[0]).shape) == 1
            present = (name for name in MASKS if name == MASKS[0] or name in self.records)
            arrays |= dict.fromkeys(present, ("|b1", () if vector else (self.meta.splits,)))
        return arrays

    def _columns(self, prefix: str) -> int:
        return self.meta.features if prefix else self.meta.vertices

    def _block(self, indptr: Array, indices: Array, prefix: str, values: Array | None) -> CSR:
        try:
            return block_of(indptr, indices, (len(indptr) - 1, self._columns(prefix)), values)
        except InputError as error:
            raise self.wrong(f"{prefix}{error}") from None

    def _record(self, name: str) -> ArrayRecord:
        if name not in self.records:
            raise self.wrong(f"no array '{name}', which meta.json says there is")
        return self.records[name]

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"


def write_part(folder: Path, part: int, records: Mapping[str, ArrayRecord]) -> str:
    """Write ``part.json``; its digest."""
    arrays = {name: asdict(record) for name, record in sorted(records.items())}
    text = (json.dumps({"part": part, "arrays": arrays}, indent=1) + "\n").encode()
    (folder / PART).write_bytes(text)
    return digest(text)


def _records(opened: Part, part: int, text: bytes, expected: str) -> dict[str, ArrayRecord]:
    """What a description says, if it is that of this part."""
    described, fault = {}, ""
    try:
        described = json_object(text.decode("utf-8", "replace"))
    except InputError as error:
        fault = f": {error}"
    number = described.get("part")
    if digest(text) != expected:
        if is_count(number) and number != part:
            raise opened.wrong(f"holds part {number}; it was copied over part {part}")
        raise opened.wrong(f"is not the part that was written; it was changed or copied{fault}")
    arrays = described.get("arrays")
    if not isinstance(arrays, dict):
        raise opened.wrong(f"{PART} does not describe a part{fault}")
    for name in arrays:
        if name not in (*ARRAYS, *MASKS):
            raise opened.wrong(f"{PART} names an array '{shortened(name, 40)}', which no part has")
    try:
        return {name: ArrayRecord.of(name, entry) for name, entry in arrays.items()}
    except InputError as error:
        raise opened.wrong(f"{PART}: {error}") from None


META = "meta.json"
FORMAT, VERSION = "spgnn-graph", 2
_PIECE = 1 << 22  # row offsets that are checked at once
_LONGEST = 1 << 28  # bytes of a description


@dataclass(frozen=True, eq=False)
class MappedPattern:
    """The square pattern of a directory with one part; reading it takes no memory of its own."""

    path: Path
    indptr: Array
    indices: Array

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return len(self.indptr) - 1, len(self.indptr) - 1


class ShardDirectory(GraphSource):
    """A graph directory, opened; parts are mapped into memory when asked for, and only those.

    Attributes
    ----------
    directory : Path
    meta : GraphMeta
    made : dict or None
        How the graph was generated, if it was.
    """

    def __init__(
        self, directory: Path, meta: GraphMeta, digests: Sequence[str], made: Any = None
    ) -> None:
        self.directory, self.meta, self.made = directory, meta, made
        self._digests = digests
        self._parts: dict[int, Part] = {}

    @property
    def layout(self) -> RowLayout:
        """Who owns which rows."""
        return RowLayout(np.array(self.meta.offsets))

    def block(self, part: int) -> GraphBlock:
        """All of one part. Arrays are private mappings: written pages never reach the file."""
        opened = self._part(part)
        arrays = opened.row_arrays().items()
        data: dict[str, Any] = {name: opened.tensor(name, *kind) for name, kind in arrays}
        if self.meta.sparse_features:
            data["x"] = opened.csr("x_")
        if "y" in data:
            opened.check_labels(data["y"])
        return GraphBlock(opened.csr(), opened.first, opened.vertex_ids(), **data)

    def adjacency_of(self, part: int) -> CSR:
        """The rows of one part alone, global columns; opens nothing else."""
        return self._part(part).csr()

    def place(self, part: int, name: str) -> tuple[Path, int] | None:
        """Which file has an array of a part, and where in it its numbers begin.

        ``None`` if there is no such array. A sample of its numbers is compared with what was
        written.
        """
        return self._part(part).place(name)

    def vertices_of(self, part: int) -> tuple[Tensor | None, VertexData]:
        """Original ids of a part's vertices, if they have been moved, and labels and masks."""
        opened = self._part(part)
        arrays = {n: kind for n, kind in opened.row_arrays().items() if n != "x"}
        data = {name: opened.tensor(name, *kind) for name, kind in arrays.items()}
        if "y" in data:
            opened.check_labels(data["y"])
        return opened.vertex_ids() if opened.moved else None, VertexData(**data)

    def features_of(self, part: int) -> CSR | None:
        """Sparse features of a part; ``None`` if they are dense, or there are none."""
        return self._part(part).csr("x_") if self.meta.sparse_features else None

    def pattern(self) -> MappedPattern | CSR:
        """The pattern for a partitioner: mapped if there is one part, else in memory."""
        if self.meta.parts > 1:
            return self.structure()
        opened = self._part(0)
        indptr, indices = opened.pattern()
        first, last = int(indptr[0]), int(indptr[-1])
        if first != 0 or last != len(indices):
            raise opened.wrong(f"indptr runs {first} to {last}, must rise to {len(indices)}")
        for begin in range(0, self.meta.vertices, _PIECE):
            falls = np.flatnonzero(np.diff(indptr[begin : begin + _PIECE + 1]) < 0)
            if len(falls):
                raise opened.wrong(f"indptr falls after row {begin + int(falls[0])}")
        return MappedPattern(self.directory, indptr, indices)

    def check(self, progress: Progress | None = None) -> None:
        """Read every byte of every array and compare it with what was written."""
        for part in range(self.meta.parts):
            self._part(part).check()
            self.block(part)
            if progress is not None:
                progress("checking parts", part + 1, self.meta.parts)

    def structure(self) -> CSR:
        """The whole adjacency: mapped if there is one part, else put together in memory."""
        return stack_rows([self.adjacency_of(part) for part in range(self.meta.parts)])

    def adjacency(self, ids: Tensor | slice) -> CSR:
        """Some rows of the adjacency; only they are read."""
        wanted, order = self._by_part(ids)
        A = stack_rows([part.take_csr("", rows) for part, rows in wanted])
        return A if order is None else take_rows(A, order)

    def rows(self, ids: Tensor | slice) -> VertexData:
        """Features, labels and masks of some vertices; only they are read."""
        wanted, order = self._by_part(ids)
        data: dict[str, Any] = {}
        for name, kind in wanted[0][0].row_arrays().items():
            found = torch.cat([part.take(name, *kind, rows) for part, rows in wanted])
            data[name] = found if order is None else found[order]
        if self.meta.sparse_features:
            x = stack_rows([part.take_csr("x_", rows) for part, rows in wanted])
            data["x"] = x if order is None else take_rows(x, order)
        return VertexData(**data)

    def graph(self) -> Graph:
        """All of it: mapped if there is one part, else put together in memory."""
        if self.meta.parts > 1:
            return super().graph()
        block, moved = self.block(0), self._part(0).moved
        data = block.take(slice(None))
        ids = block.vertex_ids if moved else None
        return Graph(self.meta.name, block.adjacency, self.meta.directed, ids, **data)

    @property
    def vertex_ids(self) -> Tensor | None:
        """Where each vertex stood in its source, int64 [n]; ``None`` if none has been moved."""
        parts = [self._part(part) for part in range(self.meta.parts)]
        if not any(part.moved for part in parts):
            return None
        return torch.cat([part.vertex_ids() for part in parts])

    def _by_part(self, ids: Tensor | slice) -> tuple[list[tuple[Part, Array]], Tensor | None]:
        """(part, its own rows) in rising order, and what brings them into the order of `ids`."""
        wanted = ids_of(ids, self.meta.vertices)
        rows, order = wanted.numpy(), None
        if bool((wanted.diff() < 0).any()):
            ascending, places = wanted.sort()
            rows, order = ascending.numpy(), places.argsort()
        if len(rows) and not 0 <= rows[0] <= rows[-1] < self.meta.vertices:
            raise InputError(f"vertices must be in [0, {self.meta.vertices})")
        offsets = np.array(self.meta.offsets)
        bounds = np.searchsorted(rows, offsets).tolist()
        found = [
            (self._part(part), rows[low:high] - offsets[part])
            for part, (low, high) in enumerate(pairwise(bounds))
            if low < high
        ]
        return found or [(self._part(0), rows)], order

    def _part(self, part: int) -> Part:
        if not 0 <= part < self.meta.parts:
            raise InputError(
                f"{self.directory}: no part {part}; it has parts 0 to {self.meta.parts - 1}"
            )
        if part not in self._parts:
            folder = self.directory / part_folder(part)
            self._parts[part] = Part(folder, part, self.meta, self._digests[part])
        return self._parts[part]


def open_shards(directory: AnyPath) -> ShardDirectory:
    """Open a graph directory; reads its description only.

    Raises
    ------
    InputError
        If it is not such a directory, or its description is damaged.
    """
    path = Path(directory)
    file = path / META
    if not os.path.isdir(path):
        raise InputError(f"{path}: no such directory")
    if not os.path.exists(file):
        raise InputError(f"{path}: not a graph directory: it has no {META}")
    check_regular(file)
    with reading(file, "not the description of a graph"):
        if file.stat().st_size > _LONGEST:
            raise ValueError(f"more than {_LONGEST} bytes")
        text = file.read_text("utf-8", "replace")
    try:
        record = json_object(text)
        _check_format(record, path)
        meta = GraphMeta.from_record(record)
        digests = record.get("digests")
        if not isinstance(digests, list) or len(digests) != meta.parts:
            raise InputError(f"not the description of a graph: 'digests' must be {meta.parts}")
        if record.get("digest") != _fingerprint(record):
            raise InputError("damaged: not what was written")
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    return ShardDirectory(path, meta, digests, record.get("made"))


def is_graph_directory(path: AnyPath) -> bool:
    """Whether a path looks like what `open_shards` opens."""
    return os.path.exists(Path(path) / META)


def write_meta(directory: Path, meta: GraphMeta, digests: Sequence[str], made: Any = None) -> None:
    """Write ``meta.json``."""
    record: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(meta)}
    record |= {"made": made, "digests": list(digests)}
    record["digest"] = _fingerprint(record)
    (directory / META).write_text(json.dumps(record, indent=1) + "\n")


def part_folder(part: int) -> str:
    """The name of a part's folder."""
    return f"part-{part:05d}"


def _check_format(record: dict[str, Any], path: Path) -> None:
    if record.get("format") == "spgnn-csr" or ("format" not in record and "offsets" in record):
        raise InputError(
            "written by an earlier version; make the directory again with spgnn shard GRAPH "
            f"--parts K --output {path.name}, or with the generator that made it"
        )
    if record.get("format") != FORMAT:
        raise InputError("not the description of a graph directory")
    if record.get("version") != VERSION:
        shown = str(record.get("version"))[:20]
        raise InputError(f"version {shown}; this program knows {VERSION}")


def _fingerprint(record: dict[str, Any]) -> str:
    """The digest of all that a description says, but for the digest itself."""
    rest = {name: value for name, value in record.items() if name != "digest"}
    try:
        return digest(json.dumps(rest, sort_keys=True).encode())
    except RecursionError:
        return ""


_PIECE_ENTRIES = 1 << 22  # nonzeros, on average, or rows that are moved at once


def write_shards(
    graph: Graph | GraphSource,
    labels: npt.ArrayLike | None,
    parts: int,
    directory: AnyPath,
    progress: Progress | None = None,
    *,
    split: int | None = None,
) -> None:
    """Relabel a graph by a partition and write each part into a folder of its own.

    Beside the graph, if it is in memory, a piece of a part and a few numbers a vertex are. A source
    that hands out rows (a graph directory, an .npz that is not compressed) is never in memory as a
    whole. The directory appears whole or not at all.

    Parameters
    ----------
    graph : Graph or GraphSource
    labels : int [n] in [0, parts), optional
        The part of each vertex; ``None`` for blocks of equal size. Vertices of a part keep their
        order.
    parts : int
        At most the number of vertices; empty parts are fine.
    directory : path
        Must not exist.
    progress : called with (what, parts written, parts), optional
    split : int, optional
        Keep only this column of masks with several.

    Raises
    ------
    InputError
        If labels or parts do not fit the graph, the split or the directory exists not or already,
        or it cannot be written (a full disk).
    """
    source = MemorySource(graph) if isinstance(graph, Graph) else graph
    if not source.random_access:
        source = MemorySource(source.graph())
    check_parts(parts, source.meta.vertices)
    layout, order = partition_order(labels, source.meta.vertices, parts)
    cut = _Cut(source, order, None if labels is None else inverse_permutation(order), split)
    offsets = tuple(layout.offsets.tolist())
    splits = source.meta.splits if split is None else min(source.meta.splits, 1)
    with directory_writer(directory) as writer:
        for part in range(parts):
            with writer.part() as out:
                for block in cut.blocks(*layout.range(part)):
                    out.append_rows(block, moved=cut.moved)
            if progress is not None:
                progress("writing parts", part + 1, parts)
        writer.finish(replace(source.meta, offsets=offsets, splits=splits))


def check_parts(parts: int, vertices: int, what: str = "parts") -> None:
    """Refuse a number of parts of which some could not but be empty."""
    if not 1 <= parts <= max(vertices, 1):
        raise InputError(
            f"{what} {parts}: must be at least 1, and at most the {max(vertices, 1)} that "
            f"{vertices} vertices can use"
        )


def partition_order(
    labels: npt.ArrayLike | None, vertices: int, parts: int
) -> tuple[RowLayout, Tensor]:
    """The row layout of a partition, and the order that sorts vertices by part (stable)."""
    if parts < 1:
        raise InputError(f"the number of parts must be at least 1, got {parts}")
    if labels is None:
        return RowLayout.even(vertices, parts), torch.arange(vertices)
    labels = np.asarray(labels)
    if labels.shape != (vertices,) or labels.dtype.kind not in "iu":
        raise InputError(
            f"a partition of this graph has {vertices} integer labels, "
            f"got {labels.dtype} {list(labels.shape)}"
        )
    outside = (labels < 0) | (labels >= parts)
    if outside.any():
        vertex = int(np.argmax(outside))
        raise InputError(f"label of vertex {vertex} is {labels[vertex]}; must be in [0, {parts})")
    order = torch.from_numpy(grouped_order(labels, parts))
    return RowLayout.from_labels(labels, parts), order


class _Cut:
    """A graph in its new order, handed out a few rows at a time."""

    def __init__(
        self, source: GraphSource, order: Tensor, position: Tensor | None, split: int | None
    ) -> None:
        self._source, self._order, self._position, self._split = source, order, position, split
        self._ids = source.vertex_ids
        self.moved = position is not None or self._ids is not None
        entries = max(source.meta.edges // max(source.meta.vertices, 1), 1)
        self._rows = max(1, min(source.piece_rows, _PIECE_ENTRIES // entries))

    def blocks(self, first: int, last: int) -> Iterator[GraphBlock]:
        """New rows [first, last); at least one block, which may be empty."""
        for begin in range(first, max(last, first + 1), self._rows):
            yield self._block(begin, min(begin + self._rows, last))

    def _block(self, first: int, last: int) -> GraphBlock:
        ids = self._order[first:last]
        wanted = slice(first, last) if self._position is None else ids
        A = self._source.adjacency(wanted)
        if self._position is not None:
            A = rename_columns(A, self._position)
        data = self._source.rows(wanted)
        if self._split is not None:
            data = data.select_split(self._split)
        moved = ids if self._ids is None else self._ids[ids]
        return GraphBlock(A, first, moved, **data.take(slice(None)))


@contextmanager
def directory_writer(directory: AnyPath) -> Iterator[DirectoryWriter]:
    """What writes a graph directory, which appears when the block ends well."""
    with directory_written_aside(directory) as folder:
        yield DirectoryWriter(folder)


class DirectoryWriter:
    """Writes parts one after another, and at last what describes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: list[str] = []

    @contextmanager
    def part(self) -> Iterator[PartWriter]:
        """What writes the next part, complete when the block ends well."""
        part = len(self._digests)
        folder = self.folder / part_folder(part)
        folder.mkdir()
        writer = PartWriter(folder)
        try:
            yield writer
            self._digests.append(write_part(folder, part, writer.finish()))
        finally:
            writer.close()

    def finish(self, meta: GraphMeta, made: dict[str, Any] | None = None) -> None:
        """Describe the parts, and how the graph was generated, if it was."""
        write_meta(self.folder, meta, self._digests, made)


class PartWriter:
    """Writes the arrays of one part, each by appending to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arrays: dict[str, ArrayWriter] = {}
        self._entries: dict[str, int] = {}

    def append(self, name: str, array: Array) -> None:
        """Add rows to an array; the first ones say what it holds."""
        if name not in self._arrays:
            self._arrays[name] = ArrayWriter(self._folder / f"{name}.npy", array)
        self._arrays[name].append(array)

    def append_lengths(self, lengths: Array, prefix: str = "") -> None:
        """Add rows with so many entries each to the row offsets."""
        if prefix not in self._entries:
            self._entries[prefix] = 0
            self.append(f"{prefix}indptr", np.zeros(1, np.int64))
        for begin in range(0, len(lengths), _PIECE_ENTRIES):
            some = lengths[begin : begin + _PIECE_ENTRIES]
            ends = self._entries[prefix] + np.cumsum(some, dtype=np.int64)
            self.append(f"{prefix}indptr", ends)
            self._entries[prefix] = int(ends[-1])

    def append_rows(self, block: GraphBlock, *, moved: bool = True) -> None:
        """Add the rows of a block."""
        self._append_csr("", block.adjacency)
        if moved:
            self.append("vertex_ids", block.vertex_ids.numpy())
        if isinstance(block.x, CSR):
            self._append_csr("x_", block.x)
        elif block.x is not None:
            self.append("x", block.x.numpy())
        if block.y is not None:
            self.append("y", block.y.numpy())
        for name in MASKS if block.splits else ():
            mask = getattr(block, name)
            if mask is not None:
                self.append(name, mask.numpy())

    def drop(self, name: str) -> None:
        """Take an array out again."""
        self._arrays.pop(name).close()
        (self._folder / f"{name}.npy").unlink()

    def finish(self) -> dict[str, ArrayRecord]:
        """Complete the arrays, and say what is in them."""
        return {name: array.finish() for name, array in self._arrays.items()}

    def close(self) -> None:
        """Close all files, complete or not."""
        for array in self._arrays.values():
            array.close()

    def _append_csr(self, prefix: str, A: CSR) -> None:
        self.append_lengths(A.row_lengths.numpy(), prefix)
        self.append(f"{prefix}indices", A.indices.numpy())
        if A.values is not None:
            self.append(f"{prefix}values", A.values.numpy())
