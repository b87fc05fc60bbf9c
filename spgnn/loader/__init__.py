"""Training on neighbourhoods of a few vertices at a time: samplers, loaders, tables of features."""

from __future__ import annotations

from spgnn.loader.batch import Batch
from spgnn.loader.cache import CachedRows
from spgnn.loader.disk_pattern import DiskPattern, degrees_of
from spgnn.loader.historical import History
from spgnn.loader.layerwise import FastGCNSampler, LadiesSampler
from spgnn.loader.links import LinkNeighborLoader, NegativeSampler
from spgnn.loader.loader import NeighborLoader
from spgnn.loader.modes import Clusters
from spgnn.loader.packed import PackedRows
from spgnn.loader.ranks import RemoteRows
from spgnn.loader.rows import DiskRows, MemoryRows, Rows
from spgnn.loader.sampling import Draw, LaborSampler, NeighborSampler, Sample
from spgnn.loader.subgraphs import ClusterSampler, SaintSampler

__all__ = [
    "Batch",
    "CachedRows",
    "ClusterSampler",
    "Clusters",
    "DiskPattern",
    "DiskRows",
    "Draw",
    "FastGCNSampler",
    "History",
    "LaborSampler",
    "LadiesSampler",
    "LinkNeighborLoader",
    "MemoryRows",
    "NegativeSampler",
    "NeighborLoader",
    "NeighborSampler",
    "PackedRows",
    "RemoteRows",
    "Rows",
    "SaintSampler",
    "Sample",
    "degrees_of",
]
