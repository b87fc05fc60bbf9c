"""Gradients of which some are there before backward begins."""

from __future__ import annotations

import pytest
import torch

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.train.in_parts import InParts
from tests.chunked.runs import SMALL


def gradients(task: InParts) -> list[torch.Tensor]:
    found = [p.grad for p in task.model.parameters()]
    assert all(g is not None for g in found)
    return [g.clone() for g in found if g is not None]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_gradients_are_scaled_and_added(layers):
    """What the last layer's rows made in the forward pass is scaled as all else is."""
    task = InParts(
        TrainConfig.of(**SMALL, layers=layers, chunks=3, dropout=0.2), connect("gloo"), 0
    )
    task.loss(0).backward()
    once = gradients(task)
    assert all(bool(g.any()) for g in once)
    (2 * task.loss(0)).backward()
    for expected, found in zip(once, gradients(task), strict=True):
        torch.testing.assert_close(found, 3 * expected)


def test_a_loss_nobody_asks_gradients_of_leaves_none():
    task = InParts(TrainConfig.of(**SMALL, layers=2, chunks=3), connect("gloo"), 0)
    task.loss(0)
    assert all(p.grad is None for p in task.model.parameters())
    task.loss(0).backward()
    once = gradients(task)
    task.model.zero_grad()
    task.loss(0).backward()
    for expected, found in zip(once, gradients(task), strict=True):
        assert torch.equal(expected, found)
