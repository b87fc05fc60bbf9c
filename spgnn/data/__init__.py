"""Graphs: records, formats, data sets, normalisation, directories of parts."""

from __future__ import annotations

from spgnn.data.adapters import from_dgl, from_ogb, from_pyg, from_scipy
from spgnn.data.graph import Graph, GraphBlock
from spgnn.data.load import load_dataset, open_source
from spgnn.data.shards import open_shards, write_shards
from spgnn.data.source import GraphSource
from spgnn.data.through_disk import open_through_disk

__all__ = [
    "Graph",
    "GraphBlock",
    "GraphSource",
    "from_dgl",
    "from_ogb",
    "from_pyg",
    "from_scipy",
    "load_dataset",
    "open_shards",
    "open_source",
    "open_through_disk",
    "write_shards",
]
