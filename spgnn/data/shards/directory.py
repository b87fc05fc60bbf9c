"""Sharded graphs on disk: a folder a part, an .npy file an array; a rank maps only its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.data.download import Progress
from spgnn.data.graph import MASKS, Graph, GraphBlock, GraphMeta, inverse_permutation, rows_of
from spgnn.data.normalise import is_bag_of_words
from spgnn.errors import InputError
from spgnn.layout import RowLayout
from spgnn.sparse import CSR

META = "meta.json"
Path_ = str | os.PathLike[str]


def describe(graph: Graph, layout: RowLayout) -> GraphMeta:
    """What every rank may know of a graph that is split this way."""
    return GraphMeta(
        name=graph.name,
        vertices=graph.vertices,
        edges=graph.edges,
        features=graph.features,
        classes=graph.classes,
        directed=graph.directed,
        weighted=graph.weighted,
        offsets=tuple(int(v) for v in layout.offsets),
        sparse_features=isinstance(graph.x, CSR),
        bag_of_words=is_bag_of_words(graph.x),
        labelled=graph.y is not None,
        splits=graph.splits,
    )


def write_shards(
    graph: Graph,
    labels: npt.ArrayLike | None,
    parts: int,
    directory: Path_,
    progress: Progress | None = None,
) -> None:
    """Relabel a graph by a partition and write each part into a folder of its own.

    Beside the graph, no more than one part is in memory. The directory appears whole or not at all.

    Parameters
    ----------
    graph : Graph
    labels : int [n] in [0, parts), optional
        The part of each vertex; ``None`` for blocks of equal size. Vertices of a part keep their
        order.
    parts : int
        Empty parts are fine.
    directory : path
        Must not exist.
    progress : called with (what, parts written, parts), optional

    Raises
    ------
    InputError
        If labels do not fit the graph, the directory exists, or it cannot be written (a full disk).
    """
    layout, order = partition_order(labels, graph.vertices, parts)
    position = inverse_permutation(order)
    with ShardWriter(directory) as writer:
        for part in range(parts):
            first, last = layout.range(part)
            writer.write(part, rows_of(graph, order[first:last], position, first))
            if progress is not None:
                progress("writing parts", part + 1, parts)
        writer.finish(describe(graph, layout))


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
    order = torch.from_numpy(np.argsort(labels, kind="stable"))
    return RowLayout.from_labels(labels, parts), order


class ShardWriter:
    """Writes parts one at a time; a context manager whose directory appears at `finish`.

    Everything is written into a hidden sibling that is renamed at the end and removed on any
    error, so that an interrupted run leaves nothing.

    Raises
    ------
    InputError
        If the directory exists, or cannot be written.
    """

    def __init__(self, directory: Path_) -> None:
        self.directory = Path(directory)
        if self.directory.exists():
            raise InputError(f"{self.directory}: exists already; remove it or name another one")
        self._aside = self.directory.with_name(f".{self.directory.name}.{os.getpid()}")
        self._finished = False

    def __enter__(self) -> Self:
        self._guard(self._aside.mkdir)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._finished:
            shutil.rmtree(self._aside, ignore_errors=True)

    def write(self, part: int, block: GraphBlock) -> None:
        """Write one part."""
        folder = self._aside / _folder(part)
        arrays = _arrays_of(block)

        def save() -> None:
            folder.mkdir()
            for name, array in arrays.items():
                with open(folder / f"{name}.npy", "wb") as file:
                    # np.save would report a full disk as a number of bytes, without saying why.
                    header = np.lib.format.header_data_from_array_1_0(array)
                    np.lib.format.write_array_header_1_0(file, header)
                    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

        self._guard(save)

    def finish(self, meta: GraphMeta) -> None:
        """Describe the parts, and let the directory appear."""

        def publish() -> None:
            (self._aside / META).write_text(meta.to_json() + "\n")
            os.rename(self._aside, self.directory)

        self._guard(publish)
        self._finished = True

    def _guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            raise InputError(
                f"{self.directory}: cannot be written: {error.strerror or error}"
            ) from None


@dataclass(frozen=True)
class ShardDirectory:
    """A sharded graph, opened; parts are mapped into memory when asked for, and only those."""

    directory: Path
    meta: GraphMeta

    @property
    def layout(self) -> RowLayout:
        """Who owns which rows."""
        return RowLayout(np.array(self.meta.offsets))

    def block(self, part: int) -> GraphBlock:
        """All of one part. Arrays are private mappings: written pages never reach the file.

        Raises
        ------
        InputError
            If the part does not exist, or its files are missing, truncated or inconsistent.
        """
        files = self._files(part)
        first, last = self.layout.range(part)
        rows = last - first
        x: Tensor | CSR | None = None
        if self.meta.sparse_features:
            x = files.csr("x_", (rows, self.meta.features), weighted=True)
        elif self.meta.features:
            x = files.tensor("x")
        try:
            block = GraphBlock(
                self.adjacency(part),
                first,
                files.tensor("vertex_ids"),
                x=x,
                y=files.tensor("y") if self.meta.labelled else None,
                **self._masks(files),
            )
        except InputError as error:
            raise files.wrong(str(error)) from None
        if block.features != self.meta.features:
            raise files.wrong(f"{block.features} features, but {META} says {self.meta.features}")
        if block.y is not None and rows and int(block.y.max()) >= self.meta.classes:
            row = int(block.y.argmax())
            raise files.wrong(
                f"y[{row}] is {int(block.y[row])}; it must be in [0, {self.meta.classes})"
            )
        return block

    def _masks(self, files: _PartFiles) -> dict[str, Tensor]:
        """Those that exist; a set with splits has a training mask at least."""
        if not self.meta.splits:
            return {}
        others = [name for name in MASKS[1:] if files.has(name)]
        return {name: files.tensor(name) for name in (MASKS[0], *others)}

    def adjacency(self, part: int) -> CSR:
        """The rows of one part alone, global columns; opens nothing else."""
        files = self._files(part)
        first, last = self.layout.range(part)
        return files.csr("", (last - first, self.meta.vertices), self.meta.weighted)

    def _files(self, part: int) -> _PartFiles:
        if not 0 <= part < self.meta.parts:
            raise InputError(
                f"{self.directory}: no part {part}; it has parts 0 to {self.meta.parts - 1}"
            )
        return _PartFiles(self.directory / _folder(part))


def open_shards(directory: Path_) -> ShardDirectory:
    """Open a directory written by `write_shards`; reads its description only.

    Raises
    ------
    InputError
        If it is not such a directory.
    """
    path = Path(directory)
    try:
        text = (path / META).read_text()
    except OSError as error:
        raise InputError(
            f"{path / META}: cannot be read: {error.strerror}; not a sharded graph"
        ) from None
    try:
        return ShardDirectory(path, GraphMeta.from_json(text))
    except InputError as error:
        raise InputError(f"{path / META}: {error}") from None


@dataclass(frozen=True)
class _PartFiles:
    folder: Path

    def has(self, name: str) -> bool:
        return (self.folder / f"{name}.npy").exists()

    def tensor(self, name: str) -> Tensor:
        path = self.folder / f"{name}.npy"
        try:
            # Copy-on-write, because torch wants memory it may write to.
            mapped = np.load(path, mmap_mode="c", allow_pickle=False)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file; the shards are incomplete") from None
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path}: truncated or not an array: {error}") from None
        return torch.from_numpy(np.asarray(mapped))

    def csr(self, prefix: str, shape: tuple[int, int], weighted: bool) -> CSR:
        indptr, indices = self.tensor(f"{prefix}indptr"), self.tensor(f"{prefix}indices")
        values = self.tensor(f"{prefix}values") if weighted else None
        try:
            return CSR.of(indptr, indices, shape, values)
        except InputError as error:
            raise self.wrong(str(error)) from None

    def wrong(self, what: str) -> InputError:
        return InputError(f"{self.folder}: {what}")


def _arrays_of(block: GraphBlock) -> dict[str, npt.NDArray[np.generic]]:
    tensors: dict[str, Tensor | None] = {
        "indptr": block.adjacency.indptr,
        "indices": block.adjacency.indices,
        "values": block.adjacency.values,
        "vertex_ids": block.vertex_ids,
        "y": block.y,
        **{name: getattr(block, name) for name in MASKS},
    }
    if isinstance(block.x, CSR):
        tensors |= {
            "x_indptr": block.x.indptr,
            "x_indices": block.x.indices,
            "x_values": block.x.values,
        }
    else:
        tensors["x"] = block.x
    return {name: t.numpy() for name, t in tensors.items() if t is not None}


def _folder(part: int) -> str:
    return f"part-{part:05d}"
