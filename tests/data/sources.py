"""The oracle of every source: the graph itself."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from spgnn.data.graph import MASKS, Graph, VertexData
from spgnn.data.source import GraphSource
from spgnn.data.structure import stack_rows
from spgnn.sparse import CSR, take_rows
from tests.data.strategies import assert_same_csr, assert_same_vertices


def check_source(source: GraphSource, graph: Graph, data: st.DataObject) -> None:
    """Whatever a source hands out is what the graph has there, bit for bit."""
    n = graph.vertices
    assert_same_csr(source.structure(), graph.adjacency)
    assert_same_csr(source.structure(), graph.adjacency)
    assert (source.vertex_ids is None) == (graph.vertex_ids is None)
    if graph.vertex_ids is not None:
        assert torch.equal(source.vertex_ids, graph.vertex_ids)
    ids = torch.tensor(
        data.draw(st.lists(st.integers(0, n - 1), max_size=8)) if n else [], dtype=torch.int64
    )
    first = data.draw(st.integers(0, n))
    for wanted in (ids, slice(first, data.draw(st.integers(first, n)))):
        assert_same_vertices(source.rows(wanted), VertexData(**graph.take(wanted)))
        rows = torch.arange(n)[wanted]
        assert_same_csr(source.adjacency(wanted), take_rows(graph.adjacency, rows))
    check_pieces(source, graph, data.draw(st.integers(1, 5)))
    assert_same_vertices(source.graph(), graph)
    assert_same_csr(source.graph().adjacency, graph.adjacency)


def check_pieces(source: GraphSource, graph: Graph, rows: int) -> None:
    """The pieces, one after another, are the graph."""
    pieces = list(source.pieces(rows))
    assert [first for first, _ in pieces] == list(range(0, max(graph.vertices, 1), rows))
    for name in ("x", "y", *MASKS):
        found = [getattr(piece, name) for _, piece in pieces]
        whole = getattr(graph, name)
        if whole is None:
            assert found == [None] * len(found)
        elif isinstance(whole, CSR):
            assert_same_csr(stack_rows(found), whole)
        else:
            np.testing.assert_array_equal(torch.cat(found), whole)
