"""Training on neighbourhoods of a few vertices at a time: loaders, samplers, tables of features."""

from __future__ import annotations

from spgnn.loader.batch import Batch
from spgnn.loader.cached_rows import CachedRows
from spgnn.loader.disk_pattern import DiskPattern
from spgnn.loader.feature_rows import DiskRows, MemoryRows
from spgnn.loader.historical import History
from spgnn.loader.link_loader import LinkNeighborLoader
from spgnn.loader.loader import NeighborLoader
from spgnn.loader.remote_rows import RemoteRows
from spgnn.loader.subgraphs import ClusterSampler

__all__ = [
    "Batch",
    "CachedRows",
    "ClusterSampler",
    "DiskPattern",
    "DiskRows",
    "History",
    "LinkNeighborLoader",
    "MemoryRows",
    "NeighborLoader",
    "RemoteRows",
]
