"""Training: from flags to a report."""

from __future__ import annotations

from spgnn.train.config import TrainConfig, parse
from spgnn.train.loop import Trainer
from spgnn.train.run import main, train
from spgnn.train.setup import Problem, prepare

__all__ = ["Problem", "TrainConfig", "Trainer", "main", "parse", "prepare", "train"]
