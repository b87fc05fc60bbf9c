"""Bytes that an epoch reads and writes, predicted before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spgnn.chunked.budget import Budget
from spgnn.chunked.features import OnDisk
from spgnn.chunked.matrix import PartMatrix
from spgnn.chunked.network import Network
from spgnn.chunked.room import Places
from spgnn.chunked.sizes import Heads, Sizes
from spgnn.chunked.state import Layers, Source
from spgnn.chunked.table import panels_of


@dataclass
class Moved:
    """Bytes of files.

    Attributes
    ----------
    read, written : int
    """

    read: int = 0
    written: int = 0

    @property
    def bytes(self) -> int:
        """Both."""
        return self.read + self.written


@dataclass(frozen=True)
class LayerSizes:
    """Row counts, widths and bytes of one layer.

    Attributes
    ----------
    width : int
        Width of its operand; 0 for a first layer that takes A·X.
    given : int
        Width of its input.
    made : int
        Width of its output.
    rows, columns : int
        Own rows that it makes, and own rows that its product reads.
    gathered : int
        Rows that its adjoint makes.
    spread : int
        Rows that gradients are spread over before they are multiplied; 0 if they are not.
    forward_bytes, adjoint_bytes : int
        Bytes of reading its matrix, and the matrix of its adjoint, once; 0 in memory.
    looks : bool
        Whether it reads its own input rows as well as the product.
    learns : bool
        Whether its operand depends on a weight.
    norms : int
        Number of its norms that need moments over all vertices.
    extreme : bool
        Whether it takes the largest of its neighbours instead of a product.
    heads : Heads, optional
        Its attention heads, if it has any.
    """

    width: int
    given: int
    made: int
    rows: int
    columns: int
    gathered: int
    spread: int
    forward_bytes: int
    adjoint_bytes: int
    looks: bool
    learns: bool
    norms: int = 0
    extreme: bool = False
    heads: Heads | None = None


@dataclass(frozen=True)
class Forecast:
    """Bytes that one epoch of training moves between memory and disk, on one rank.

    Attributes
    ----------
    layers : tuple of LayerSizes
    places : Places
    again : frozenset of int
        Layers whose input rows are recomputed, and not kept.
    itemsize : int
        Bytes of a number.
    features_bytes, propagated_bytes : int
        Bytes of reading X, and A·X, once; 0 in memory.
    jumps : bool
        Whether model outputs depend on the outputs of all layers.
    """

    layers: tuple[LayerSizes, ...]
    places: Places
    again: frozenset[int]
    itemsize: int
    features_bytes: int
    propagated_bytes: int
    jumps: bool = False

    @classmethod
    def of(
        cls,
        network: Network,
        layers: Layers,
        widths: Sequence[int],
        operands: Sequence[int],
        *,
        learns: bool,
        norms: Sequence[int] = (),
    ) -> Forecast:
        """Forecast for a network and matrices that were built.

        Parameters
        ----------
        network : Network
        layers : Layers
        widths : sequence of int
            Features, and what each layer makes.
        operands : sequence of int
            Width of what each layer multiplies; 0 for a first layer that takes A·X.
        learns : bool
            Whether the first layer's operand depends on a weight.
        norms : sequence of int
            How often each layer asks for moments over all vertices; by default none does.
        """
        table, places = network.vertices.propagated, network.room.places
        kept = table is not None and "propagated" in places.on_disk
        looks = network.segments.looks_at_itself
        found = tuple(
            replace(
                _sizes_of(matrix, width, widths[n : n + 2], looks=looks(n), learns=n > 0 or learns),
                norms=norms[n] if norms else 0,
                extreme=network.segments.reduction(n) is not None,
                heads=network.segments.heads(n),
            )
            for n, (matrix, width) in enumerate(zip(layers.matrices, operands, strict=True))
        )
        return cls(
            found,
            places,
            network.again,
            network.room.dtype.itemsize,
            _file_bytes(network.vertices.features, layers.bounds[-1]),
            table.rows * table.width * table.dtype.itemsize if table is not None and kept else 0,
            network.segments.jumps,
        )

    @classmethod
    def of_sizes(cls, sizes: Sizes, budget: Budget) -> Forecast:
        """Forecast for planned sizes; exact if the sizes are."""
        on_disk = budget.places.on_disk
        number = range(len(sizes.operands))
        return cls(
            tuple(_sizes_ahead(sizes, budget, n) for n in number),
            budget.places,
            budget.again,
            sizes.itemsize,
            sizes.source_bytes,
            sizes.features_bytes if "propagated" in on_disk else 0,
            sizes.jumps,
        )

    @property
    def in_one_panel(self) -> Forecast:
        """As if all columns of every operand were in memory at once."""
        return replace(self, places=replace(self.places, panel_bytes=0))

    def bytes(self) -> Moved:
        """Of forward and backward."""
        moved = Moved()
        for number, layer in enumerate(self.layers):
            self._input(moved, number)
            self._moments(moved, number)
            if not layer.width:
                continue
            self._product(moved, layer)
            # A product is kept, and its layer recomputed from it; its gradient overwrites it. The
            # last layer's gradient comes from the product that is in memory, unless norms need
            # another pass over it. The first pass of all has it in memory, too.
            product = self._size("product", layer.rows, layer.width)
            moved.written += product * (self.uses(number) > 1)
            moved.read += product * (self.uses(number) - 1)
            if layer.learns:
                moved.written += self._size("product", layer.rows, layer.width)
                self._adjoint(moved, layer)
        for number in range(len(self.layers) - 1) if self.jumps else ():
            self._jump(moved, number)
        if self.layers[0].width:
            moved.read += (1 + self.layers[0].learns) * self.features_bytes
        return moved

    def uses(self, number: int) -> int:
        """Number of passes over a layer in an epoch: each norm takes two more."""
        return 2 * self.layers[number].norms + (1 if number == len(self.layers) - 1 else 2)

    def _product(self, moved: Moved, layer: LayerSizes) -> None:
        """An operand is written, and read by panels; each takes the matrix once."""
        operand = self._size("operand", layer.columns, layer.width)
        ends = self._ends(layer, "taken")
        moved.written += operand + ends
        moved.read += operand + ends
        self._multiplied(moved, layer, layer.forward_bytes, layer.rows)

    def _adjoint(self, moved: Moved, layer: LayerSizes) -> None:
        moved.read += self._size("product", layer.rows, layer.width)
        if layer.extreme or layer.heads is not None:
            # Of the operand, which is kept, the same rows find largest neighbours, or weights.
            moved.read += self._size("operand", layer.columns, layer.width)
            moved.read += self._ends(layer, "taken") + self._ends(layer, "skipped")
            moved.written += self._ends(layer, "skipped")
            self._multiplied(moved, layer, layer.forward_bytes, layer.columns)
            return
        spread = self._size("operand", layer.spread, layer.width)
        moved.written += spread
        moved.read += spread
        self._multiplied(moved, layer, layer.adjoint_bytes, layer.gathered)

    def _ends(self, layer: LayerSizes, purpose: str) -> int:
        """Bytes of the destination scores, or of their gradient."""
        return 0 if layer.heads is None else self._size(purpose, layer.rows, layer.heads.ends)

    def _multiplied(self, moved: Moved, layer: LayerSizes, matrix_bytes: int, rows: int) -> None:
        width, heads = layer.width, 0 if layer.heads is None else layer.heads.number
        panels = len(panels_of(width, self.places.panel(width, self.itemsize, heads)))
        moved.read += panels * matrix_bytes
        if panels > 1:
            made = self._size("operand", rows, width)
            moved.written += made
            moved.read += made

    def _input(self, moved: Moved, number: int) -> None:
        """Count a layer's own input rows, which it reads as well as the product."""
        moved.read += self.uses(number) * self._taken(number)
        if number and self.layers[number].looks:
            rows, width = self.layers[number].rows, self.layers[number].given
            if number not in self.again:
                moved.written += self._size("taken", rows, width)
            skipped = self._size("skipped", rows, width)
            moved.written += skipped
            moved.read += skipped

    def _moments(self, moved: Moved, number: int) -> None:
        """The gradient of what a layer makes waits for those of its norms' moments."""
        layer = self.layers[number]
        made = self._size("skipped", layer.rows, layer.made)
        moved.written += made * (layer.norms > 0)
        moved.read += made * layer.norms

    def _taken(self, number: int) -> int:
        """Bytes read to have it once."""
        layer = self.layers[number]
        if not number:
            return self.propagated_bytes + layer.looks * self.features_bytes
        if not layer.looks:
            return 0
        if number not in self.again:
            return self._size("taken", layer.rows, layer.given)
        return self._made_again(number - 1)

    def _made_again(self, number: int) -> int:
        """Bytes read to make a layer again of its product."""
        layer = self.layers[number]
        return self._size("product", layer.rows, layer.width) + self._taken(number)

    def _jump(self, moved: Moved, number: int) -> None:
        """Count a layer's output, recomputed for the model outputs, and its gradient from them."""
        moved.read += self._made_again(number)
        given = self._size("skipped", self.layers[number].rows, self.layers[number + 1].given)
        moved.written += given
        moved.read += given

    def _size(self, purpose: str, rows: int, width: int) -> int:
        return rows * width * self.itemsize if purpose in self.places.on_disk else 0


def _file_bytes(source: Source, rows: int) -> int:
    return 4 * source.width * rows if isinstance(source, OnDisk) else 0


def _sizes_ahead(sizes: Sizes, budget: Budget, number: int) -> LayerSizes:
    rows, columns = sizes.made[number], sizes.sources[number]
    small = bool(sizes.small) and sizes.small[number]
    thinned = not small and rows < sizes.rows
    forward = adjoint = 0
    if "matrix" in budget.places.on_disk and not small:
        # Row offsets of a block begin anew; rows of others are one block of the transpose.
        forward = adjoint = sizes.matrix_bytes // sizes.sides + 8 * budget.parts
        adjoint += 8 * (sizes.received + 1) if sizes.sides > 1 and sizes.received else 0
    return LayerSizes(
        width=sizes.operands[number],
        given=sizes.widths[number],
        made=sizes.widths[number + 1],
        rows=rows,
        columns=columns,
        gathered=sizes.rows if thinned else columns,
        spread=sizes.rows if thinned else 0,
        forward_bytes=forward,
        adjoint_bytes=adjoint,
        looks=sizes.looks[number],
        learns=number > 0 or sizes.learns,
        norms=sizes.norms[number] if sizes.norms else 0,
        extreme=sizes.extremes,
        heads=sizes.heads[number] if sizes.heads else None,
    )


def _sizes_of(
    matrix: PartMatrix, width: int, widths: Sequence[int], *, looks: bool, learns: bool
) -> LayerSizes:
    sides = [matrix.blocks]
    if matrix.transposed is not None:
        sides = [matrix.transposed, *([matrix.to_others] if matrix.to_others else [])]
    return LayerSizes(
        width=width,
        given=widths[0],
        made=widths[1],
        rows=matrix.row_bounds[-1],
        columns=matrix.column_bounds[-1],
        gathered=matrix.bounds[-1] if matrix.thinned else matrix.column_bounds[-1],
        spread=matrix.bounds[-1] if matrix.thinned else 0,
        forward_bytes=matrix.blocks.nbytes,
        adjoint_bytes=sum(blocks.nbytes for blocks in sides),
        looks=looks,
        learns=learns,
    )
