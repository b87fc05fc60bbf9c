"""What the layers of a model work on, and what is known of the vertices, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from spgnn.parts.matrix import PartMatrix
from spgnn.parts.table import Table
from spgnn.sparse import CSR


class Source(Protocol):
    """Features of this rank's vertices, some rows at a time."""

    def rows(self, part: int) -> Tensor | CSR:
        """Those of a part [rows of it, features]."""


@dataclass(frozen=True, eq=False)
class Layers:
    """What each layer of a model works on.

    Attributes
    ----------
    matrices : list of PartMatrix
        One a layer; of the first nothing but the rows counts if features are propagated.
    bounds : tuple of int [K + 1]
        Parts of the rank's rows.
    """

    matrices: list[PartMatrix]
    bounds: tuple[int, ...]

    def chosen(self, layer: int, part: int) -> Tensor | None:
        """Which rows of a part a layer makes, numbers in the part, rising; ``None``: all."""
        return self.matrices[layer].chosen(part)

    def within(self, layer: int, part: int) -> Tensor | None:
        """Where the rows of a layer are among those of the layer before it; ``None``: the same."""
        wanted, given = self.chosen(layer, part), self.chosen(layer - 1, part)
        if wanted is None or given is None:
            return wanted
        return torch.searchsorted(given, wanted)


@dataclass(frozen=True, eq=False)
class Vertices:
    """What is known of this rank's vertices.

    Attributes
    ----------
    bounds : tuple of int [K + 1]
    ids : Tensor int64 [n], or int
        Original ids; a number if they follow one another from it.
    row_scale, column_scale : Tensor [n], optional
        The matrix is diag(row_scale) (B + diag(loops)) diag(column_scale).
    features : Source
    propagated : Table, optional
        A·X; without, the first layer multiplies as the others do.
    received_ids : Tensor int64 [received], optional
        Original ids of the rows of other ranks, where dropout of edges asks for them.
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
        """Original ids of some rows of a part."""
        first, last = self.bounds[part : part + 2]
        if isinstance(self.ids, int):
            found = torch.arange(first + self.ids, last + self.ids)
        else:
            found = self.ids[first:last]
        return found if chosen is None else found[chosen]

    def scale(self, which: Tensor | None, part: int, chosen: Tensor | None) -> Tensor | None:
        """A scaling of some rows of a part, [rows, 1]."""
        if which is None:
            return None
        first, last = self.bounds[part : part + 2]
        found = which[first:last, None]
        return found if chosen is None else found[chosen]


class Piece(NamedTuple):
    """The rows of one part that one layer makes."""

    layers: Layers
    number: int
    part: int

    @property
    def chosen(self) -> Tensor | None:
        """Which rows of the part; ``None``: all."""
        return self.layers.chosen(self.number, self.part)

    @property
    def inside(self) -> Tensor | None:
        """Of these, the rows that the next layer makes; ``None``: all."""
        return self.layers.within(self.number + 1, self.part)
