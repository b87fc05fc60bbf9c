"""Rows of features wherever they lie: memory, a disk, other ranks; and caches before them."""

from spgnn.store.disk import DiskRows
from spgnn.store.rows import Counts, MemoryRows, Pending, Rows

__all__ = ["Counts", "DiskRows", "MemoryRows", "Pending", "Rows"]
