"""Plans, and what runs them: every matrix is a product of stages ``L + R·Π·S``."""

from __future__ import annotations

from spgnn.exchange.algorithm import ALGOS, Algo, Algorithm
from spgnn.exchange.approximation import Codec, CodecSetting
from spgnn.exchange.executor import Executor, Workspace
from spgnn.exchange.layers import Layered, LayerPlan, layered
from spgnn.exchange.needs import (
    COVERS,
    Cover,
    Scheme,
    build,
    build_all,
    exchange_needs,
    needs_of,
    request_bytes,
    swap_counts,
    swap_rows,
)
from spgnn.exchange.peers import SCHEDULES, Peers, Schedule
from spgnn.exchange.plan import Carried, Hop, Names, Plan, Route, Stage, Traffic, carried_by_level
from spgnn.exchange.schemes import STRATEGIES, Strategy, fetch, grid
from spgnn.exchange.transport import EXACT, Exact, Handle, Step, Transport

__all__ = [
    "ALGOS",
    "COVERS",
    "EXACT",
    "SCHEDULES",
    "STRATEGIES",
    "Algo",
    "Algorithm",
    "Carried",
    "Codec",
    "CodecSetting",
    "Cover",
    "Exact",
    "Executor",
    "Handle",
    "Hop",
    "LayerPlan",
    "Layered",
    "Names",
    "Peers",
    "Plan",
    "Route",
    "Schedule",
    "Scheme",
    "Stage",
    "Step",
    "Strategy",
    "Traffic",
    "Transport",
    "Workspace",
    "build",
    "build_all",
    "carried_by_level",
    "exchange_needs",
    "fetch",
    "grid",
    "layered",
    "needs_of",
    "request_bytes",
    "swap_counts",
    "swap_rows",
]
