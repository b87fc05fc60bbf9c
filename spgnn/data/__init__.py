"""Graphs: records, readers, generators, normalisation, shards."""

from __future__ import annotations

from spgnn.data.adapters import from_dgl, from_ogb, from_pyg, from_scipy
from spgnn.data.formats import read_graph
from spgnn.data.graph import Graph, GraphBlock
from spgnn.data.load import load_dataset
from spgnn.data.meta import GraphMeta
from spgnn.data.shards import open_shards, write_shards

__all__ = [
    "Graph",
    "GraphBlock",
    "GraphMeta",
    "from_dgl",
    "from_ogb",
    "from_pyg",
    "from_scipy",
    "load_dataset",
    "open_shards",
    "read_graph",
    "write_shards",
]
