"""Graph directories written part by part: a graph cut by a partition, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.data.graph import MASKS, Graph, GraphBlock, inverse_permutation
from spgnn.data.meta import GraphMeta
from spgnn.data.shards.arrays import Array, ArrayRecord, ArrayWriter
from spgnn.data.shards.directory import part_folder, write_meta
from spgnn.data.shards.part import write_part
from spgnn.data.source import GraphSource, MemorySource
from spgnn.data.structure import rename_columns
from spgnn.errors import InputError
from spgnn.files import AnyPath, directory_written_aside
from spgnn.layout import RowLayout, grouped_order
from spgnn.progress import Progress
from spgnn.sparse import CSR

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
    """Refuse a number of parts of which some could not but be empty.

    Raises
    ------
    InputError
    """
    if not 1 <= parts <= max(vertices, 1):
        raise InputError(
            f"{what} {parts}: must be at least 1, and at most the {max(vertices, 1)} that "
            f"{vertices} vertices can use"
        )


def partition_order(
    labels: npt.ArrayLike | None, vertices: int, parts: int
) -> tuple[RowLayout, Tensor]:
    """The row layout of a partition, and the order that sorts vertices by part (stable).

    Raises
    ------
    InputError
        If there is not one label in [0, parts) for each vertex.
    """
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
    """What writes a graph directory, which appears when the block ends well.

    Raises
    ------
    InputError
        If the directory exists, or cannot be written.
    """
    with directory_written_aside(directory) as folder:
        yield DirectoryWriter(folder)


class DirectoryWriter:
    """Writes parts one after another, and at last what describes them.

    Attributes
    ----------
    folder : Path
        Where, until all is there.
    """

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
        """Add the rows of a block.

        Parameters
        ----------
        block : GraphBlock
        moved : bool
            Whether its ``vertex_ids`` say more than that each vertex is where it was.
        """
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
