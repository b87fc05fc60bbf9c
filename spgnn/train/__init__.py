"""Training: tasks, a trainer, and from a configuration to a report."""

from __future__ import annotations

from spgnn.config import TrainConfig, Training
from spgnn.train.links import LinkPrediction
from spgnn.train.run import train
from spgnn.train.setup import prepare
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
    "prepare",
    "train",
]
