"""Graphs in .npz files: read whole, or a few rows at a time."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from torch import Tensor

from spgnn.data.arrays import Archive, Array, NpyHeader
from spgnn.data.graph import MASKS, WEIGHT, Graph, VertexData, fits_float32, labels_of_table, narrow
from spgnn.data.normalise import is_bag_of_words
from spgnn.data.source import GraphSource, describe, ids_of
from spgnn.data.structure import block_of, select_rows, slice_rows, stack_rows, without_ones
from spgnn.errors import InputError
from spgnn.files import atomic_file, errors_of, name_in, reading
from spgnn.memory import check_memory
from spgnn.pattern import numpy_index_dtype
from spgnn.sparse import CSR, EXACT, exact_in_float32, take_rows

LABEL_GAPS = 2  # classes per label in use, at most
# Formats of matrices, and their arrays besides data and shape.
_FORMATS = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("row", "col"),
    "dia": ("offsets",),
}
_OF_MATRIX = {"data", "shape", "format", "_is_array"}.union(*_FORMATS.values())
_NO_WEIGHTS = ("edge_weight", "edge_weights", "weight", "weights", "values")
_LARGEST = 2**62


def read_npz(path: str | os.PathLike[str]) -> Graph:
    """Read a graph from an .npz file, as docs/data.md describes it."""
    path = Path(path)
    with Archive(path) as archive:
        arrays = GraphArrays(archive)
        arrays.warn_of_unread()
        adjacency = arrays.adjacency()
        x: Tensor | CSR | None = None
        if "x" in archive:
            array = archive.array("x")
            arrays.check_shape("x", array, (arrays.vertices, None))
            x = torch.from_numpy(arrays.float32("x", array))
        elif (shape := arrays.shape_of("x")) is not None:
            x = arrays.csr("x_", shape)
        data = {"y": arrays.labels(), **arrays.masks()}
        graph = _graph_of(path, adjacency, arrays.directed(), x=x, **data)
        return replace(graph, edge_attr=arrays.edge_attr(adjacency))


def _graph_of(path: Path, adjacency: CSR, directed: bool, **data: Any) -> Graph:
    with errors_of(path):
        return Graph(name_in(path), adjacency, directed, **data)


def write_npz(graph: Graph, path: str | os.PathLike[str], *, compressed: bool = True) -> None:
    """Write a graph so that `read_npz` gives it back; the file appears whole or not at all."""
    A, x = graph.adjacency, graph.x
    arrays: dict[str, Any] = {
        "indptr": A.indptr,
        "indices": A.indices,
        "shape": np.array(A.shape, dtype=np.int64),
        "directed": np.array(graph.directed),
        "data": A.values,
        "edge_attr": graph.edge_attr,
    }
    if isinstance(x, CSR):
        arrays |= {"x_indptr": x.indptr, "x_indices": x.indices, "x_data": x.values}
        arrays["x_shape"] = np.array(x.shape, dtype=np.int64)
    else:
        arrays["x"] = x
    if graph.y is not None and graph.y.dim() == 1:
        arrays["classes"] = np.array(graph.classes)
    arrays |= {name: getattr(graph, name) for name in ("y", *MASKS)}
    arrays = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    with atomic_file(path) as file:
        (np.savez_compressed if compressed else np.savez)(file, **arrays)


class GraphArrays:
    """The arrays of one file as parts of a graph; what is wrong is named by array and position."""

    def __init__(self, archive: Archive) -> None:
        self.archive, self.path = archive, archive.path
        if "indptr" not in archive and "format" not in archive:
            names = ", ".join(archive.names[:8]) or "none"
            raise InputError(f"{self.path}: not a graph: no array 'indptr' (arrays found: {names})")
        for name in _NO_WEIGHTS:
            if name in archive and "data" not in archive:
                self.refuse(name, "is not read: weights are the array 'data'")
        rows, columns = self.shape("shape")
        if rows != columns:
            raise InputError(
                f"{self.path}: shape is {rows} × {columns}; a graph needs as many rows as columns"
            )
        self.vertices = rows
        matrices = {f"{prefix}{name}" for prefix in ("", "x_", "y_") for name in _OF_MATRIX}
        masks = {f"{name}{s}" for name in MASKS for s in ("", "s")}
        read = {"directed", "x", "y", "classes", "edge_attr"} | matrices | masks
        self._unread = [name for name in archive.names if name not in read]

    def warn_of_unread(self) -> None:
        """Log that the file holds what looks like attributes of edges, if it does."""
        if edges := [name for name in self._unread if name.startswith("edge")]:
            message = "%s: not read: %s; of edges, weights are 'data' and features 'edge_attr'"
            logging.getLogger(__name__).warning(message, self.path, ", ".join(edges))

    def decided(self) -> dict[str, str]:
        """Reasons for direction and weights."""
        direction = "" if "directed" in self.archive else "there is no "
        weights = "array 'data', unless all are 1" if "data" in self.archive else "no array 'data'"
        reasons = {"direction by": f"{direction}array 'directed'", "weights by": weights}
        if self._unread:
            reasons["not read"] = ", ".join(self._unread)
        return reasons

    def adjacency(self) -> CSR:
        """The canonical matrix; weights that are all 1 are dropped."""
        return without_ones(self.csr("", (self.vertices, self.vertices)))

    def edge_attr(self, adjacency: CSR) -> Tensor | None:
        """Features of edges, float32 [nnz, k] in the order of the adjacency's entries."""
        if "edge_attr" not in self.archive:
            return None
        # Entries that are not canonical have been sorted and summed; features cannot be.
        indices = None if self.converts("") else self.integers("indices")
        if indices is None or not np.array_equal(indices, adjacency.indices.numpy()):
            self.refuse("edge_attr", "needs a CSR whose columns rise in each row, none twice")
        array = self.archive.array("edge_attr")
        shape = (adjacency.nnz,) if array.ndim == 1 else (adjacency.nnz, None)
        self.check_shape("edge_attr", array, shape)
        attr = torch.from_numpy(self.float32("edge_attr", array))
        return attr[:, None] if attr.dim() == 1 else attr

    def directed(self) -> bool:
        """As the file says; true if it does not say."""
        if "directed" not in self.archive:
            return True
        array = self.archive.array("directed")
        if array.size != 1 or array.dtype.kind == "f" or not 0 <= int(array.reshape(())) <= 1:
            self.refuse("directed", f"must be one bool, got {_described(array)}")
        return bool(array.reshape(()))

    def integers(self, name: str, length: int | None = None, array: Array | None = None) -> Array:
        """A vector of integers of any width; the array may have been read already."""
        array = self.archive.array(name) if array is None else array
        if array.dtype.kind not in "iu" or array.ndim != 1:
            self.refuse(name, f"must be a vector of integers, got {_described(array)}")
        if length is not None and len(array) != length:
            self.refuse(name, f"must have length {length}, got {len(array)}")
        return array

    def check_shape(
        self, name: str, array: Array | NpyHeader, shape: tuple[int | None, ...]
    ) -> None:
        """Refuse an array of another shape (``None``: any size), or of no numbers."""
        pairs = zip(shape, array.shape, strict=False)
        fits = len(shape) == len(array.shape) and all(w in (None, size) for w, size in pairs)
        if array.dtype.kind not in "fiub" or not fits:
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            self.refuse(name, f"must be float32 [{sizes}], got {_described(array)}")

    def float32(self, name: str, array: Array, *, weights: bool = False, first: int = 0) -> Array:
        """Some rows of an array, from `first`, in float32."""
        if array.dtype.kind == "f":
            self.check(name, array, np.isfinite(array), "must be a finite number", first)
        with np.errstate(over="ignore", under="ignore"):
            single = np.ascontiguousarray(array, dtype=np.float32)
        if array.dtype.kind != "f":
            self.check(name, array, exact_in_float32(array), f"must be {EXACT}", first)
        elif array.dtype.itemsize > single.dtype.itemsize:
            fits = fits_float32(array) if weights else np.isfinite(single)
            self.check(name, array, fits, f"must be {WEIGHT}", first)
        return single

    def shape(self, name: str) -> tuple[int, int]:
        rows, cols = (int(v) for v in self.integers(name, 2))
        if rows < 0 or cols < 0:
            self.refuse(name, f"must not be negative, got {rows} × {cols}")
        return rows, cols

    def shape_of(self, matrix: str) -> tuple[int, int] | None:
        """The shape of a sparse matrix of vertices, if there is one of that name."""
        if f"{matrix}_indptr" not in self.archive and f"{matrix}_format" not in self.archive:
            return None
        name = f"{matrix}_shape"
        shape = self.shape(name)
        if shape[0] != self.vertices:
            message = f"says {shape[0]} rows, but the graph has {self.vertices} vertices"
            self.refuse(name, message)
        if f"{matrix}_data" not in self.archive:
            raise InputError(f"{self.path}: no array '{matrix}_data'")
        return shape

    def row_ends(self, name: str, rows: int, entries: int) -> Array:
        """The row offsets of a matrix with that many entries, int64 [rows + 1]."""
        indptr: Array = self.integers(name, rows + 1).astype(np.int64, copy=False)
        if indptr[0] != 0:
            self.refuse(name, f"must start with 0, got {indptr[0]}")
        rises = np.concatenate(([True], indptr[1:] >= indptr[:-1]))
        self.check(name, indptr, rises, "must not be less than the one before it")
        if entries != indptr[-1]:
            of = name.replace("indptr", "indices")
            self.refuse(name, f"ends with {indptr[-1]}, but '{of}' has {entries}")
        return indptr

    def columns(self, name: str, indices: Array, columns: int, first: int = 0) -> Array:
        """Column numbers in [0, columns), from entry `first`, in the dtype of a CSR block."""
        inside = (indices >= 0) & (indices < columns)
        self.check(name, indices, inside, f"must be in [0, {columns})", first)
        narrowed: Array = indices.astype(numpy_index_dtype(columns), copy=False)
        return narrowed

    def csr(self, prefix: str, shape: tuple[int, int]) -> CSR:
        """The canonical block of the arrays whose names begin with a prefix."""
        name, data, whole = f"{prefix}data", None, False
        if self.converts(prefix):
            return self._converted(prefix, shape)
        indices = self.integers(f"{prefix}indices")
        indptr = self.row_ends(f"{prefix}indptr", shape[0], len(indices))
        indices = self.columns(f"{prefix}indices", indices, shape[1])
        if name in self.archive:
            array = self.archive.array(name)
            self.check_shape(name, array, (len(indices),))
            whole = array.dtype.kind != "f"
            data = self.float32(name, array, weights=not prefix)
        owner = f"{self.path}: '{name}'"
        return canonical(owner, indptr, indices, data, shape, whole=whole)

    def format(self, prefix: str) -> str:
        """The format of a matrix, as SciPy names it."""
        name = f"{prefix}format"
        kind = self.archive.word(name) if name in self.archive else "csr"
        if kind not in _FORMATS:
            self.refuse(name, f"is '{kind}'; known are {', '.join(_FORMATS)}")
        return kind

    def converts(self, prefix: str) -> bool:
        """True if a matrix is no CSR of numbers: of another format, or bool."""
        if self.format(prefix) != "csr":
            return True
        if f"{prefix}data" not in self.archive:
            return False
        with self.archive.stream(f"{prefix}data") as stream:
            return stream.header.dtype.kind == "b"

    def _converted(self, prefix: str, shape: tuple[int, int]) -> CSR:
        """A matrix in another format than CSR, or of booleans: False is no entry."""
        kind, name = self.format(prefix), f"{prefix}data"
        data = self.archive.array(name)
        if data.dtype.kind == "f":
            self.check(name, data, np.isfinite(data), "must be a finite number")
            data = data.astype(np.float64)
        where = [f"{prefix}{each}" for each in _FORMATS[kind]]
        arrays = [self.integers(each) for each in where]
        for each, array in zip(where, arrays, strict=True):
            self.check(each, array, array <= _LARGEST, f"must be at most {_LARGEST}")
        dimensions = {"bsr": 3, "dia": 2}.get(kind, 1)
        if data.ndim != dimensions or (kind == "bsr" and 0 in data.shape[1:]):
            self.refuse(name, f"must have {dimensions} dimensions, got {_described(data)}")
        signed = [array.astype(np.int64) for array in arrays]
        pair = (data, tuple(signed)) if kind == "coo" else (data, *signed)
        with reading(self.path, f"arrays of format '{kind}' do not fit together"):
            matrix = getattr(scipy.sparse, f"{kind}_array")(pair, shape=shape)
            if hasattr(matrix, "check_format"):
                matrix.check_format(full_check=True)
        owner = f"{self.path}: matrix '{prefix or 'A'}' in format {kind}"
        with errors_of(owner):
            block = CSR.from_scipy(matrix)
        if prefix and block.values is None:
            block = block.with_values(torch.ones(block.nnz))
        return narrow(block, owner)

    def labels(self) -> Tensor | None:
        """Classes, each in the range that the file states or that is plausible; or other labels."""
        if "y" not in self.archive:
            shape = self.shape_of("y")
            if shape is None:
                return None
            # Several labels a vertex: those that are not stored are 0.
            check_memory(f"{self.path}: labels [{shape[0]}, {shape[1]}]", shape[0] * shape[1])
            table = self.csr("y_", shape).to_scipy().toarray().astype(np.int64)
            return self._table_of_labels(table)
        table = self.archive.array("y")
        if table.shape[1:] == (1,) and table.dtype.kind in "iu" and table.dtype != np.int8:
            remedy = (
                f"give classes as a vector [{len(table)}], y[:, 0], or a single label of 0 and 1"
            )
            self.refuse("y", f"is {_described(table)}: {remedy} as int8")
        if table.dtype.kind == "f" or table.ndim == 2:
            return self._table_of_labels(table)
        y = self.integers("y", self.vertices, table)
        if "classes" in self.archive:
            stated = self.archive.array("classes")
            if stated.size != 1 or stated.dtype.kind not in "iu":
                self.refuse("classes", f"must be one integer, got {_described(stated)}")
            classes = int(stated.reshape(()))
            rule = f"must be a class in [0, {classes}), or -1 where it is not known"
        else:
            # A label far above all others is a damaged one, and would make the last layer huge.
            occurring = len(np.unique(y[y >= 0]))
            classes = LABEL_GAPS * occurring + 8
            rule = (
                f"must be a class, or -1 where it is not known; with {occurring} labels in use "
                f"that is below {classes}, unless an array 'classes' says how many there are"
            )
        self.check("y", y, (y >= -1) & (y < classes), rule)
        return torch.from_numpy(y.astype(np.int64, copy=False))

    def _table_of_labels(self, table: Array) -> Tensor:
        if table.dtype.kind not in "fiub" or table.ndim not in (1, 2):
            kinds = "a vector of integers, a table of 0 and 1, or numbers"
            self.refuse("y", f"must be {kinds}, got {_described(table)}")
        if len(table) != self.vertices:
            self.refuse("y", f"must have length {self.vertices}, got {len(table)}")
        with errors_of(self.path):
            return torch.from_numpy(labels_of_table(table))

    def masks(self) -> dict[str, Tensor]:
        masks: dict[str, Tensor] = {}
        for name in MASKS:
            stored = f"{name}s" if f"{name}s" in self.archive else name
            if stored not in self.archive:
                continue
            mask = self.archive.array(stored)
            if mask.dtype.kind != "b":
                self.refuse(name, f"must be bool, got {_described(mask)}")
            mask = np.ascontiguousarray(mask if stored == name else mask.T)
            bits = mask.view(np.uint8)
            self.check(name, bits, bits <= 1, "must be a bool, 0 or 1")
            masks[name] = torch.from_numpy(mask)
        return masks

    def check(self, name: str, array: Array, good: Array, rule: str, first: int = 0) -> None:
        """Refuse the first element that is not good, by its position; rows count from `first`."""
        if not good.all():
            place = np.unravel_index(int(np.argmin(good)), good.shape)
            row, *rest = (int(i) for i in place)
            where = ", ".join(map(str, (row + first, *rest)))
            raise InputError(f"{self.path}: {name}[{where}] is {array[place]}; it {rule}")

    def refuse(self, name: str, rule: str) -> None:
        raise InputError(f"{self.path}: array '{name}' {rule}")


def canonical(
    owner: str,
    indptr: Array,
    indices: Array,
    data: Array | None,
    shape: tuple[int, int],
    *,
    whole: bool = False,
) -> CSR:
    """The block of checked arrays: columns of a row sorted, entries named twice summed."""
    falls = np.flatnonzero(indices[1:] <= indices[:-1]) + 1
    if (indptr[np.searchsorted(indptr, falls)] == falls).all():  # at the beginnings of rows alone
        return block_of(indptr, indices, shape, data)
    # A sum that float32 cannot hold must be seen.
    kind = np.bool_ if data is None else np.int64 if whole else np.float64
    entries = np.ones(len(indices), np.bool_) if data is None else data.astype(kind)
    with errors_of(owner):
        block = CSR.from_scipy(scipy.sparse.csr_array((entries, indices, indptr), shape=shape))
    return narrow(block, owner)


def _described(array: Array | NpyHeader) -> str:
    return f"{array.dtype} {list(array.shape)}"


class NpzSource(GraphSource):
    """An .npz file, opened; labels, masks and row offsets are in memory, features are not."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        with Archive(self._path) as archive:
            arrays = GraphArrays(archive)
            arrays.warn_of_unread()
            adjacency, directed = arrays.adjacency(), arrays.directed()
            self.decided = arrays.decided()
            self._features: _DenseFeatures | _SparseFeatures | None = None
            if "x" in archive:
                self._features = _DenseFeatures(arrays)
            elif (shape := arrays.shape_of("x")) is not None:
                self._features = _SparseFeatures(arrays, shape)
            data = {"y": arrays.labels(), **arrays.masks()}
            self._edge_attr = arrays.edge_attr(adjacency)
        graph = _graph_of(self._path, adjacency, directed, **data)
        self._vertices = VertexData(**data)
        # Handed to whoever asks for all of it, who can then free it; read again for others.
        self._adjacency: CSR | None = graph.adjacency
        self.meta = describe(graph)
        if self._features is not None:
            sparse = isinstance(self._features, _SparseFeatures)
            self.meta = replace(self.meta, features=self._features.width, sparse_features=sparse)
            words = is_bag_of_words(x for _, x in self._features.pieces(self.piece_rows))
            self.meta = replace(self.meta, bag_of_words=words)

    @property
    def random_access(self) -> bool:
        """True if features are mapped, or there are none."""
        return self._features is None or self._features.mapped

    def structure(self) -> CSR:
        """The adjacency; a caller that drops it frees it."""
        A = self._loaded()
        self._adjacency = None
        return A

    def edge_attr(self) -> Tensor | None:
        return self._edge_attr

    def adjacency(self, ids: Tensor | slice) -> CSR:
        """Some rows of the adjacency, which from now on stays in memory."""
        return select_rows(self._loaded(), ids)

    def _loaded(self) -> CSR:
        if self._adjacency is None:
            with Archive(self._path) as archive:
                self._adjacency = GraphArrays(archive).adjacency()
        return self._adjacency

    def rows(self, ids: Tensor | slice) -> VertexData:
        """Features, labels and masks of some vertices; compressed features are read up to them."""
        data = self._vertices.take(ids)
        features = self._features
        if features is not None:
            vertices = ids_of(ids, self.meta.vertices)
            if features.mapped:
                data["x"] = features.take(vertices.numpy())
            else:
                ascending, order = vertices.sort()
                picked: list[Any] = []
                pieces: Iterator[tuple[int, Any]] = features.pieces(self.piece_rows)
                for first, piece in pieces:
                    bounds = torch.tensor([first, first + piece.shape[0]])
                    low, high = torch.searchsorted(ascending, bounds).tolist()
                    if low < high or not picked:
                        picked.append(select_rows(piece, ascending[low:high] - first))
                    if high == len(vertices):
                        break
                data["x"] = select_rows(stack_rows(picked), order.argsort())
        return VertexData(**data)

    def pieces(self, rows: int | None = None) -> Iterator[tuple[int, VertexData]]:
        """All vertices once, a few at a time, in one reading of the file."""
        rows = rows or self.piece_rows
        if self._features is None:
            yield from super().pieces(rows)
            return
        for first, x in self._features.pieces(rows):
            data = self._vertices.take(slice(first, first + x.shape[0]))
            yield first, VertexData(**data | {"x": x})


class _DenseFeatures:
    """Rows of the array x of a file; mapped ones can be taken in any order."""

    def __init__(self, arrays: GraphArrays) -> None:
        self._path, self._rows = arrays.path, arrays.vertices
        header, self._array = arrays.archive.mapped("x")
        arrays.check_shape("x", header, (arrays.vertices, None))
        self.width = header.shape[1]
        self._columns_first = header.fortran_order  # rows do not lie together
        if self._array is None and self._columns_first:
            self._array = arrays.archive.array("x")
        self.mapped = self._array is not None

    def pieces(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        with Archive(self._path) as archive, archive.stream("x") as stream:
            arrays = GraphArrays(archive)
            for first in range(0, max(self._rows, 1), rows):
                last = min(first + rows, self._rows)
                if self._columns_first and self._array is not None:
                    piece = self._array[first:last]
                else:
                    piece = stream.take((last - first) * self.width)
                    piece = piece.reshape(last - first, self.width)
                yield first, torch.from_numpy(arrays.float32("x", piece, first=first))

    def take(self, ids: Array) -> Tensor:
        assert self._array is not None
        return torch.from_numpy(np.ascontiguousarray(self._array[ids], dtype=np.float32))


class _SparseFeatures:
    """The same of the arrays x_indptr, x_indices and x_data."""

    def __init__(self, arrays: GraphArrays, shape: tuple[int, int]) -> None:
        self._path, (self._rows, self.width) = arrays.path, shape
        self._whole: CSR | None = None
        if arrays.converts("x_"):
            self._whole, self.mapped = arrays.csr("x_", shape), True
            return
        indices, self._indices = arrays.archive.mapped("x_indices")
        if indices.dtype.kind not in "iu" or len(indices.shape) != 1:
            arrays.refuse("x_indices", f"must be a vector of integers, got {_described(indices)}")
        data, self._data = arrays.archive.mapped("x_data")
        arrays.check_shape("x_data", data, indices.shape)
        self._integers = data.dtype.kind != "f"
        self._indptr = arrays.row_ends("x_indptr", self._rows, indices.shape[0])
        self.mapped = self._indices is not None and self._data is not None

    def pieces(self, rows: int) -> Iterator[tuple[int, CSR]]:
        starts = range(0, max(self._rows, 1), rows)
        if self._whole is not None:
            for first in starts:
                yield first, slice_rows(self._whole, slice(first, first + rows))
            return
        with (
            Archive(self._path) as archive,
            archive.stream("x_indices") as indices,
            archive.stream("x_data") as data,
        ):
            arrays = GraphArrays(archive)
            for first in starts:
                ends = self._indptr[first : min(first + rows, self._rows) + 1]
                begin, count = int(ends[0]), int(ends[-1] - ends[0])
                columns = arrays.columns("x_indices", indices.take(count), self.width, begin)
                values = arrays.float32("x_data", data.take(count), first=begin)
                yield first, self._block(ends - begin, columns, values)

    def take(self, ids: Array) -> CSR:
        if self._whole is not None:
            return take_rows(self._whole, torch.from_numpy(ids))
        assert self._indices is not None
        assert self._data is not None
        lengths = self._indptr[ids + 1] - self._indptr[ids]
        ends = np.concatenate(([0], np.cumsum(lengths)))
        place = np.arange(ends[-1]) + np.repeat(self._indptr[ids] - ends[:-1], lengths)
        columns = self._indices[place].astype(numpy_index_dtype(self.width))
        return self._block(ends, columns, self._data[place].astype(np.float32))

    def _block(self, ends: Array, columns: Array, values: Array) -> CSR:
        owner, shape = f"{self._path}: 'x_data'", (len(ends) - 1, self.width)
        return canonical(owner, ends, columns, values, shape, whole=self._integers)
