"""Bytes that an epoch reads and writes, from what is known before it."""

from __future__ import annotations

from dataclasses import dataclass

from spgnn.parts.blocks import Blocks
from spgnn.parts.features import OnDisk
from spgnn.parts.layers import Layers
from spgnn.parts.matrix import PartMatrix
from spgnn.parts.network import Network
from spgnn.parts.table import panels_of


@dataclass
class Moved:
    """Bytes of files.

    Attributes
    ----------
    read, written : int
    """

    read: int = 0
    written: int = 0


@dataclass(frozen=True, eq=False)
class Forecast:
    """What one epoch of training moves between memory and disk, on this rank.

    Attributes
    ----------
    network : Network
    layers : Layers
    operands : tuple of int
        Width of what each layer multiplies; 0 for a first layer that takes A·X.
    widths : tuple of int
        Features, and what each layer makes.
    learns : bool
        Whether the first layer's operand depends on a weight.
    one_panel : bool
        As if all columns of an operand were in memory at once.
    """

    network: Network
    layers: Layers
    operands: tuple[int, ...]
    widths: tuple[int, ...]
    learns: bool
    one_panel: bool = False

    def bytes(self) -> Moved:
        """Of forward and backward."""
        moved = Moved()
        for number, matrix in enumerate(self.layers.matrices):
            width, learns = self.operands[number], number > 0 or self.learns
            self._input(moved, number)
            if not width:
                continue
            self._product(moved, matrix, width)
            # The product is kept, and the layer made again of it; its gradient takes its place.
            for use in ("written", "read", "written"):
                self._table(moved, "product", matrix.row_bounds[-1], width, use)
            if learns:
                self._adjoint(moved, matrix, width)
        if self.operands[0]:
            self._features(moved, 1 + self.learns)
        return moved

    def _product(self, moved: Moved, matrix: PartMatrix, width: int) -> None:
        """An operand is written, and read by panels; each takes the matrix once."""
        rows = matrix.column_bounds[-1]
        self._table(moved, "operand", rows, width, "written")
        self._table(moved, "operand", rows, width, "read")
        self._multiplied(moved, [matrix.blocks], matrix.row_bounds[-1], width)

    def _adjoint(self, moved: Moved, matrix: PartMatrix, width: int) -> None:
        rows = matrix.row_bounds[-1]
        self._table(moved, "product", rows, width, "read")
        if matrix.thinned:
            self._table(moved, "operand", matrix.bounds[-1], width, "written")
            self._table(moved, "operand", matrix.bounds[-1], width, "read")
        sides = [matrix.blocks]
        if matrix.transposed is not None:
            sides = [matrix.transposed, *([matrix.to_others] if matrix.to_others else [])]
        made = matrix.bounds[-1] if matrix.thinned else matrix.column_bounds[-1]
        self._multiplied(moved, sides, made, width)

    def _multiplied(self, moved: Moved, sides: list[Blocks], rows: int, width: int) -> None:
        panels = 1 if self.one_panel else len(panels_of(width, self.network.room.panel(width)))
        moved.read += panels * sum(blocks.nbytes for blocks in sides)
        if panels > 1:
            self._table(moved, "operand", rows, width, "written")
            self._table(moved, "operand", rows, width, "read")

    def _input(self, moved: Moved, number: int) -> None:
        """What a layer takes beside the product, in forward and in backward."""
        looks = self.network.segments.looks_at_itself(number)
        if number == 0:
            table = self.network.vertices.propagated
            if table is not None and "propagated" in self.network.room.places.on_disk:
                moved.read += 2 * table.rows * table.width * table.dtype.itemsize
            if looks:
                self._features(moved, 2)
        elif looks:
            rows, width = self.layers.matrices[number].row_bounds[-1], self.widths[number]
            for use in ("written", "read", "read"):
                self._table(moved, "taken", rows, width, use)
            for use in ("written", "read"):
                self._table(moved, "skipped", rows, width, use)

    def _features(self, moved: Moved, times: int) -> None:
        source = self.network.vertices.features
        if isinstance(source, OnDisk):
            moved.read += times * 4 * source.width * self.layers.bounds[-1]

    def _table(self, moved: Moved, purpose: str, rows: int, width: int, use: str) -> None:
        setattr(moved, use, getattr(moved, use) + self._size(purpose, rows, width))

    def _size(self, purpose: str, rows: int, width: int) -> int:
        room = self.network.room
        return rows * width * room.dtype.itemsize if purpose in room.places.on_disk else 0
