"""Training: a task, a trainer, and from flags to a report."""

from __future__ import annotations

from spgnn.train.config import TrainConfig, Training, parse
from spgnn.train.loop import Trainer
from spgnn.train.run import main, train
from spgnn.train.setup import Problem, prepare
from spgnn.train.task import NodeClassification, Scores, Task

__all__ = [
    "NodeClassification",
    "Problem",
    "Scores",
    "Task",
    "TrainConfig",
    "Trainer",
    "Training",
    "main",
    "parse",
    "prepare",
    "train",
]
