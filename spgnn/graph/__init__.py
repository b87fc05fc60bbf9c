"""A graph distributed over ranks, and the protocol by which layers ask a graph for aggregations."""

from __future__ import annotations

from spgnn.graph.protocol import Aggregation, Graph, LayerGraph

__all__ = ["Aggregation", "Graph", "LayerGraph"]
