"""Pairs of vertices, as links to be scored: each at its target's owner, which fetches sources."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, Mesh
from spgnn.data.adapters import EdgeList, pairs_of_vertices
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.graph.codecs import GraphCodecs
from spgnn.graph.dist_vertices import DistVertices
from spgnn.graph.edges import Edges
from spgnn.graph.outputs import marked
from spgnn.graph.parameters import note_loss
from spgnn.graph.tracked import tracked
from spgnn.layout import Int64Array, RowLayout
from spgnn.pattern import described
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix


def matrix_of_sources(sources: Int64Array, layout: RowLayout, comm: Communicator) -> DistMatrix:
    """A matrix whose halo are the rows that this rank needs. Collective.

    Parameters
    ----------
    sources : int64 [any]
        Rows of all ranks.
    """
    columns = torch.from_numpy(np.unique(sources))
    block = CSR.of(torch.tensor([0, len(columns)]), columns, (1, layout.rows))
    # One row a rank: nobody multiplies by it.
    rows = RowLayout(np.arange(comm.size + 1))
    mesh = Mesh.build(comm, Algorithm().axes(comm.size))
    return DistMatrix.build(block, layout, mesh, row_layout=rows)


class Sources(DistVertices):
    """The vertices that some pairs start at: own ones, and a halo of those of other ranks."""

    def __init__(self, vertices: DistVertices, A: DistMatrix, codecs: GraphCodecs) -> None:
        self._layout, self._matrix, self._codecs = vertices.layout, A, codecs
        self.comm, self.vertex_ids = vertices.comm, vertices.vertex_ids
        self.device = vertices.device

    @property
    def layout(self) -> RowLayout:
        """The layout of rows over ranks."""
        return self._layout

    @property
    def A(self) -> DistMatrix:
        """The matrix whose halo holds the sources of other ranks."""
        return self._matrix

    def exact(self) -> AbstractContextManager[None]:
        """Inside, rows arrive as they were sent."""
        return self._codecs.policy.exact()

    def looked_up(self, rows: Tensor) -> Tensor:
        """Rows that scores of pairs come of: their mean loss is over the pairs of all ranks."""
        sources: Tensor = marked(rows, self.comm, note_loss)
        return sources


def checked_pairs(index: Any, labels: Any, vertices: int) -> EdgeList:
    """Pairs that are given, and their labels."""
    record = {"edge_label_index": index, "edge_label": labels}
    pairs = pairs_of_vertices(record, vertices, vertices)
    if "edge_label_index" not in pairs:
        shown = described(index) if hasattr(index, "dtype") else type(index).__name__
        raise InputError(
            f"edge_label_index must be integers [2, pairs] from 0 to {vertices - 1}, vertices of "
            f"the whole graph, got {shown}"
        )
    if labels is not None and "edge_label" not in pairs:
        shown = described(labels) if hasattr(labels, "dtype") else type(labels).__name__
        count = pairs["edge_label_index"].shape[1]
        raise InputError(f"edge_label must be a tensor [{count}, …], one a pair, got {shown}")
    attributes = {} if labels is None else {"edge_label": pairs["edge_label"]}
    source, target = pairs["edge_label_index"].numpy()
    return EdgeList(source, target, attributes)


def own_pairs(edges: Edges, vertices: DistVertices, codecs: GraphCodecs) -> Edges:
    """Pairs in rows of the whole graph as those of own targets, whose sources fetch a halo."""
    comm, layout = vertices.comm, vertices.layout
    own = layout.range(comm.rank)
    if comm.size == 1:
        return Edges(edges.index - own[0], edges.attributes).to(vertices.device)
    A = matrix_of_sources(edges.index[0].numpy(), layout, comm).to(vertices.device)
    sources = Sources(vertices, A, codecs)
    here = edges.to(vertices.device).on_halo(sources._received, own)
    return Edges(tracked(here.index, sources), here.attributes)
