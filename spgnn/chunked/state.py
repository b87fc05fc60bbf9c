"""Tables kept from forward to backward, and the data of the vertices, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from spgnn.chunked.matrix import PartMatrix
from spgnn.chunked.room import Room
from spgnn.chunked.table import Table
from spgnn.sparse import CSR


class Source(Protocol):
    """Features of this rank's vertices, some rows at a time."""

    def rows(self, part: int) -> Tensor | CSR:
        """Those of a chunk [rows of it, features]."""


@dataclass(frozen=True, eq=False)
class Layers:
    """Matrices of the layers of a model.

    Attributes
    ----------
    matrices : list of PartMatrix
        One for each layer; only the rows of the first matter if features are propagated.
    bounds : tuple of int [K + 1]
        Bounds of the chunks of the rank's rows.
    """

    matrices: list[PartMatrix]
    bounds: tuple[int, ...]

    def chosen(self, layer: int, part: int) -> Tensor | None:
        """Rows of a chunk that a layer makes, counted from its first row; ``None``: all."""
        return self.matrices[layer].chosen(part)

    def within(self, layer: int, part: int) -> Tensor | None:
        """Positions of a layer's rows among those of the layer before; ``None``: the same rows."""
        wanted, given = self.chosen(layer, part), self.chosen(layer - 1, part)
        if wanted is None or given is None:
            return wanted
        return torch.searchsorted(given, wanted)


@dataclass(frozen=True, eq=False)
class Vertices:
    """Ids, scalings and features of this rank's vertices.

    Attributes
    ----------
    bounds : tuple of int [K + 1]
    ids : Tensor int64 [n], or int
        Original ids; if they are consecutive, the first one.
    row_scale, column_scale : Tensor [n], optional
        The matrix is diag(row_scale) (B + diag(loops)) diag(column_scale).
    features : Source
    propagated : Table, optional
        A·X; without it the first layer multiplies as the others do.
    received_ids : Tensor int64 [received], optional
        Original ids of the rows of other ranks, if dropout of edges needs them.
    """

    bounds: tuple[int, ...]
    ids: Tensor | int
    row_scale: Tensor | None
    column_scale: Tensor | None
    features: Source
    propagated: Table | None
    received_ids: Tensor | None = None

    def ids_of_columns(self, matrix: PartMatrix) -> Tensor:
        """Original ids of a matrix's columns, int64 [k + received]."""
        own = self.ids
        if isinstance(own, int):
            own = torch.arange(own, own + self.bounds[-1])
        own = own if matrix.sources is None else own[matrix.sources]
        return own if self.received_ids is None else torch.cat((own, self.received_ids))

    def ids_of(self, part: int, chosen: Tensor | None) -> Tensor:
        """Original ids of some rows of a chunk."""
        first, last = self.bounds[part : part + 2]
        if isinstance(self.ids, int):
            found = torch.arange(first + self.ids, last + self.ids)
        else:
            found = self.ids[first:last]
        return found if chosen is None else found[chosen]

    def scale(self, which: Tensor | None, part: int, chosen: Tensor | None) -> Tensor | None:
        """A scaling of some rows of a chunk, [rows, 1]."""
        if which is None:
            return None
        first, last = self.bounds[part : part + 2]
        found = which[first:last, None]
        return found if chosen is None else found[chosen]


class Piece(NamedTuple):
    """The rows of one chunk that one layer makes."""

    layers: Layers
    number: int
    part: int

    @property
    def chosen(self) -> Tensor | None:
        """Rows of the chunk; ``None``: all."""
        return self.layers.chosen(self.number, self.part)

    @property
    def inside(self) -> Tensor | None:
        """Of these, the rows that the next layer makes; ``None``: all."""
        return self.layers.within(self.number + 1, self.part)


class Aside:
    """Gradients that autograd accumulates apart from those of the parameters.

    Inside ``with aside:`` what is added to ``parameter.grad`` is collected here; outside,
    parameters have what they had.

    Parameters
    ----------
    parameters : iterable of Parameter
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._parameters = list(parameters)
        self._kept: list[Tensor | None] = [None] * len(self._parameters)

    def clear(self) -> None:
        """Forget what was collected."""
        self._kept = [None] * len(self._parameters)

    def __enter__(self) -> None:
        self._swap()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._swap()

    def add(self, scale: Tensor) -> None:
        """Add what was collected, times a number, to the parameters' own gradients; forget it."""
        for parameter, kept in zip(self._parameters, self._kept, strict=True):
            if kept is not None:
                found = kept * scale
                parameter.grad = found if parameter.grad is None else parameter.grad + found
        self.clear()

    def _swap(self) -> None:
        for place, parameter in enumerate(self._parameters):
            self._kept[place], parameter.grad = parameter.grad, self._kept[place]


class Kept:
    """Tables by layer.

    Parameters
    ----------
    room : Room
        Creates the tables, in memory or on the disk.
    heads : callable
        Number of attention heads of a layer; 0 without attention.

    Attributes
    ----------
    products : dict of Table
        Each layer's product, or its gradient.
    taken, skipped : dict of Table
        Each layer's own input rows, and their gradient.
    jumps : dict of Table
        Gradient of each layer's output from model outputs that depend on all layers.
    operands : dict of Table
        Operand of each layer that takes extremes or attends.
    ends, of_ends : dict of Table
        Destination scores, and their gradient.
    made : dict of Table
        Gradient of each layer's output, until those of its norms' moments are computed.
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
        """Release the tables that a layer's gradients no longer need."""
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
