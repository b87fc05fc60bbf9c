"""Graph directories: parts of neighbouring rows, an .npy file an array, mapped when needed.

    DIR/meta.json               sizes of the graph, and a digest of each part's description
    DIR/ids.parquet             the ids of the source's vertices, if they are strings
    DIR/part-00000/part.json    the arrays of the part, with their digests
    DIR/part-00000/NAME.npy     indptr, indices, [values], [edge_attr], [vertex_ids], [y], [masks],
                                [x | x_indptr, x_indices, x_values]

A directory with one part is a graph that has not been cut yet.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.data.arrays import HEADER_BYTES, Array, ArrayRecord, ArrayWriter, check_array, open_array
from spgnn.data.graph import MASKS, Graph, GraphBlock, VertexData, labels_in_files, labels_of_table
from spgnn.data.source import GraphMeta, GraphSource, MemorySource, ids_of, is_count, json_object
from spgnn.data.structure import block_of, rename_columns, select_rows, stack_rows
from spgnn.errors import InputError, shortened
from spgnn.files import AnyPath, atomic_directory, check_regular, digest, errors_of, reading
from spgnn.layout import RowLayout, grouped_order, inverse_permutation
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress
from spgnn.sparse import CSR
from spgnn.torch_internals import on_cpu

META, PART = "meta.json", "part.json"
IDS = "ids.parquet"  # strings: row i has the id of the vertex that vertex_ids call i
FORMAT, VERSION = "spgnn-graph", 2
_SPARSE_X = ("x_indptr", "x_indices", "x_values")
# Arrays that a description may name: nothing else is opened, wherever a name may lead.
ARRAYS = ("indptr", "indices", "values", "edge_attr", "vertex_ids", "x", *_SPARSE_X, "y", *MASKS)
_LONGEST_META, _LONGEST_PART = 1 << 28, 1 << 20  # bytes
_PIECE = 1 << 22  # row offsets that are checked at once
_PIECE_ENTRIES = 1 << 22  # nonzeros, on average, or rows that are moved at once


def _read_description(file: Path, longest: int, what: str) -> bytes:
    check_regular(file)
    with reading(file, f"not the description of a {what}"):
        if file.stat().st_size > longest:
            raise ValueError(f"more than {longest} bytes")
        return file.read_bytes()


class Part:
    """Rows [offsets[part], offsets[part + 1]) of a graph directory, opened."""

    def __init__(self, folder: Path, part: int, meta: GraphMeta, expected: str) -> None:
        self.folder, self.meta = folder, meta
        self.first, last = meta.offsets[part : part + 2]
        self.rows = last - self.first
        self._verified: set[str] = set()
        text = _read_description(folder / PART, _LONGEST_PART, "part")
        described: dict[str, Any] = {}
        with suppress(InputError):
            described = json_object(text.decode("utf-8", "replace"))
        if digest(text) != expected:
            number = described.get("part")
            if is_count(number) and number != part:
                raise self.wrong(f"holds part {number}; it was copied over part {part}")
            raise self.wrong("is not the part that was written; it was changed or copied")
        arrays = described.get("arrays")
        if not isinstance(arrays, dict):
            raise self.wrong(f"{PART} does not describe a part")
        for name in arrays:
            if name not in ARRAYS:
                shown = shortened(name, 40)
                raise self.wrong(f"{PART} names an array '{shown}', which no part has")
        with errors_of(f"{folder}: {PART}"):
            self.records = {name: ArrayRecord.of(name, entry) for name, entry in arrays.items()}

    def wrong(self, what: str) -> InputError:
        return InputError(f"{self.folder}: {what}")

    @property
    def moved(self) -> bool:
        """True if vertices stood elsewhere in the source."""
        return "vertex_ids" in self.records

    def check(self) -> None:
        """Compare all bytes of all arrays with their digests."""
        for name, record in self.records.items():
            check_array(self.path(name), record)
            self._verified.add(name)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"

    def array(self, name: str, dtype: str, shape: tuple[int, ...], *, writable: bool) -> Array:
        """Map an array (if writable, privately); its digest is compared the first time."""
        record = self._record(name)
        if (record.dtype, record.shape) != (dtype, shape):
            raise InputError(
                f"{self.path(name)}: is {record.dtype} {list(record.shape)}, "
                f"but must be {dtype} {list(shape)}"
            )
        unknown = name not in self._verified
        array = open_array(self.path(name), record, writable=writable, check=unknown)
        if unknown and dtype == "|b1" and array.size and array.view(np.uint8).max() > 1:
            raise self.wrong(f"{name} holds something that is neither false nor true")
        self._verified.add(name)
        return array

    def _record(self, name: str) -> ArrayRecord:
        if name not in self.records:
            raise self.wrong(f"no array '{name}', which meta.json says there is")
        return self.records[name]

    def vertex_data(self, rows: Array | None = None, without: str = "") -> dict[str, Any]:
        """Dense features, labels and masks: all, mapped privately and checked, or of some rows."""
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
        if self.meta.features and not self.meta.sparse_features:
            arrays["x"] = ("<f4", (self.meta.features,))
        if self.meta.labelled:
            record = self._record("y")
            arrays["y"] = labels_in_files(record.dtype, len(record.shape), self.meta.classes)
        if self.meta.splits:
            # With splits there is a training mask at least; one split may be a vector.
            vector = self.meta.splits == 1 and len(self._record(MASKS[0]).shape) == 1
            present = (name for name in MASKS if name == MASKS[0] or name in self.records)
            arrays |= dict.fromkeys(present, ("|b1", () if vector else (self.meta.splits,)))
        data = {}
        for name, (dtype, row) in arrays.items():
            if name != without:
                array = self.array(name, dtype, (self.rows, *row), writable=rows is None)
                data[name] = torch.from_numpy(array if rows is None else array[rows])
        y = data.get("y")
        if y is not None and y.dim() == 2:
            with errors_of(self.folder):
                labels_of_table(y.numpy())
        elif y is not None and bool((wrong := (y < -1) | (y >= self.meta.classes)).any()):
            at = int(wrong.int().argmax())
            row_of_part = at if rows is None else int(rows[at])
            allowed = f"[0, {self.meta.classes}), or -1"
            raise self.wrong(f"y[{row_of_part}] is {int(y[at])}; it must be in {allowed}")
        return data

    def edge_attr(self) -> Tensor | None:
        """Features of the part's entries, mapped privately, if there are any."""
        if "edge_attr" not in self.records:
            return None
        width = self.records["edge_attr"].shape[1:]
        nnz = self._record("indices").shape[0]
        return torch.from_numpy(self.array("edge_attr", "<f4", (nnz, *width), writable=True))

    def vertex_ids(self) -> Tensor:
        if not self.moved:
            return torch.arange(self.first, self.first + self.rows)
        ids = torch.from_numpy(self.array("vertex_ids", "<i8", (self.rows,), writable=True))
        if len(ids) and int(ids.min()) < 0:
            raise self.wrong(f"vertex_ids holds {int(ids.min())}; ids are at least 0")
        return ids

    def pattern(self, prefix: str = "", *, writable: bool = False) -> tuple[Array, Array]:
        """(indptr, indices) of the adjacency (prefix ``""``) or the features (``"x_"``)."""
        columns = self.meta.features if prefix else self.meta.vertices
        dtype = np.dtype(numpy_index_dtype(columns)).str
        indptr = self.array(f"{prefix}indptr", "<i8", (self.rows + 1,), writable=writable)
        entries = self._record(f"{prefix}indices").shape[:1]
        return indptr, self.array(f"{prefix}indices", dtype, entries, writable=writable)

    def csr(self, prefix: str = "", rows: Array | None = None) -> CSR:
        """The adjacency or the features: mapped privately, or the entries of some rows."""
        indptr, indices = self.pattern(prefix, writable=rows is None)
        values = None
        if prefix or self.meta.weighted:
            shape = indices.shape
            values = self.array(f"{prefix}values", "<f4", shape, writable=rows is None)
        if rows is not None:
            begins, ends = indptr[rows], indptr[rows + 1]
            if (begins < 0).any() or (begins > ends).any() or (ends > len(indices)).any():
                raise self.wrong(f"{prefix}indptr must rise from 0 to the {len(indices)} entries")
            indptr = np.concatenate(([0], np.cumsum(ends - begins)))
            place = np.arange(indptr[-1]) + np.repeat(begins - indptr[:-1], ends - begins)
            indices, values = indices[place], None if values is None else values[place]
        columns = self.meta.features if prefix else self.meta.vertices
        with errors_of(f"{self.folder}: {prefix}" if prefix else self.folder):
            return block_of(indptr, indices, (len(indptr) - 1, columns), values)


@dataclass(frozen=True, eq=False)
class MappedPattern:
    """The square pattern of a directory with one part; reading it takes no memory of its own."""

    indptr: Array
    indices: Array

    @property
    def shape(self) -> tuple[int, int]:
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
        self, directory: Path, meta: GraphMeta, digests: Sequence[str], origin: Any = None
    ) -> None:
        self.directory, self.meta, self.made = directory, meta, origin
        self._digests = digests
        if (directory / IDS).exists():
            self.write_ids = partial(shutil.copyfile, directory / IDS)
        self._parts: dict[int, Part] = {}

    @property
    def layout(self) -> RowLayout:
        return RowLayout(np.array(self.meta.offsets))

    def block(self, part: int) -> GraphBlock:
        """All of one part. Arrays are private mappings: written pages never reach the file."""
        opened = self._part(part)
        data = opened.vertex_data()
        if self.meta.sparse_features:
            data["x"] = opened.csr("x_")
        A, attr = opened.csr(), opened.edge_attr()
        return GraphBlock(A, opened.first, opened.vertex_ids(), attr, **data)

    def edge_attr(self) -> Tensor | None:
        """Mapped if there is one part, else in memory."""
        attr = [self._part(part).edge_attr() for part in range(self.meta.parts)]
        there = [table for table in attr if table is not None]
        if there and len(there) < len(attr):
            raise InputError(f"{self.directory}: some parts have edge_attr, others not")
        return torch.cat(there) if there else None

    def adjacency_of(self, part: int) -> CSR:
        """The rows of one part alone, global columns; opens nothing else."""
        return self._part(part).csr()

    def place(self, part: int, name: str) -> tuple[Path, int] | None:
        """The file of an array of a part, and where in it its numbers begin.

        ``None`` if there is no such array. A sample of its numbers is compared with what was
        written.
        """
        opened = self._part(part)
        if name not in opened.records:
            return None
        open_array(opened.path(name), opened.records[name], writable=False)
        return opened.path(name), HEADER_BYTES

    def edge_dim(self, part: int) -> int:
        """Features of an edge of a part; 0 without."""
        record = self._part(part).records.get("edge_attr")
        return 0 if record is None else record.shape[1]

    def vertices_of(self, part: int) -> tuple[Tensor | None, VertexData]:
        """Original ids of a part's vertices, if they have been moved, and labels and masks."""
        opened = self._part(part)
        data = VertexData(**opened.vertex_data(without="x"))
        return opened.vertex_ids() if opened.moved else None, data

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
        return MappedPattern(indptr, indices)

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
        by_part, order = self._by_part(ids)
        A = stack_rows([part.csr(rows=rows) for part, rows in by_part])
        return A if order is None else select_rows(A, order)

    def rows(self, ids: Tensor | slice) -> VertexData:
        """Features, labels and masks of some vertices; only they are read."""
        chosen, order = self._by_part(ids)
        by_part = [part.vertex_data(rows) for part, rows in chosen]
        if self.meta.sparse_features:
            for data, (part, rows) in zip(by_part, chosen, strict=True):
                data["x"] = part.csr("x_", rows)
        stacked = {name: stack_rows([data[name] for data in by_part]) for name in by_part[0]}
        if order is not None:
            stacked = {name: select_rows(array, order) for name, array in stacked.items()}
        return VertexData(**stacked)

    def graph(self) -> Graph:
        """All of it: mapped if there is one part, else put together in memory."""
        if self.meta.parts > 1:
            return super().graph()
        block = self.block(0)
        ids = block.vertex_ids if self._part(0).moved else None
        data, attr = block.take(slice(None)), block.edge_attr
        return Graph(self.meta.name, block.adjacency, self.meta.directed, ids, attr, **data)

    @property
    def vertex_ids(self) -> Tensor | None:
        """The place of each vertex in its source, int64 [n]; ``None`` if none has been moved."""
        parts = [self._part(part) for part in range(self.meta.parts)]
        if not any(part.moved for part in parts):
            return None
        return torch.cat([part.vertex_ids() for part in parts])

    def _by_part(self, ids: Tensor | slice) -> tuple[list[tuple[Part, Array]], Tensor | None]:
        """(part, its own rows) in rising order, and what brings them into the order of `ids`."""
        vertices = ids_of(ids, self.meta.vertices)
        rows, order = vertices.numpy(), None
        if bool((vertices.diff() < 0).any()):
            ascending, places = vertices.sort()
            rows, order = ascending.numpy(), places.argsort()
        if len(rows) and not 0 <= rows[0] <= rows[-1] < self.meta.vertices:
            raise InputError(f"vertices must be in [0, {self.meta.vertices})")
        offsets = np.array(self.meta.offsets)
        bounds = np.searchsorted(rows, offsets).tolist()
        by_part = [
            (self._part(part), rows[low:high] - offsets[part])
            for part, (low, high) in enumerate(pairwise(bounds))
            if low < high
        ]
        return by_part or [(self._part(0), rows)], order

    def _part(self, part: int) -> Part:
        if not 0 <= part < self.meta.parts:
            raise InputError(
                f"{self.directory}: no part {part}; it has parts 0 to {self.meta.parts - 1}"
            )
        if part not in self._parts:
            folder = self.directory / part_folder(part)
            self._parts[part] = Part(folder, part, self.meta, self._digests[part])
        return self._parts[part]


@on_cpu
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
    text = _read_description(file, _LONGEST_META, "graph").decode("utf-8", "replace")
    with errors_of(file):
        record = json_object(text)
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
        meta = GraphMeta.from_record(record)
        digests = record.get("digests")
        if not isinstance(digests, list) or len(digests) != meta.parts:
            raise InputError(f"not the description of a graph: 'digests' must be {meta.parts}")
        if record.get("digest") != fingerprint(record):
            raise InputError("damaged: not what was written")
    return ShardDirectory(path, meta, digests, record.get("made"))


def is_graph_directory(path: AnyPath) -> bool:
    """True if a path looks like a directory that `open_shards` opens."""
    return os.path.exists(Path(path) / META)


def part_folder(part: int) -> str:
    return f"part-{part:05d}"


def fingerprint(record: dict[str, Any]) -> str:
    """The digest of all that a description says, but for the digest itself."""
    rest = {name: value for name, value in record.items() if name != "digest"}
    try:
        return digest(json.dumps(rest, sort_keys=True).encode())
    except RecursionError:
        return ""


@on_cpu
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

    Besides the graph, if it is in memory, this takes memory for a piece of a part and a few numbers
    a vertex. A source that hands out rows (a graph directory, an .npz that is not compressed) is
    never in memory as a whole. The directory, which must not exist, appears whole or not at all.

    Parameters
    ----------
    labels : int [n] in [0, parts), optional
        By default blocks of equal size. Vertices of a part keep their order; parts may be empty.
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
    position = None
    if labels is not None:
        position = torch.from_numpy(inverse_permutation(order.numpy()))
    original = source.vertex_ids
    entries = max(source.meta.edges // max(source.meta.vertices, 1), 1)
    step = max(1, min(source.piece_rows, _PIECE_ENTRIES // entries))
    offsets = tuple(layout.offsets.tolist())
    splits = source.meta.splits if split is None else min(source.meta.splits, 1)
    attr, numbered = source.edge_attr(), None
    if attr is not None:  # entries with their numbers, exact up to 2⁵³
        numbered = source.structure()
        numbered = numbered.with_values(torch.arange(numbered.nnz, dtype=torch.float64))
    with directory_writer(directory) as writer:
        for part in range(parts):
            first, last = layout.range(part)
            for begin in range(first, max(last, first + 1), step):
                ids = order[begin : min(begin + step, last)]
                rows = slice(begin, begin + len(ids)) if position is None else ids
                A, data = source.adjacency(rows), source.rows(rows)
                stood = None if original is None else original[ids]
                if position is not None:
                    A, stood = rename_columns(A, position), ids if stood is None else stood
                if split is not None:
                    data = data.select_split(split)
                writer.append_rows(A, stood, data)
                if attr is not None and numbered is not None:
                    some = select_rows(numbered, rows)
                    some = some if position is None else rename_columns(some, position)
                    assert some.values is not None
                    writer.append("edge_attr", attr[some.values.long()].numpy())
            writer.end_part()
            if progress is not None:
                progress("writing parts", part + 1, parts)
        if source.write_ids is not None:
            source.write_ids(writer.folder / IDS)
        writer.finish(replace(source.meta, offsets=offsets, splits=splits))


def check_parts(parts: int, vertices: int, what: str = "parts") -> None:
    """Refuse a number of parts so large that some would be empty."""
    if not 1 <= parts <= max(vertices, 1):
        raise InputError(
            f"{what} {parts}: must be at least 1, and at most the {max(vertices, 1)} that "
            f"{vertices} vertices can use"
        )


def partition_order(
    labels: npt.ArrayLike | None, vertices: int, parts: int
) -> tuple[RowLayout, Tensor]:
    """The row layout of a partition, and the order that sorts vertices by part (stable)."""
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


def write_part(folder: Path, part: int, records: Mapping[str, ArrayRecord]) -> str:
    """Write the description of a part; its digest."""
    arrays = {name: asdict(record) for name, record in sorted(records.items())}
    text = (json.dumps({"part": part, "arrays": arrays}, indent=1) + "\n").encode()
    (folder / PART).write_bytes(text)
    return digest(text)


@contextmanager
def directory_writer(directory: AnyPath) -> Iterator[DirectoryWriter]:
    """Write a graph directory, which appears when the block ends well."""
    with atomic_directory(directory) as folder:
        writer = DirectoryWriter(folder)
        try:
            yield writer
        finally:
            for array in writer.arrays.values():
                array.close()


class DirectoryWriter:
    """Writes parts one after another, their arrays row by row, and at last what describes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrays: dict[str, ArrayWriter] = {}  # of the part that is being written
        self._entries: dict[str, int] = {}
        self._digests: list[str] = []

    def append(self, name: str, array: Array) -> None:
        """Add rows to an array; the first ones say what it holds."""
        if name not in self.arrays:
            folder = self.folder / part_folder(len(self._digests))
            folder.mkdir(exist_ok=True)
            self.arrays[name] = ArrayWriter(folder / f"{name}.npy", array)
        self.arrays[name].append(array)

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

    def append_rows(self, A: CSR, ids: Tensor | None, data: VertexData) -> None:
        """Add rows of the adjacency, the original ids if vertices have moved, and their data."""
        for prefix, matrix in (("", A), ("x_", data.x)):
            if isinstance(matrix, CSR):
                self.append_lengths(matrix.row_lengths.numpy(), prefix)
                self.append(f"{prefix}indices", matrix.indices.numpy())
                if matrix.values is not None:
                    self.append(f"{prefix}values", matrix.values.numpy())
        if ids is not None:
            self.append("vertex_ids", ids.numpy())
        for name in ("x", "y", *(MASKS if data.splits else ())):
            array = getattr(data, name)
            if isinstance(array, Tensor):
                self.append(name, array.numpy())

    def drop(self, name: str) -> None:
        dropped = self.arrays.pop(name)
        dropped.close()
        dropped.path.unlink()

    def end_part(self) -> None:
        """Complete the part; what follows belongs to the next one."""
        part = len(self._digests)
        records = {name: array.finish() for name, array in self.arrays.items()}
        self._digests.append(write_part(self.folder / part_folder(part), part, records))
        self.arrays.clear()
        self._entries.clear()

    def finish(self, meta: GraphMeta, origin: dict[str, Any] | None = None) -> None:
        """Describe the parts, and how the graph was generated, if it was."""
        record: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(meta)}
        record |= {"made": origin, "digests": self._digests}
        record["digest"] = fingerprint(record)
        (self.folder / META).write_text(json.dumps(record, indent=1) + "\n")
