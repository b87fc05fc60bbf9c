"""Plans, and what runs them: every matrix is a product of stages ``L + R·Π·S``."""

from __future__ import annotations

from spgnn.exchange.algorithm import Algorithm
from spgnn.exchange.codec import Codec
from spgnn.exchange.executor import Executor
from spgnn.exchange.layers import layered
from spgnn.exchange.needs import build, build_all, needs_of, swap_rows
from spgnn.exchange.plan import Plan, Stage
from spgnn.exchange.transport import EXACT, Step

__all__ = [
    "EXACT",
    "Algorithm",
    "Codec",
    "Executor",
    "Plan",
    "Stage",
    "Step",
    "build",
    "build_all",
    "layered",
    "needs_of",
    "swap_rows",
]
