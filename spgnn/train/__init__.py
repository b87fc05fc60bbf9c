"""Training: a task, a trainer, and from flags to a report."""

from __future__ import annotations

from spgnn.config import TrainConfig, Training
from spgnn.train.links import LinkPrediction
from spgnn.train.run import main, task_of, train
from spgnn.train.setup import Problem, prepare
from spgnn.train.task import Criterion, GraphTask, Scores, Task
from spgnn.train.trainer import Trainer
from spgnn.train.vertices import LabelPropagation, NodeClassification

__all__ = [
    "Criterion",
    "GraphTask",
    "LabelPropagation",
    "LinkPrediction",
    "NodeClassification",
    "Problem",
    "Scores",
    "Task",
    "TrainConfig",
    "Trainer",
    "Training",
    "main",
    "prepare",
    "task_of",
    "train",
]
