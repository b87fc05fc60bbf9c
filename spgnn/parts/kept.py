"""The tables that lie between forward and backward."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from spgnn.parts.layers import Layers
from spgnn.parts.room import Room
from spgnn.parts.table import Table


class Kept:
    """Tables by layer.

    Parameters
    ----------
    room : Room
        Says where they lie.
    heads : callable
        How many heads a layer has, if it has any.

    Attributes
    ----------
    products : dict of Table
        What each layer multiplied, or the gradient of that.
    taken, skipped : dict of Table
        What each layer looks at beside its product, and the gradient of that.
    jumps : dict of Table
        The gradient that what each layer makes has from the outputs, which look at all layers.
    operands : dict of Table
        What a layer took the largest of, or weighed.
    ends, of_ends : dict of Table
        What rows say of their own scores, and the gradient of that.
    made : dict of Table
        The gradient of what a layer makes, while those of its norms' moments are looked for.
    """

    def __init__(self, room: Room, heads: Callable[[int], int]) -> None:
        self._room, self._heads = room, heads
        self.products: dict[int, Table] = {}
        self.taken: dict[int, Table] = {}
        self.skipped: dict[int, Table] = {}
        self.jumps: dict[int, Table] = {}
        self.operands: dict[int, Table] = {}
        self.made: dict[int, Table] = {}
        self.ends: dict[int, Table] = {}
        self.of_ends: dict[int, Table] = {}

    def product(self, number: int, layers: Layers, Z: Tensor) -> Table:
        """For a product, then its gradient, which a symmetric matrix is multiplied by."""
        if number not in self.products:
            matrix = layers.matrices[number]
            extra = 0 if matrix.thinned or matrix.transposed is not None else matrix.halo_rows
            self.products[number] = self._room.table(
                "product", matrix.row_bounds, Z, extra, heads=self._heads(number)
            )
        return self.products[number]

    def into(
        self,
        kept: dict[int, Table],
        number: int,
        purpose: str,
        bounds: tuple[int, ...],
        like: Tensor,
        *,
        panel: int | None = None,
    ) -> Table:
        """The table of a layer, made when it is first asked for."""
        if number not in kept:
            kept[number] = self._room.table(purpose, bounds, like, panel=panel)
        return kept[number]

    def done(self, number: int) -> None:
        """Give up what nobody looks at once a layer's gradients are made."""
        places = (self.products, number + 1), (self.taken, number), (self.skipped, number + 1)
        following = self.operands, self.ends, self.of_ends
        for kept, at in (*places, (self.jumps, number), *((k, number + 1) for k in following)):
            release(kept.pop(at, None))

    def forget(self) -> None:
        """Give up everything."""
        of_layers = self.products, self.taken, self.skipped, self.jumps, self.made
        for kept in (*of_layers, self.operands, self.ends, self.of_ends):
            while kept:
                kept.popitem()[1].release()


def release(table: Table | None) -> None:
    """Give up a table, if there is one."""
    if table is not None:
        table.release()
