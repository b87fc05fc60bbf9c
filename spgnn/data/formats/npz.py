"""The .npz format: a graph as named NumPy arrays in one file, read without pickle."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.data.graph import MASKS, Graph
from spgnn.errors import InputError
from spgnn.pattern import INT32_LIMIT
from spgnn.sparse import CSR

Array = npt.NDArray[Any]
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
    with _opened(path) as file:
        arrays = _Arrays(path, file)
        shape = arrays.shape("shape")
        if shape[0] != shape[1]:
            raise InputError(
                f"{path}: shape is {shape[0]} × {shape[1]}; a graph needs as many rows as columns"
            )
        adjacency = _csr(arrays, "", shape)
        rows = shape[0]
        directed = bool(arrays["directed"]) if "directed" in arrays else True
        x, y = _features(arrays, rows), _labels(arrays, rows)
        masks = {name: _mask(arrays, name, rows) for name in MASKS}
    try:
        return Graph(path.stem, adjacency, directed, x=x, y=y, **masks)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


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
    if graph.y is not None:
        arrays["classes"] = np.array(graph.classes)
    for name in ("y", *MASKS):
        array = getattr(graph, name)
        if array is not None:
            arrays[name] = array.numpy()
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            (np.savez_compressed if compressed else np.savez)(file, **arrays)  # type: ignore[arg-type]
        os.replace(aside, target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror or error}") from None
    finally:
        aside.unlink(missing_ok=True)


class _Arrays(Mapping[str, Array]):
    """The arrays of one file; every failure to read one is an InputError that names it."""

    def __init__(self, path: Path, file: np.lib.npyio.NpzFile) -> None:
        self.path = path
        self._file = file
        if "indptr" not in file:
            found = ", ".join(file.files[:8]) or "none"
            raise InputError(f"{path}: not a graph: no array 'indptr' (arrays found: {found})")

    def __getitem__(self, name: str) -> Array:
        if name not in self._file:
            raise InputError(f"{self.path}: no array '{name}'")
        with _reading(self.path, f"array '{name}' is damaged"):
            array: Array = self._file[name]
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)

    def __contains__(self, name: object) -> bool:
        return name in self._file

    def integers(self, name: str, length: int | None = None) -> Array:
        """A vector of integers of any width."""
        array = self[name]
        if array.dtype.kind not in "iu" or array.ndim != 1:
            self.refuse(name, f"must be a vector of integers, got {_describe(array)}")
        if length is not None and len(array) != length:
            self.refuse(name, f"must have length {length}, got {len(array)}")
        return array

    def reals(self, name: str, shape: tuple[int | None, ...]) -> Array:
        """A float32 array without NaN or infinity."""
        array = self[name]
        fits = array.ndim == len(shape) and all(
            want in (None, got) for want, got in zip(shape, array.shape, strict=True)
        )
        if array.dtype.kind not in "fiub" or not fits:
            wanted = ", ".join("any" if v is None else str(v) for v in shape)
            self.refuse(name, f"must be float32 [{wanted}], got {_describe(array)}")
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(array, dtype=np.float32)
        self.check(name, array, np.isfinite(array), "must be a finite number")
        return array

    def shape(self, name: str) -> tuple[int, int]:
        """Two sizes."""
        rows, cols = (int(v) for v in self.integers(name, 2))
        if rows < 0 or cols < 0:
            self.refuse(name, f"must not be negative, got {rows} × {cols}")
        return rows, cols

    def check(self, name: str, array: Array, good: Array, rule: str) -> None:
        """Refuse the first element that is not good, by its position."""
        if not good.all():
            first = np.unravel_index(int(np.argmin(good)), good.shape)
            where = ", ".join(str(int(i)) for i in first)
            raise InputError(f"{self.path}: {name}[{where}] is {array[first]}; it {rule}")

    def refuse(self, name: str, rule: str) -> None:
        """Refuse a whole array."""
        raise InputError(f"{self.path}: array '{name}' {rule}")


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except InputError:
        raise
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{path}: {what} or truncated: {reason}") from None


@contextmanager
def _opened(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    with _reading(path, "not an .npz file"), open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("no zip archive")
    with _reading(path, "not an .npz file"):
        loaded = np.load(path, allow_pickle=False)
    with loaded:
        yield loaded


def _csr(arrays: _Arrays, prefix: str, shape: tuple[int, int]) -> CSR:
    """The canonical CSR block of arrays ``{prefix}indptr, {prefix}indices, {prefix}data``."""
    rows, cols = shape
    name = f"{prefix}indptr"
    indptr = arrays.integers(name, rows + 1).astype(np.int64, copy=False)
    if indptr[0] != 0:
        arrays.refuse(name, f"must start with 0, got {indptr[0]}")
    rises = np.concatenate(([True], indptr[1:] >= indptr[:-1]))
    arrays.check(name, indptr, rises, "must not be less than the one before it")
    indices = arrays.integers(f"{prefix}indices")
    if len(indices) != indptr[-1]:
        arrays.refuse(name, f"ends with {indptr[-1]}, but '{prefix}indices' has {len(indices)}")
    inside = (indices >= 0) & (indices < cols)
    arrays.check(f"{prefix}indices", indices, inside, f"must be in [0, {cols})")
    del inside
    indices = indices.astype(np.int32 if cols < INT32_LIMIT else np.int64, copy=False)
    name = f"{prefix}data"
    data = arrays.reals(name, (len(indices),)) if name in arrays else None
    if prefix == "" and data is not None and bool((data == 1).all()):
        data = None
    if _sorted_within_rows(indptr, indices):
        values = None if data is None else torch.from_numpy(data)
        return CSR.of(torch.from_numpy(indptr), torch.from_numpy(indices), shape, values)
    entries = np.ones(len(indices), np.bool_) if data is None else data
    return CSR.from_scipy(sp.csr_array((entries, indices, indptr), shape=shape))


def _sorted_within_rows(indptr: Array, indices: Array) -> bool:
    """Whether columns rise strictly inside every row."""
    falls = np.flatnonzero(indices[1:] <= indices[:-1]) + 1
    at = np.searchsorted(indptr, falls)
    return bool((indptr[at] == falls).all())


def _features(arrays: _Arrays, rows: int) -> Tensor | CSR | None:
    if "x" in arrays:
        return torch.from_numpy(arrays.reals("x", (rows, None)))
    if "x_indptr" not in arrays:
        return None
    shape = arrays.shape("x_shape")
    if shape[0] != rows:
        arrays.refuse("x_shape", f"says {shape[0]} rows, but the graph has {rows} vertices")
    arrays["x_data"]  # features without values are refused by name
    return _csr(arrays, "x_", shape)


def _labels(arrays: _Arrays, rows: int) -> Tensor | None:
    if "y" not in arrays:
        return None
    y = arrays.integers("y", rows).astype(np.int64, copy=False)
    if "classes" in arrays:
        classes = int(arrays["classes"])
        rule = f"must be a class in [0, {classes}), or -1 where it is not known"
    else:
        # A label far above all others is a damaged one, and would make the last layer huge.
        occurring = len(np.unique(y[y >= 0]))
        classes = LABEL_GAPS * occurring + 8
        rule = (
            f"must be a class, or -1 where it is not known; with {occurring} labels in use that is "
            f"below {classes}, unless an array 'classes' says how many there are"
        )
    arrays.check("y", y, (y >= -1) & (y < classes), rule)
    return torch.from_numpy(y)


def _mask(arrays: _Arrays, name: str, rows: int) -> Tensor | None:
    several = f"{name}s"
    if several in arrays:
        mask = arrays[several].T
    elif name in arrays:
        mask = arrays[name]
    else:
        return None
    if mask.dtype.kind != "b":
        arrays.refuse(name, f"must be bool, got {_describe(mask)}")
    return torch.from_numpy(np.ascontiguousarray(mask))


def _describe(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"
