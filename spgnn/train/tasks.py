"""The task that the flags ask for."""

from __future__ import annotations

from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.train.label_propagation import LabelPropagation
from spgnn.train.links import LinkPrediction
from spgnn.train.setup import Problem
from spgnn.train.task import GraphTask, NodeClassification


def task_of(config: TrainConfig, problem: Problem, comm: Communicator) -> GraphTask:
    """What the training command trains. Collective.

    Raises
    ------
    InputError
        As the tasks do; on all ranks alike.
    """
    if config.aim.task == "links":
        return LinkPrediction(config, problem, comm)
    if config.aim.label_propagation:
        return LabelPropagation(config, problem, comm)
    return NodeClassification(config, problem, comm)
