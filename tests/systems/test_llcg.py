"""Local steps, averages and corrections are what the formulas say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from systems.llcg import CorrectedTrainer, Server, average_parameters

import spgnn
from spgnn.addons.batches import NeighborLoader
from spgnn.addons.diskbatches import average_gradients
from spgnn.addons.diskbatches.batch_seconds import BatchSeconds
from spgnn.addons.diskbatches.batch_training import average_buffers
from spgnn.comm import connect
from spgnn.nn import BatchNorm, GraphSAGE
from spgnn.testing import run_ranks
from tests.addons.batches.graphs import CLASSES, F_IN, N
from tests.addons.batches.test_ranks import graph

PARTS = 3


def check_averages(rank: int) -> None:
    """Weights of 0 take part; parameters without a gradient get that of the others."""
    comm = connect()
    model = torch.nn.Linear(2, 1)
    weights = [2.0, 0.0, 3.0]
    if rank != 1:
        for p in model.parameters():
            p.grad = torch.full_like(p, rank + 1.0)
    loss, total = average_gradients(model, comm, weights[rank], torch.tensor(10.0 * rank))
    for p in model.parameters():
        torch.testing.assert_close(p.grad, torch.full_like(p, (2 * 1 + 3 * 3) / 5))
    assert (float(loss), float(total)) == (pytest.approx(3 * 20 / 5), 5.0)
    for p in model.parameters():
        p.data.fill_(rank)
    average_parameters(model, comm)
    for p in model.parameters():
        torch.testing.assert_close(p.detach(), torch.ones_like(p))
    norm = BatchNorm(2)
    for moments in (norm.module.running_mean, norm.module.running_var):
        moments.fill_(rank)
    norm.module.num_batches_tracked.fill_(10 - rank)
    average_buffers(norm, comm, 0.0)
    assert norm.module.running_mean.tolist() == [rank, rank]
    average_buffers(norm, comm, weights[rank])
    assert norm.module.running_mean.tolist() == pytest.approx([6 / 5] * 2)
    assert norm.module.running_var.tolist() == pytest.approx([6 / 5] * 2)
    assert norm.module.num_batches_tracked == 10
    average_gradients(model, comm, 0.0)
    assert all(not p.grad.any() for p in model.parameters())


def test_gradients_and_parameters_are_averaged():
    run_ranks(check_averages, PARTS)


class Task:
    """All that a trainer asks of a task, and no more."""

    loader: Any

    def __init__(self, model, comm):
        self.model, self.comm = model, comm

    def parameter_groups(self):
        return [{"params": list(self.model.parameters())}]

    def loss_of(self, batch):
        if batch is None:
            return None, 0.0
        out = self.model(batch.x, batch.layers)
        return F.cross_entropy(out, batch.y[: batch.batch_size]), float(batch.batch_size)


def check_correction(rank: int) -> None:
    comm = connect()
    labels = np.random.default_rng(0).integers(0, PARTS, N)
    whole = graph(weighted=False, sparse=False)
    given = spgnn.distribute(whole if rank == 0 else None, partition=labels, comm=comm)
    server = NeighborLoader(given, [-1, -1], "train_mask", batch_size=20, mode=Server()).strategy
    task = Task(GraphSAGE.of([F_IN, 6, CLASSES], seed=2), comm)
    for p in task.model.parameters():
        p.data += 0.01 * rank
    trainer = CorrectedTrainer.__new__(CorrectedTrainer)
    trainer.task, trainer.comm, trainer.steps_per_epoch = task, comm, 5
    trainer.optimizer = torch.optim.SGD(task.model.parameters(), lr=0.5)
    trainer.clock = BatchSeconds(comm, lambda: (0.0, 0.0))
    trainer.clock.begin()
    trainer._every, trainer._corrections, trainer._round = 2, server.steps, 0
    trainer._server, trainer._batches = server.loader, server.steps
    trainer._corrector = torch.optim.SGD(task.parameter_groups(), lr=9.0)
    before = comm.ledger.copy()
    for step in (0, 2):
        trainer.update(step, None, 0.0)
        assert trainer._round == 0
    mine = GraphSAGE.of([F_IN, 6, CLASSES], seed=2)
    for p in mine.parameters():
        p.data += 0.01
    trainer.update(1, None, 0.0)
    # What one process does on the whole graph.
    for batch in NeighborLoader(whole, [-1, -1], "train_mask", batch_size=20):
        F.cross_entropy(mine(batch.x, batch.layers), batch.y[: batch.batch_size]).backward()
        for p in mine.parameters():
            p.data -= 0.5 * p.grad
            p.grad = None
    for p, q in zip(task.model.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    trainer.update(4, None, 0.0)
    assert trainer._round == 2 * server.steps, "the end of an epoch"
    assert comm.ledger.since(before).of("alltoall").sent_bytes == 0, "the server has the graph"
    comm.check_agreement("models", **{n: p.detach() for n, p in task.model.named_parameters()})


def test_a_correction_is_an_average_and_exact_steps():
    run_ranks(check_correction, PARTS)
