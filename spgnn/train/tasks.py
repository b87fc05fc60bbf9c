"""The task that the flags ask for."""

from __future__ import annotations

from spgnn.comm import Communicator
from spgnn.train.config import TrainConfig
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
    kind = LinkPrediction if config.aim.task == "links" else NodeClassification
    return kind(config, problem, comm)
