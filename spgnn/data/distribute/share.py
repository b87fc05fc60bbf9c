"""What one rank holds of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy.typing as npt
from torch import Tensor

from spgnn.data.graph import VertexData
from spgnn.data.meta import GraphMeta
from spgnn.layout import RowLayout
from spgnn.sparse import CSR


@dataclass(frozen=True)
class Slices:
    """How parts are cut into one slice for each rank.

    Attributes
    ----------
    parts : int
    each : int
        Slices of each part.
    shares : int
        Of these, so many neighbouring ones are multiplied together, by shares of feature columns.
    """

    parts: int
    each: int
    shares: int = 1

    @property
    def weighted(self) -> bool:
        """Whether it takes weights to cut them."""
        return self.each > self.shares

    def cut(self, parts: RowLayout, entries: npt.ArrayLike | None) -> RowLayout:
        """Slices of about equally many column entries, and in these shares of as many rows."""
        return parts.split(self.each // self.shares, entries).split(self.shares)


@dataclass(frozen=True, eq=False)
class RankShare:
    """What one rank of a P/c × c mesh holds of a graph.

    Attributes
    ----------
    meta : GraphMeta
        Its parts are the P/c block rows.
    layout : RowLayout
        Rows over all P ranks: each block row in c slices of about equally many column entries,
        and these, where ranks share feature columns, in as many of equally many rows.
    adjacency : CSR [own rows, n], or ``None`` once it has served
    vertex_ids : Tensor int64 [own rows]
        Original ids of this rank's vertices.
    data : VertexData
        Their features, labels and masks.
    edge_labels : Tensor int32 [nnz], optional
        The part of each nonzero of the adjacency, where such were given.
    """

    meta: GraphMeta
    layout: RowLayout
    adjacency: CSR | None
    vertex_ids: Tensor
    data: VertexData
    edge_labels: Tensor | None = None
