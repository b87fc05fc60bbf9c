"""The .npz format: a graph as named NumPy arrays in one file, read without pickle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.data.formats.archive import Archive, Array
from spgnn.data.formats.reading import graph_of
from spgnn.data.graph import MASKS, Graph
from spgnn.data.labels import labels_of_table
from spgnn.data.narrow import WEIGHT, fits_float32, narrow
from spgnn.data.structure import block_of
from spgnn.errors import InputError
from spgnn.files import written_aside
from spgnn.pattern import numpy_index_dtype
from spgnn.sparse import CSR

LABEL_GAPS = 2  # classes per label in use, at most


def read_npz(path: str | os.PathLike[str]) -> Graph:
    """Read a graph from an .npz file.

    Arrays: ``indptr``, ``indices``, ``shape``; optionally ``data``, ``directed``, ``x`` or
    ``x_indptr, x_indices, x_data, x_shape``, ``y``, ``train_mask, val_mask, test_mask`` [n] or
    [n, splits], or ``train_masks, …`` [splits, n], which then hold all splits; ``classes``, a
    bound on ``y``. Others are ignored. A file that does not say ``directed`` counts as directed.
    Rows that are not canonical are made so: columns sorted, duplicate weights summed.

    Raises
    ------
    InputError
        Naming the file, the array and the position of what is wrong.
    """
    path = Path(path)
    with Archive(path) as archive:
        arrays = GraphArrays(archive)
        rows = arrays.vertices
        adjacency = arrays.adjacency()
        x: Tensor | CSR | None = None
        if "x" in arrays.archive:
            x = torch.from_numpy(arrays.reals("x", (rows, None)))
        elif arrays.sparse_features is not None:
            x = arrays.csr("x_", arrays.sparse_features)
        y, masks = arrays.labels(), arrays.masks()
        directed = arrays.directed()
    return graph_of(path, adjacency, directed, x=x, y=y, **masks)


def write_npz(graph: Graph, path: str | os.PathLike[str], *, compressed: bool = True) -> None:
    """Write a graph so that `read_npz` gives it back; written aside, then renamed.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    A = graph.adjacency
    arrays: dict[str, Array] = {
        "indptr": A.indptr.numpy(),
        "indices": A.indices.numpy(),
        "shape": np.array(A.shape, dtype=np.int64),
        "directed": np.array(graph.directed),
    }
    if A.values is not None:
        arrays["data"] = A.values.numpy()
    if isinstance(graph.x, CSR):
        assert graph.x.values is not None
        arrays["x_indptr"], arrays["x_indices"] = graph.x.indptr.numpy(), graph.x.indices.numpy()
        arrays["x_data"] = graph.x.values.numpy()
        arrays["x_shape"] = np.array(graph.x.shape, dtype=np.int64)
    elif graph.x is not None:
        arrays["x"] = graph.x.numpy()
    if graph.y is not None and graph.y.dim() == 1:
        arrays["classes"] = np.array(graph.classes)
    for name in ("y", *MASKS):
        array = getattr(graph, name)
        if array is not None:
            arrays[name] = array.numpy()
    with written_aside(path) as file:
        (np.savez_compressed if compressed else np.savez)(file, **arrays)  # type: ignore[arg-type]


class GraphArrays:
    """The arrays of one file as parts of a graph; what is wrong is named by array and position.

    Raises
    ------
    InputError
        On opening, if the file holds no graph.
    """

    def __init__(self, archive: Archive) -> None:
        self.archive, self.path = archive, archive.path
        if "indptr" not in archive:
            found = ", ".join(archive.names[:8]) or "none"
            raise InputError(f"{self.path}: not a graph: no array 'indptr' (arrays found: {found})")
        rows, columns = self.shape("shape")
        if rows != columns:
            raise InputError(
                f"{self.path}: shape is {rows} × {columns}; a graph needs as many rows as columns"
            )
        self.vertices = rows

    def adjacency(self) -> CSR:
        """The canonical matrix; weights that are all 1 are dropped."""
        return self.csr("", (self.vertices, self.vertices))

    def directed(self) -> bool:
        """What the file says, or that it does not say."""
        if "directed" not in self.archive:
            return True
        array = self.archive.array("directed")
        if array.size != 1:
            self.refuse("directed", f"must be one bool, got {_describe(array)}")
        return bool(array.reshape(()))

    def integers(self, name: str, length: int | None = None) -> Array:
        """A vector of integers of any width."""
        array = self.archive.array(name)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            self.refuse(name, f"must be a vector of integers, got {_describe(array)}")
        if length is not None and len(array) != length:
            self.refuse(name, f"must have length {length}, got {len(array)}")
        return array

    def reals(self, name: str, shape: tuple[int | None, ...], *, weights: bool = False) -> Array:
        """A float32 array without NaN or infinity."""
        array = self.archive.array(name)
        self.check_shape(name, array.dtype, array.shape, shape)
        return self.float32(name, array, weights=weights)

    def check_shape(
        self,
        name: str,
        dtype: np.dtype[Any],
        got: tuple[int, ...],
        shape: tuple[int | None, ...],
    ) -> None:
        """Refuse an array of another shape (``None``: any size), or of no numbers."""
        fits = len(got) == len(shape) and all(
            want in (None, size) for want, size in zip(shape, got, strict=True)
        )
        if dtype.kind not in "fiub" or not fits:
            wanted = ", ".join("any" if v is None else str(v) for v in shape)
            self.refuse(name, f"must be float32 [{wanted}], got {dtype} {list(got)}")

    def float32(self, name: str, array: Array, *, weights: bool = False, first: int = 0) -> Array:
        """Some rows of an array, from `first`, in float32; finite, and weights not rounded to 0."""
        if array.dtype.kind == "f":
            self.check(name, array, np.isfinite(array), "must be a finite number", first)
        with np.errstate(over="ignore", under="ignore"):
            single = np.ascontiguousarray(array, dtype=np.float32)
        if array.dtype.itemsize > single.dtype.itemsize:
            fits = fits_float32(array) if weights else np.isfinite(single)
            self.check(name, array, fits, f"must be {WEIGHT}", first)
        return single

    def shape(self, name: str) -> tuple[int, int]:
        """Two sizes."""
        rows, cols = (int(v) for v in self.integers(name, 2))
        if rows < 0 or cols < 0:
            self.refuse(name, f"must not be negative, got {rows} × {cols}")
        return rows, cols

    @property
    def sparse_features(self) -> tuple[int, int] | None:
        """The shape of features in CSR form, if there are any."""
        if "x_indptr" not in self.archive:
            return None
        shape = self.shape("x_shape")
        if shape[0] != self.vertices:
            said = f"says {shape[0]} rows, but the graph has {self.vertices} vertices"
            self.refuse("x_shape", said)
        if "x_data" not in self.archive:
            raise InputError(f"{self.path}: no array 'x_data'")
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
        """The canonical block of arrays ``{prefix}indptr, {prefix}indices, {prefix}data``."""
        indices = self.integers(f"{prefix}indices")
        indptr = self.row_ends(f"{prefix}indptr", shape[0], len(indices))
        indices = self.columns(f"{prefix}indices", indices, shape[1])
        name, data = f"{prefix}data", None
        if name in self.archive:
            data = self.reals(name, (len(indices),), weights=not prefix)
        if not prefix and data is not None and bool((data == 1).all()):
            data = None
        return canonical(f"{self.path}: '{name}'", indptr, indices, data, shape)

    def labels(self) -> Tensor | None:
        """Classes, each in the range that the file states or that is plausible; or other labels."""
        if "y" not in self.archive:
            return None
        table = self.archive.array("y")
        if table.dtype.kind == "f" or table.ndim == 2:
            return self._table_of_labels(table)
        y = self.integers("y", self.vertices).astype(np.int64, copy=False)
        if "classes" in self.archive:
            stated = self.archive.array("classes")
            if stated.size != 1 or stated.dtype.kind not in "iu":
                self.refuse("classes", f"must be one integer, got {_describe(stated)}")
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
        return torch.from_numpy(y)

    def _table_of_labels(self, table: Array) -> Tensor:
        """Several labels a vertex, or numbers."""
        if table.dtype.kind not in "fiub" or table.ndim not in (1, 2):
            wanted = "a vector of integers, a table of 0 and 1, or numbers"
            self.refuse("y", f"must be {wanted}, got {_describe(table)}")
        if len(table) != self.vertices:
            self.refuse("y", f"must have length {self.vertices}, got {len(table)}")
        try:
            return torch.from_numpy(labels_of_table(table))
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None

    def masks(self) -> dict[str, Tensor | None]:
        """The three masks by name."""
        return {name: self._mask(name) for name in MASKS}

    def _mask(self, name: str) -> Tensor | None:
        several = f"{name}s"
        if several in self.archive:
            mask = self.archive.array(several).T
        elif name in self.archive:
            mask = self.archive.array(name)
        else:
            return None
        if mask.dtype.kind != "b":
            self.refuse(name, f"must be bool, got {_describe(mask)}")
        mask = np.ascontiguousarray(mask)
        bits = mask.view(np.uint8)
        self.check(name, bits, bits <= 1, "must be a bool, 0 or 1")
        return torch.from_numpy(mask)

    def check(self, name: str, array: Array, good: Array, rule: str, first: int = 0) -> None:
        """Refuse the first element that is not good, by its position; rows count from `first`."""
        if not good.all():
            place = np.unravel_index(int(np.argmin(good)), good.shape)
            row, *rest = (int(i) for i in place)
            where = ", ".join(map(str, (row + first, *rest)))
            raise InputError(f"{self.path}: {name}[{where}] is {array[place]}; it {rule}")

    def refuse(self, name: str, rule: str) -> None:
        """Refuse a whole array."""
        raise InputError(f"{self.path}: array '{name}' {rule}")


def canonical(
    owner: str, indptr: Array, indices: Array, data: Array | None, shape: tuple[int, int]
) -> CSR:
    """The block of checked arrays: columns of a row sorted, entries named twice summed."""
    if _sorted_within_rows(indptr, indices):
        return block_of(indptr, indices, shape, data)
    # A sum that float32 cannot hold must be seen.
    entries = np.ones(len(indices), np.bool_) if data is None else data.astype(np.float64)
    return narrow(CSR.from_scipy(sp.csr_array((entries, indices, indptr), shape=shape)), owner)


def _sorted_within_rows(indptr: Array, indices: Array) -> bool:
    """Whether columns rise strictly inside every row."""
    falls = np.flatnonzero(indices[1:] <= indices[:-1]) + 1
    at = np.searchsorted(indptr, falls)
    return bool((indptr[at] == falls).all())


def _describe(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"
