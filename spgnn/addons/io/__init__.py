"""Graphs in text, Parquet and Arrow files and from the internet; through a disk if too large."""

import lazy_loader

from spgnn.registry import COMMANDS, DOWNLOADS, GRAPH_METHODS, OPENERS, READERS, WRITERS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

READERS.add(".mtx", "spgnn.addons.io.edge_files:MatrixMarket")
READERS.add(".graph", "spgnn.addons.io.edge_files:MetisGraph")
for _suffix in (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el", ".wel"):
    READERS.add(_suffix, "spgnn.addons.io.edge_files:EdgeList")
for _suffix in (".parquet", ".pq", ".arrow", ".feather", ".ipc"):
    READERS.add(_suffix, "spgnn.addons.io.parquet:TabularEdges")
WRITERS.add(".parquet", "spgnn.addons.io.parquet:TableWriter")
GRAPH_METHODS.add("vertex_names", "spgnn.addons.io.parquet:vertex_names")
OPENERS.add("through disk", "spgnn.addons.io.through_disk:open_through_disk")
COMMANDS.add(
    "download",
    (
        "Fetch a public data set and keep it as .npz.",
        "spgnn.addons.io.downloads:run_download",
        "spgnn.addons.io.options:Download",
    ),
)
for _name in ("cora", "citeseer", "pubmed"):
    DOWNLOADS.add(_name, "spgnn.addons.io.downloads:load_planetoid")
DOWNLOADS.add("reddit", "spgnn.addons.io.downloads:load_reddit")
for _name in ("ogbn-arxiv", "ogbn-products", "ogbn-papers100M"):
    DOWNLOADS.add(_name, "spgnn.addons.io.downloads:load_ogb")
