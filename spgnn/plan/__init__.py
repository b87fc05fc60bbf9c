"""Plans for ranks that do not exist: what a configuration would cost, and which is best."""

from __future__ import annotations

from spgnn.plan.machine import Machine, read_machine, write_machine
from spgnn.plan.network import Network
from spgnn.plan.predict import Prediction, predict
from spgnn.plan.subject import Subject

__all__ = [
    "Machine",
    "Network",
    "Prediction",
    "Subject",
    "predict",
    "read_machine",
    "write_machine",
]
