"""Inspector and executor of one exchange: ``A = L + R·Π·S``."""

from __future__ import annotations

from spgnn.exchange.cover import COVERS, Cover
from spgnn.exchange.executor import Executor
from spgnn.exchange.plan import STRATEGIES, ExchangePlan, Strategy, Volume, build_plan

__all__ = [
    "COVERS",
    "STRATEGIES",
    "Cover",
    "ExchangePlan",
    "Executor",
    "Strategy",
    "Volume",
    "build_plan",
]
