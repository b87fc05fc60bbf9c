"""Plans for ranks that do not exist: what a configuration would cost, and which is best."""

from __future__ import annotations

from spgnn.machine import Machine, read_machine, write_machine
from spgnn.plan.choose import Choice, Planner, PricedPlan
from spgnn.plan.predict import Prediction, predict

__all__ = [
    "Choice",
    "Machine",
    "Planner",
    "Prediction",
    "PricedPlan",
    "predict",
    "read_machine",
    "write_machine",
]
