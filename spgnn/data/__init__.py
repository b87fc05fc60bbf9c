"""Graphs: records, formats, data sets, normalisation, directories of parts."""

from __future__ import annotations

from spgnn.data.adapters import from_dgl, from_ogb, from_pyg, from_scipy
from spgnn.data.graph import Graph, GraphBlock
from spgnn.data.load import load_dataset, open_source
from spgnn.data.shards import open_shards, write_shards

__all__ = [
    "Graph",
    "GraphBlock",
    "from_dgl",
    "from_ogb",
    "from_pyg",
    "from_scipy",
    "load_dataset",
    "open_shards",
    "open_source",
    "write_shards",
]
