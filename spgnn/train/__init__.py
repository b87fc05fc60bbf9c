"""Training: tasks, a trainer, and from a configuration to a report."""

from __future__ import annotations

from spgnn.config import TrainConfig
from spgnn.train.checkpoint import load, save
from spgnn.train.run import train
from spgnn.train.task import Task
from spgnn.train.trainer import Trainer

__all__ = [
    "Task",
    "TrainConfig",
    "Trainer",
    "load",
    "save",
    "train",
]
