"""Rows of features wherever they lie: memory, a disk, other ranks; and caches before them."""

from spgnn.store.cached import CachedRows
from spgnn.store.disk import DiskRows
from spgnn.store.neighbors import DiskPattern
from spgnn.store.optimum import Optimum
from spgnn.store.packed import PackedRows, packed
from spgnn.store.policy import POLICIES, Policy, hits, optimal_hits
from spgnn.store.remote import RemoteRows
from spgnn.store.rows import Counts, MemoryRows, Pending, Rows
from spgnn.store.stacked import StackedRows
from spgnn.store.visits import policy_for, uses, visit_probability

__all__ = [
    "POLICIES",
    "CachedRows",
    "Counts",
    "DiskPattern",
    "DiskRows",
    "MemoryRows",
    "Optimum",
    "PackedRows",
    "Pending",
    "Policy",
    "RemoteRows",
    "Rows",
    "StackedRows",
    "hits",
    "optimal_hits",
    "packed",
    "policy_for",
    "uses",
    "visit_probability",
]
