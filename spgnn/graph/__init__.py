"""A graph distributed over ranks: its vertices, its halo, its matrices."""

from __future__ import annotations

from spgnn.graph.distgraph import DistGraph
from spgnn.graph.matrices import MatrixKind

__all__ = ["DistGraph", "MatrixKind"]
