"""Partitioners of vertices, and exact reports of any partition."""

from __future__ import annotations

from spgnn.partition.labels import permutation, read_labels, write_labels
from spgnn.partition.methods import METHODS, partition, place
from spgnn.partition.morton import morton
from spgnn.partition.vertex_cut import cut_vertices
from spgnn.partition.volume import report

__all__ = [
    "METHODS",
    "cut_vertices",
    "morton",
    "partition",
    "permutation",
    "place",
    "read_labels",
    "report",
    "write_labels",
]
