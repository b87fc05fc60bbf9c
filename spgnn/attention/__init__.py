"""Attention over distributed matrices: each rank weighs what it has, and unfinished sums meet."""

from __future__ import annotations

from spgnn.attention.engine import Attention
from spgnn.attention.operators import EdgeDropout, Weighed, attend, attend_v2
from spgnn.attention.pieces import Pieces, check_attention, pieces
from spgnn.attention.scores import head_scores

__all__ = [
    "Attention",
    "EdgeDropout",
    "Pieces",
    "Weighed",
    "attend",
    "attend_v2",
    "check_attention",
    "head_scores",
    "pieces",
]
