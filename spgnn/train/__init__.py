"""Training: a task, a trainer, and from flags to a report."""

from __future__ import annotations

from spgnn.config import TrainConfig, Training
from spgnn.train.label_propagation import LabelPropagation
from spgnn.train.links import LinkPrediction
from spgnn.train.loop import Trainer
from spgnn.train.objective import Criterion
from spgnn.train.run import main, train
from spgnn.train.setup import Problem, prepare
from spgnn.train.task import GraphTask, NodeClassification, Scores, Task
from spgnn.train.tasks import task_of

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
