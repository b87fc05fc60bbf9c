"""Attention over distributed matrices: each rank weighs what it has, and unfinished sums meet."""

from __future__ import annotations

from spgnn.attention.engine import Attention
from spgnn.attention.operators import EdgeDropout, attend

__all__ = ["Attention", "EdgeDropout", "attend"]
