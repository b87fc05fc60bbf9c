"""A graph distributed over ranks: its vertices, its halo, its matrices."""

from __future__ import annotations

from spgnn.graph.distgraph import DistGraph, MatrixKind
from spgnn.graph.distribute import distribute

__all__ = ["DistGraph", "MatrixKind", "distribute"]
