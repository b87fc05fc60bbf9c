"""Training: tasks, a trainer, and from a configuration to a report."""

from __future__ import annotations

from spgnn.config import TrainConfig, Training
from spgnn.frontend.from_config import training_graph
from spgnn.train.links import LinkPrediction
from spgnn.train.run import task_of, train
from spgnn.train.task import Task
from spgnn.train.trainer import Trainer
from spgnn.train.vertices import LabelPropagation, NodeClassification

__all__ = [
    "LabelPropagation",
    "LinkPrediction",
    "NodeClassification",
    "Task",
    "TrainConfig",
    "Trainer",
    "Training",
    "task_of",
    "train",
    "training_graph",
]
