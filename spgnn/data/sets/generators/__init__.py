"""Seeded graphs: a block model, R-MAT, and stand-ins for graphs too large to ship."""

from __future__ import annotations

from spgnn.data.generators.block_model import block_model
from spgnn.data.generators.rmat import rmat
from spgnn.data.generators.stand_ins import STAND_INS, stand_in

__all__ = ["STAND_INS", "block_model", "rmat", "stand_in"]
