"""Seeded graphs: a block model, R-MAT, and stand-ins for graphs too large to ship."""

from __future__ import annotations

from spgnn.data.sets.generators.block_model import block_model
from spgnn.data.sets.generators.by_name import NAMES, generate
from spgnn.data.sets.generators.rmat import rmat
from spgnn.data.sets.generators.stand_ins import STAND_INS, stand_in

__all__ = ["NAMES", "STAND_INS", "block_model", "generate", "rmat", "stand_in"]
