"""An .npz file that hands out rows of its features without holding them.

Features that are stored as they are (``np.savez``) are mapped; compressed ones are decompressed
from their beginning, and only the rows that were asked for are kept.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from spgnn.blocks import take_rows
from spgnn.data.formats.archive import Archive, Array
from spgnn.data.formats.npz import GraphArrays, canonical
from spgnn.data.formats.reading import graph_of
from spgnn.data.graph import VertexData
from spgnn.data.meta import describe
from spgnn.data.normalise import WordCount
from spgnn.data.source import GraphSource, ids_of
from spgnn.data.structure import slice_rows, stack_rows
from spgnn.layout import RowLayout
from spgnn.pattern import numpy_index_dtype
from spgnn.sparse import CSR

X = TypeVar("X", Tensor, CSR)


class NpzSource(GraphSource):
    """An .npz file, opened; labels, masks and row offsets are in memory, features are not.

    Opening reads every array once, and with that checks it as `read_npz` does.

    Raises
    ------
    InputError
        Naming the file, the array and the position of what is wrong.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        with Archive(self._path) as archive:
            arrays = GraphArrays(archive)
            arrays.warn_of_unread()
            adjacency, directed = arrays.adjacency(), arrays.directed()
            self.decided = arrays.decided()
            self._features = _features(arrays)
            data = {"y": arrays.labels(), **arrays.masks()}
        graph = graph_of(self._path, adjacency, directed, **data)
        self._vertices = VertexData(**data)
        # Handed to whoever asks for all of it, who can then free it; read again for others.
        self._adjacency: CSR | None = graph.adjacency
        self.meta = describe(graph, RowLayout.even(graph.vertices, 1))
        if self._features is not None:
            self.meta = replace(
                self.meta,
                features=self._features.width,
                sparse_features=isinstance(self._features, _SparseFeatures),
            )
            words = WordCount()
            for _, rows in self._features.pieces(self.piece_rows):
                words.add(rows)
            self.meta = replace(self.meta, bag_of_words=words.is_bag_of_words)

    @property
    def random_access(self) -> bool:
        """Whether features are mapped, or there are none."""
        return self._features is None or self._features.mapped

    def structure(self) -> CSR:
        """The adjacency; a caller that drops it frees it."""
        A = self._kept()
        self._adjacency = None
        return A

    def adjacency(self, ids: Tensor | slice) -> CSR:
        """Some rows of the adjacency, which from now on is kept."""
        A = self._kept()
        return slice_rows(A, ids) if isinstance(ids, slice) else take_rows(A, ids)

    def _kept(self) -> CSR:
        if self._adjacency is None:
            with Archive(self._path) as archive:
                self._adjacency = GraphArrays(archive).adjacency()
        return self._adjacency

    def rows(self, ids: Tensor | slice) -> VertexData:
        """Features, labels and masks of some vertices; compressed features are read up to them."""
        x = None
        if self._features is not None:
            x = self._features.rows(ids_of(ids, self.meta.vertices), self.piece_rows)
        return VertexData(**self._vertices.take(ids) | {"x": x})

    def pieces(self, rows: int | None = None) -> Iterator[tuple[int, VertexData]]:
        """All vertices once, a few at a time, in one reading of the file."""
        rows = rows or self.piece_rows
        if self._features is None:
            yield from super().pieces(rows)
            return
        for first, x in self._features.pieces(rows):
            here = slice(first, first + x.shape[0])
            yield first, VertexData(**self._vertices.take(here) | {"x": x})


def _features(arrays: GraphArrays) -> _DenseFeatures | _SparseFeatures | None:
    if "x" in arrays.archive:
        return _DenseFeatures(arrays)
    shape = arrays.sparse_features
    return None if shape is None else _SparseFeatures(arrays, shape)


class _Features(ABC, Generic[X]):
    """Rows of features in a file."""

    def __init__(self, path: Path, vertices: int, width: int) -> None:
        self.path, self.vertices, self.width = path, vertices, width

    @abstractmethod
    def pieces(self, rows: int) -> Iterator[tuple[int, X]]:
        """All rows, checked, so many at a time."""

    @property
    @abstractmethod
    def mapped(self) -> bool:
        """Whether the file's arrays are mapped."""

    @abstractmethod
    def mapped_rows(self, ids: Array) -> X | None:
        """Some rows, if the file's arrays are mapped."""

    @abstractmethod
    def joined(self, pieces: list[X], order: Tensor) -> X:
        """Rows of several pieces, then taken in an order."""

    def rows(self, ids: Tensor, rows: int) -> X:
        """Some rows, in the order asked for."""
        found = self.mapped_rows(ids.numpy())
        if found is not None:
            return found
        ascending, order = ids.sort()
        picked: list[X] = []
        for first, piece in self.pieces(rows):
            bounds = torch.tensor([first, first + piece.shape[0]])
            low, high = torch.searchsorted(ascending, bounds).tolist()
            if low < high or not picked:
                picked.append(self.joined([piece], ascending[low:high] - first))
            if high == len(ids):
                break
        return self.joined(picked, order.argsort())


class _DenseFeatures(_Features[Tensor]):
    def __init__(self, arrays: GraphArrays) -> None:
        with arrays.archive.stream("x") as stream:
            header = stream.header
        arrays.check_shape("x", header.dtype, header.shape, (arrays.vertices, None))
        super().__init__(arrays.path, arrays.vertices, header.shape[1])
        self._array = arrays.archive.mapped("x")
        if self._array is None and header.fortran_order:
            self._array = arrays.archive.array("x")  # its rows do not lie together

    def pieces(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        with Archive(self.path) as archive, archive.stream("x") as stream:
            arrays = GraphArrays(archive)
            for first in range(0, max(self.vertices, 1), rows):
                last = min(first + rows, self.vertices)
                if stream.header.fortran_order and self._array is not None:
                    piece = self._array[first:last]
                else:
                    shape = (last - first, self.width)
                    piece = stream.take((last - first) * self.width).reshape(shape)
                yield first, torch.from_numpy(arrays.float32("x", piece, first=first))

    @property
    def mapped(self) -> bool:
        return self._array is not None

    def mapped_rows(self, ids: Array) -> Tensor | None:
        if self._array is None:
            return None
        return torch.from_numpy(np.ascontiguousarray(self._array[ids], dtype=np.float32))

    def joined(self, pieces: list[Tensor], order: Tensor) -> Tensor:
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces))[order]


class _SparseFeatures(_Features[CSR]):
    def __init__(self, arrays: GraphArrays, shape: tuple[int, int]) -> None:
        super().__init__(arrays.path, *shape)
        self._whole: CSR | None = None
        if arrays.converts("x_"):
            self._whole = arrays.csr("x_", shape)  # its rows do not lie together
            return
        self._entries = [arrays.archive.mapped(name) for name in ("x_indices", "x_data")]
        entries = 0
        for name in ("x_indices", "x_data"):
            with arrays.archive.stream(name) as stream:
                header = stream.header
            if name == "x_data":
                arrays.check_shape(name, header.dtype, header.shape, (entries,))
                self._integers = header.dtype.kind != "f"
            elif header.dtype.kind not in "iu" or len(header.shape) != 1:
                said = f"must be a vector of integers, got {header.dtype} {list(header.shape)}"
                arrays.refuse(name, said)
            else:
                entries = header.shape[0]
        self._indptr = arrays.row_ends("x_indptr", self.vertices, entries)

    def pieces(self, rows: int) -> Iterator[tuple[int, CSR]]:
        if self._whole is not None:
            for first in range(0, max(self.vertices, 1), rows):
                yield first, slice_rows(self._whole, slice(first, first + rows))
            return
        with ExitStack() as stack:
            archive = stack.enter_context(Archive(self.path))
            arrays = GraphArrays(archive)
            indices, data = (
                stack.enter_context(archive.stream(name)) for name in ("x_indices", "x_data")
            )
            for first in range(0, max(self.vertices, 1), rows):
                ends = self._indptr[first : min(first + rows, self.vertices) + 1]
                begin, count = int(ends[0]), int(ends[-1] - ends[0])
                columns = arrays.columns("x_indices", indices.take(count), self.width, begin)
                values = arrays.float32("x_data", data.take(count), first=begin)
                yield first, self._block(ends - begin, columns, values)

    @property
    def mapped(self) -> bool:
        return self._whole is not None or all(each is not None for each in self._entries)

    def mapped_rows(self, ids: Array) -> CSR | None:
        if self._whole is not None:
            return take_rows(self._whole, torch.from_numpy(ids))
        indices, data = self._entries
        if indices is None or data is None:
            return None
        lengths = self._indptr[ids + 1] - self._indptr[ids]
        ends = np.concatenate(([0], np.cumsum(lengths)))
        place = np.arange(ends[-1]) + np.repeat(self._indptr[ids] - ends[:-1], lengths)
        columns = indices[place].astype(numpy_index_dtype(self.width))
        return self._block(ends, columns, data[place].astype(np.float32))

    def joined(self, pieces: list[CSR], order: Tensor) -> CSR:
        return take_rows(stack_rows(pieces), order)

    def _block(self, ends: Array, columns: Array, values: Array) -> CSR:
        owner = f"{self.path}: 'x_data'"
        shape = (len(ends) - 1, self.width)
        return canonical(owner, ends, columns, values, shape, whole=self._integers)
