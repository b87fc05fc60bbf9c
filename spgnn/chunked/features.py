"""Features of a rank's vertices, some rows at a time; and A·X, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.chunked.blocks import Stretch, rows_of
from spgnn.chunked.matrix import PartMatrix
from spgnn.chunked.room import Room
from spgnn.chunked.state import Source, Vertices
from spgnn.chunked.table import MemoryTable, Table, panels_of
from spgnn.direct import DirectFile, Transfers
from spgnn.sparse import CSR

# Preparation of the features, row by row, before anything reads them.
Ready = Callable[[Tensor | CSR], Tensor | CSR]


@dataclass(frozen=True, eq=False)
class Held(Source):
    """Features in memory.

    Attributes
    ----------
    X : Tensor or CSR [own rows, features]
    bounds : tuple of int [K + 1]
    ready : callable
        Must copy what it changes.
    """

    X: Tensor | CSR
    bounds: tuple[int, ...]
    ready: Ready

    def rows(self, part: int) -> Tensor | CSR:
        """Those of a chunk."""
        first, last = self.bounds[part : part + 2]
        if isinstance(self.X, CSR):
            return self.ready(rows_of(self.X, first, last))
        return self.ready(self.X[first:last])

    def columns(self, part: int, first: int, last: int) -> Tensor:
        """Some columns of a chunk."""
        found = self.rows(part)
        assert isinstance(found, Tensor)
        return found[:, first:last]


@dataclass(frozen=True, eq=False)
class MadeUp(Source):
    """Features that are a function of the vertex.

    Attributes
    ----------
    make : callable
        Original ids [rows] and columns [first, last) to numbers [rows, last − first].
    width : int
    bounds : tuple of int [K + 1]
    ids : Tensor int64 [own rows], or int
        Original ids; a number if they follow one another from it.
    """

    make: Callable[[Tensor, int, int], Tensor]
    width: int
    bounds: tuple[int, ...]
    ids: Tensor | int

    def rows(self, part: int) -> Tensor:
        """Those of a chunk."""
        return self.columns(part, 0, self.width)

    def columns(self, part: int, first: int, last: int) -> Tensor:
        """Some columns of a chunk."""
        begin, end = self.bounds[part : part + 2]
        if isinstance(self.ids, int):
            ids = torch.arange(begin + self.ids, end + self.ids)
        else:
            ids = self.ids[begin:end]
        return self.make(ids, first, last)


class OnDisk(Source):
    """Dense features in a file of rows.

    Parameters
    ----------
    where : Stretch
    width : int
        Of float32.
    bounds : tuple of int [K + 1]
    ready : callable
    counts : Transfers
    """

    def __init__(
        self,
        where: Stretch,
        width: int,
        bounds: tuple[int, ...],
        *,
        ready: Ready,
        counts: Transfers,
    ) -> None:
        self.width, self.bounds, self._ready = width, bounds, ready
        self._file, self._offset = DirectFile(where.path, counts), where.offset

    def rows(self, part: int) -> Tensor | CSR:
        """Those of a chunk."""
        first, last = self.bounds[part : part + 2]
        nbytes = 4 * self.width * (last - first)
        if not nbytes:
            return torch.empty(last - first, self.width)
        found = self._file.read(self._offset + 4 * self.width * first, nbytes)
        return self._ready(torch.from_numpy(found.view(np.float32)).view(last - first, self.width))


def propagated(
    whole: PartMatrix,
    vertices: Vertices,
    width: int,
    room: Room,
    *,
    columns: int,
    stored: torch.dtype,
) -> Table:
    """A·X, made a panel of columns after the other. Collective.

    Features in a file of rows are written panel by panel first, so that they are read twice, and
    not once for each panel.

    Parameters
    ----------
    whole : PartMatrix
    vertices : Vertices
        What it says of propagated features does not count.
    width : int
        Features.
    room : Room
    columns : int
        Of a panel.
    stored : torch.dtype
        Of the result.
    """
    bounds, source = vertices.bounds, vertices.features
    like = torch.empty(0, width)
    made = room.table("propagated", bounds, like, dtype=stored, panel=columns)
    copied: Table | None = None
    if isinstance(source, OnDisk) and columns < width:
        copied = room.table("X", bounds, like, panel=columns)
        for part in range(len(bounds) - 1):
            copied.write(part, _scaled(vertices, part, source.rows(part)))
    for first, last in panels_of(width, columns):
        operand = copied
        if operand is None:
            operand = MemoryTable(bounds, last - first, room.dtype, whole.halo_rows)
            for part in range(len(bounds) - 1):
                operand.write(part, _scaled(vertices, part, _columns(source, part, first, last)))
        begin = first if copied is not None else 0
        for part, Z in whole.panel_products(operand, begin, begin + last - first):
            scale = vertices.scale(vertices.row_scale, part, None)
            made.write_panel(part, first, Z if scale is None else Z * scale)
    if copied is not None:
        copied.release()
    made.settle()  # or its last stretches would be counted in the first epoch
    return made


def _columns(source: Source, part: int, first: int, last: int) -> Tensor:
    if isinstance(source, Held | MadeUp):
        return source.columns(part, first, last)
    found = source.rows(part)
    assert isinstance(found, Tensor)
    return found[:, first:last]


def _scaled(vertices: Vertices, part: int, X: Tensor | CSR) -> Tensor:
    assert isinstance(X, Tensor)
    scale = vertices.scale(vertices.column_scale, part, None)
    return X if scale is None else X * scale
