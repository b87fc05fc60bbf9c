"""Plans, and what runs them: every matrix is a product of stages ``L + R·Π·S``."""

from __future__ import annotations

from spgnn.exchange.algorithm import ALGOS, Algo, Algorithm
from spgnn.exchange.approximation import Codec, CodecSetting
from spgnn.exchange.fetch import asking, fetch
from spgnn.exchange.hierarchy import hierarchical
from spgnn.exchange.inspect import COVERS, Cover, Demand, demand, trade, trade_all
from spgnn.exchange.layers import Layered, LayerPlan, layered
from spgnn.exchange.levels import Level, by_level, carried_by_level
from spgnn.exchange.peers import SCHEDULES, Peers, Schedule
from spgnn.exchange.plan import Hop, Plan, Stage
from spgnn.exchange.route import Names, Route
from spgnn.exchange.schedule import Executor
from spgnn.exchange.schemes import STRATEGIES, Scheme, Strategy, build, build_all, grid
from spgnn.exchange.traffic import Carried, Traffic, Volume
from spgnn.exchange.transport import EXACT, Broadcast, Exact, Handle, Step, Transport
from spgnn.exchange.turn import Turn, Turned
from spgnn.exchange.workspace import Workspace

__all__ = [
    "ALGOS",
    "COVERS",
    "EXACT",
    "SCHEDULES",
    "STRATEGIES",
    "Algo",
    "Algorithm",
    "Broadcast",
    "Carried",
    "Codec",
    "CodecSetting",
    "Cover",
    "Demand",
    "Exact",
    "Executor",
    "Handle",
    "Hop",
    "LayerPlan",
    "Layered",
    "Level",
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
    "Turn",
    "Turned",
    "Volume",
    "Workspace",
    "asking",
    "build",
    "build_all",
    "by_level",
    "carried_by_level",
    "demand",
    "fetch",
    "grid",
    "hierarchical",
    "layered",
    "trade",
    "trade_all",
]
