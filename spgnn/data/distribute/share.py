"""What one rank holds of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spgnn.data.graph import VertexData
from spgnn.data.meta import GraphMeta
from spgnn.layout import RowLayout
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class RankShare:
    """What one rank of a P/c × c mesh holds of a graph.

    Attributes
    ----------
    meta : GraphMeta
        Its parts are the P/c block rows.
    layout : RowLayout
        Rows over all P ranks: each block row in c slices of about equally many column entries.
    adjacency : CSR [own rows, n], or ``None`` once it has served
    vertex_ids : Tensor int64 [own rows]
        Original ids of this rank's vertices.
    data : VertexData
        Their features, labels and masks.
    """

    meta: GraphMeta
    layout: RowLayout
    adjacency: CSR | None
    vertex_ids: Tensor
    data: VertexData
