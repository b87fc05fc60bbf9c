"""The one format of graphs on disk: directories that are partitioned, cut and trained on."""

from __future__ import annotations

from spgnn.data.shards.directory import (
    MappedPattern,
    ShardDirectory,
    is_graph_directory,
    open_shards,
)
from spgnn.data.shards.write import check_parts, partition_order, write_shards

__all__ = [
    "MappedPattern",
    "ShardDirectory",
    "check_parts",
    "is_graph_directory",
    "open_shards",
    "partition_order",
    "write_shards",
]
