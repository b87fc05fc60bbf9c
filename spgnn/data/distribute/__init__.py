"""Every rank's share of a graph: handed out by rank 0, or opened from a directory of parts."""

from __future__ import annotations

from spgnn.data.distribute.arrange import Arrangement
from spgnn.data.distribute.columns import of_columns
from spgnn.data.distribute.induced import induced, renumbered
from spgnn.data.distribute.pairs import (
    Directory,
    Divided,
    Pairs,
    divided,
    held_out,
    held_out_of,
)
from spgnn.data.distribute.parts import from_shards
from spgnn.data.distribute.scatter import scatter
from spgnn.data.distribute.share import RankShare, Slices

__all__ = [
    "Arrangement",
    "Directory",
    "Divided",
    "Pairs",
    "RankShare",
    "Slices",
    "divided",
    "from_shards",
    "held_out",
    "held_out_of",
    "induced",
    "of_columns",
    "renumbered",
    "scatter",
]
