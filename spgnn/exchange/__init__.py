"""Plans, and what runs them: every matrix is a product of stages ``L + R·Π·S``."""

from __future__ import annotations

from spgnn.exchange.algorithm import Algo, Algorithm
from spgnn.exchange.codec import Codec, CodecSetting
from spgnn.exchange.executor import Executor
from spgnn.exchange.layers import Layered, layered
from spgnn.exchange.needs import (
    COVERS,
    Cover,
    build,
    build_all,
    exchange_needs,
    needs_of,
    request_bytes,
    swap_rows,
)
from spgnn.exchange.peers import Schedule
from spgnn.exchange.plan import Carried, Plan, Stage, carried_by_level
from spgnn.exchange.schemes import Strategy, fetch
from spgnn.exchange.transport import EXACT, Step

__all__ = [
    "COVERS",
    "EXACT",
    "Algo",
    "Algorithm",
    "Carried",
    "Codec",
    "CodecSetting",
    "Cover",
    "Executor",
    "Layered",
    "Plan",
    "Schedule",
    "Stage",
    "Step",
    "Strategy",
    "build",
    "build_all",
    "carried_by_level",
    "exchange_needs",
    "fetch",
    "layered",
    "needs_of",
    "request_bytes",
    "swap_rows",
]
