"""A rank's share of the work in numbers; the bytes of its tables, and what an epoch moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from spgnn.addons.outofcore.matrix import NO_HEADS, ChunkMatrix, Heads
from spgnn.addons.outofcore.tables import Placement, panels_of

# A layer gets a matrix of its own rows if these have at most this share of all nonzeros: in memory,
# and in files where the whole matrix lies on the disk.
OWN_MATRIX = 0.125
OWN_ON_DISK = 0.75


@dataclass(frozen=True)
class LayerSizes:
    """Row counts and widths of one layer."""

    operand: int  # width of its operand; 0 for a first layer that takes A·X
    given: int  # widths of its input and of its output
    made: int
    rows: int  # own rows that it makes, and that its product reads; at most,
    columns: int  # before the matrices are built
    reads_own: bool  # whether it reads its own input rows as well as the product
    norms: int = 0  # number of its norms that need moments over all vertices
    reduces: bool = False
    heads: Heads = NO_HEADS  # of attention
    # bytes of a matrix of its own rows, and of its transpose; 0: in memory
    own_matrix: tuple[int, int] | None = None
    kept: int = 0  # columns of what a first layer makes of A·X, if backward reads it


@dataclass(frozen=True)
class Sizes:
    """Row counts, widths and bytes of a rank's share of the work."""

    layers: tuple[LayerSizes, ...]
    rows: int  # own rows, and rows of other ranks that their product needs
    received: int
    matrix_bytes: int
    itemsize: int  # bytes of a number
    fixed_bytes: int  # bytes that are in memory under every budget
    propagated_bytes: int = 0  # bytes of A·X, if features are propagated; else 0
    source_bytes: int = 0  # bytes of reading the features from their files once; 0 in memory
    scored_bytes: int = 0
    sides: int = 1  # number of copies of the adjacency in `matrix_bytes`: 2 with its transpose
    learns: bool = True  # whether the first layer's operand depends on a weight
    jumps: bool = False  # whether model outputs depend on the outputs of all layers

    @property
    def reads_own(self) -> list[bool]:
        """True for each layer that reads its own input rows as well as the product."""
        return [layer.reads_own for layer in self.layers]

    def passes(self, number: int) -> int:
        """Passes over a layer in an epoch: forward and backward, and two more for each norm."""
        return 2 * self.layers[number].norms + (1 if number == len(self.layers) - 1 else 2)

    @property
    def keeping_nothing(self) -> Sizes:
        """The same if backward multiplies A·X with the first layer's weights again."""
        return replace(self, layers=(replace(self.layers[0], kept=0), *self.layers[1:]))

    def with_labels(self, labelled: int, classes: int) -> Sizes:
        """The same with the outputs of labelled rows, and their labels and masks, in memory."""
        # Row and label, int64, for all and once more for those of training; three masks.
        of_labels = labelled * (2 * (8 + 8) + 3)
        outputs = labelled * classes * self.itemsize
        return replace(self, scored_bytes=outputs, fixed_bytes=self.fixed_bytes + of_labels)

    def with_rows(
        self,
        rows: Sequence[int],
        columns: Sequence[int],
        own_matrices: Sequence[tuple[int, int] | None],
    ) -> Sizes:
        """The same with other rows of each layer, and matrices of its own."""
        layers = [
            replace(layer, rows=made, columns=read, own_matrix=own)
            for layer, made, read, own in zip(self.layers, rows, columns, own_matrices, strict=True)
        ]
        return replace(self, layers=tuple(layers))

    def at_most(self, wanted: int, nonzeros: int, total: int) -> Sizes:
        """The same if outputs of few rows are read, from how many these are alone."""
        layers = len(self.layers)
        rows, columns = [self.rows] * layers, [self.rows] * layers
        own: list[tuple[int, int] | None] = [None] * layers
        rows[-1] = wanted
        if nonzeros > OWN_MATRIX * total:
            return self.with_rows(rows, columns, own)
        before = min(self.rows, nonzeros + wanted)
        if layers > 1:
            rows[-2] = before
        # On several ranks, its columns are all own rows.
        columns[-1], own[-1] = self.rows if self.received else before, (0, 0)
        own_bytes = 2 * (8 * (nonzeros + wanted) + 8 * columns[-1]) + 8 * before
        return replace(self.with_rows(rows, columns, own), fixed_bytes=self.fixed_bytes + own_bytes)

    def of_matrices(self, matrices: Sequence[ChunkMatrix]) -> Sizes:
        """The same with the rows of matrices that were built."""
        return self.with_rows(
            [matrix.row_bounds[-1] for matrix in matrices],
            [matrix.column_bounds[-1] for matrix in matrices],
            [
                None
                if matrix.targets is None or matrix.thinned
                else (matrix.blocks.nbytes, sum(each.nbytes for each in matrix.adjoint_blocks))
                for matrix in matrices
            ],
        )


class TableBytes:
    """Memory of the tables and panels of an epoch, and of evaluating after it."""

    def __init__(self, sizes: Sizes, placement: Placement, recomputed: frozenset[int]) -> None:
        self._sizes, self._placement, self._recomputed = sizes, placement, recomputed
        self._layers = sizes.layers
        self._last = len(sizes.layers) - 1

    @property
    def most(self) -> int:
        """Bytes at the worst moment."""
        passes = self._forward, self._backward, self._evaluating
        return max(self._first, *(of(n) for n in range(self._last + 1) for of in passes))

    @property
    def _first(self) -> int:
        """While the first layer's operand gets its gradient, if anything is learnt by it."""
        if not self._sizes.learns:
            return 0
        return self._returning(0) + self._product(0) + self._input(0) + self._gradient(0)

    def _forward(self, n: int) -> int:
        """While a layer is computed; the last one's gradients are computed as well."""
        nbytes = self._multiplying(n) + self._following(n) + self._saved(n) + self._input(n + 1)
        if n < self._last:
            return nbytes
        return nbytes + self._gradient(n) + self._waiting(n) + self._jumps(n)

    def _backward(self, n: int) -> int:
        """While a layer gets its gradients, from those of the next layer's operand."""
        gradients = self._gradient(n + 1) + self._gradient(n) + self._waiting(n) + self._jumps(n)
        saved = self._saved(n) + self._product(n + 1) + self._input(n + 1)
        return self._returning(n + 1) + saved + gradients

    def _evaluating(self, n: int) -> int:
        """While it is computed and nothing is learnt."""
        scored = self._sizes.scored_bytes if n == self._last else 0
        if self._sizes.jumps:
            return self._forward(n) + scored
        # Nothing is recomputed if no products are saved, as they are for outputs of all layers.
        inputs = self._own_rows(n, "input") + self._own_rows(n + 1, "input")
        # Norms over all vertices go through a layer's product again.
        inputs += self._product(n) if self._layers[n].norms else 0
        return self._multiplying(n) + self._following(n) + inputs + scored

    def _in_memory(self, purpose: str, n: int) -> bool:
        return n <= self._last and purpose not in self._placement.on_disk

    def _size(self, rows: int, width: int) -> int:
        return self._sizes.itemsize * rows * width

    def _product(self, n: int) -> int:
        if not self._in_memory("product", n):
            return 0
        layer = self._layers[n]
        return self._size(layer.rows, layer.operand or layer.kept)

    def _own_rows(self, n: int, purpose: str) -> int:
        """Bytes of a layer's own input rows and destination scores, or of their gradients."""
        if not self._in_memory(purpose, n):
            return 0
        layer = self._layers[n]
        width = layer.given if n and layer.reads_own else 0
        return self._size(layer.rows, width + layer.heads.score_columns)

    def _input(self, n: int) -> int:
        if n in self._recomputed:
            layer = self._layers[n]
            in_memory = self._in_memory("input", n)
            return self._size(layer.rows, layer.heads.score_columns) if in_memory else 0
        return self._own_rows(n, "input")

    def _gradient(self, n: int) -> int:
        return self._own_rows(n, "gradient")

    def _panel(self, n: int) -> int:
        """Columns of a panel."""
        layer = self._layers[n]
        if "operand" not in self._placement.on_disk or not layer.operand:
            return layer.operand
        return self._placement.panel(layer.operand, self._sizes.itemsize, layer.heads.number)

    def _operand(self, n: int, rows: int) -> int:
        """Bytes of a layer's operand in memory; those of a panel, if it is on the disk."""
        if n > self._last:
            return 0
        return self._size(rows + self._sizes.received, self._panel(n))

    def _packed(self, n: int) -> int:
        """A panel of sources as attention packs them; what is sent to them takes as much."""
        layer = self._layers[n]
        if not layer.heads:
            return 0
        rows = layer.columns + self._sizes.received
        return rows * layer.heads.packed(self._panel(n), self._sizes.itemsize)

    def _multiplying(self, n: int) -> int:
        """Bytes of the operands of a layer's product during the product."""
        operand, packed = self._operand(n, self._layers[n].columns), self._packed(n)
        if packed and "operand" in self._placement.on_disk and not self._sizes.received:
            return packed  # chunk after chunk
        return operand + packed

    def _following(self, n: int) -> int:
        """Bytes of the next layer's operand; 0 if operands are on the disk."""
        if not self._in_memory("operand", n + 1):
            return 0
        return self._operand(n + 1, self._layers[n + 1].columns)

    def _saved(self, n: int) -> int:
        """Memory of what all layers up to this one save for backward."""
        nbytes = 0
        for number, layer in enumerate(self._layers[: n + 1]):
            nbytes += self._product(number) + self._input(number)
            # Its largest rows, or its weights, get their gradients by the operand.
            again = (layer.reduces or layer.heads) and (number or self._sizes.learns)
            if again and self._in_memory("operand", number):
                nbytes += self._operand(number, layer.columns)
        return nbytes

    def _jumps(self, n: int) -> int:
        """Gradients of layers' outputs, from model outputs that depend on all of them."""
        if not self._sizes.jumps or not self._in_memory("gradient", n):
            return 0
        before = self._layers[: n if n == self._last else n + 1]
        return sum(self._size(layer.rows, layer.made) for layer in before)

    def _waiting(self, n: int) -> int:
        """The gradient of a layer's output, which waits for that of its norms' moments."""
        layer = self._layers[n]
        waits = layer.norms and (n == self._last or not self._layers[n + 1].reads_own)
        return self._size(layer.rows, layer.made) if waits and self._in_memory("gradient", n) else 0

    def _returning(self, n: int) -> int:
        """Bytes that the gradient of a layer's operand takes during its computation."""
        if n > self._last:
            return 0
        several, layer = self._sizes.received > 0, self._layers[n]
        operand = self._operand(n, layer.columns)
        if layer.heads:
            # The packed sources and their gradients; then gradients from other ranks. The operand
            # itself, too, if it is in memory.
            whole = "operand" in self._placement.on_disk and not several
            return 2 * self._packed(n) + (0 if whole else operand * (1 + several))
        if layer.reduces:
            # The operand, its gradient, and what other ranks send for that.
            return (2 + several) * operand
        # The gradient of the product is spread over all rows.
        return self._operand(n, self._sizes.rows)


class Traffic(NamedTuple):
    """Bytes of files that an epoch of training reads and writes, on one rank."""

    read: int
    written: int


def epoch_traffic(
    sizes: Sizes, placement: Placement, recomputed: frozenset[int], chunks: int
) -> Traffic:
    """Bytes that forward and backward move between memory and disk; exact if the sizes are."""
    layers, moved = sizes.layers, {"read": 0, "written": 0}
    propagated = sizes.propagated_bytes if "propagated" in placement.on_disk else 0

    def size(purpose: str, rows: int, width: int) -> int:
        return rows * width * sizes.itemsize if purpose in placement.on_disk else 0

    def move(nbytes: int, *, reads: int = 0, writes: int = 0) -> None:
        moved["read"] += reads * nbytes
        moved["written"] += writes * nbytes

    def input_bytes(number: int) -> int:
        """Bytes of reading a layer's own input rows once, or of recomputing them."""
        layer = layers[number]
        if not number:
            return propagated + layer.reads_own * sizes.source_bytes
        if not layer.reads_own:
            return 0
        if number in recomputed:
            return recomputed_bytes(number - 1)
        return size("input", layer.rows, layer.given)

    def recomputed_bytes(number: int) -> int:
        """Bytes of reading what a layer is recomputed from."""
        layer = layers[number]
        return size("product", layer.rows, layer.operand) + input_bytes(number)

    def multiply(layer: LayerSizes, matrix_bytes: int, rows: int) -> None:
        """Each panel takes the matrix once; several make a table of their results."""
        panel = placement.panel(layer.operand, sizes.itemsize, layer.heads.number)
        panels = len(panels_of(layer.operand, panel))
        move(matrix_bytes, reads=panels)
        if panels > 1:
            move(size("operand", rows, layer.operand), reads=1, writes=1)

    for number, layer in enumerate(layers):
        passes = sizes.passes(number)
        move(input_bytes(number), reads=passes)
        if number and layer.reads_own:
            move(size("input", layer.rows, layer.given), writes=number not in recomputed)
            move(size("gradient", layer.rows, layer.given), reads=1, writes=1)
        # The gradient of what a layer makes waits for those of its norms' moments.
        output = size("gradient", layer.rows, layer.made)
        move(output, reads=layer.norms, writes=layer.norms > 0)
        if not layer.operand:
            continue
        thinned = layer.own_matrix is None and layer.rows < sizes.rows
        forward, adjoint = layer.own_matrix or (0, 0)
        if "matrix" in placement.on_disk and layer.own_matrix is None:
            # Row offsets of a block begin at 0; rows of others are one block of the transpose.
            forward = adjoint = sizes.matrix_bytes // sizes.sides + 8 * chunks
            adjoint += 8 * (sizes.received + 1) if sizes.sides > 1 and sizes.received else 0
        product = size("product", layer.rows, layer.operand)
        operand = size("operand", layer.columns, layer.operand)
        scores = size("input", layer.rows, layer.heads.score_columns)
        move(operand + scores, reads=1, writes=1)
        multiply(layer, forward, layer.rows)
        # A product is saved, and its layer recomputed from it; its gradient overwrites it. The
        # last layer's gradient comes from the product that is in memory, unless norms need
        # another pass over it. The first pass of all has it in memory, too.
        move(product, reads=passes - 1, writes=passes > 1)
        if not (number or sizes.learns):
            continue
        move(product, reads=1, writes=1)
        if layer.reduces or layer.heads:
            # The saved operand says again which rows are largest, or what they weigh.
            move(operand + scores, reads=1)
            scores = size("gradient", layer.rows, layer.heads.score_columns)
            move(scores, reads=1, writes=1)
            multiply(layer, forward, layer.columns)
        else:
            move(size("operand", sizes.rows * thinned, layer.operand), reads=1, writes=1)
            multiply(layer, adjoint, sizes.rows if thinned else layer.columns)
    for number in range(len(layers) - 1) if sizes.jumps else ():
        # A layer's output is recomputed for the model's, and its gradient from them is saved.
        move(recomputed_bytes(number), reads=1)
        output = size("gradient", layers[number].rows, layers[number + 1].given)
        move(output, reads=1, writes=1)
    if layers[0].operand:
        move(sizes.source_bytes, reads=1 + sizes.learns)
    return Traffic(moved["read"], moved["written"])
