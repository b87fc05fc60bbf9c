"""Losses over all ranks against those of torch on one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from spgnn import RowLayout
from spgnn.comm import connect
from spgnn.nn.loss import (
    BinaryCrossEntropy,
    CrossEntropy,
    Loss,
    Residual,
    label_weights,
    masked_cross_entropy,
)
from spgnn.testing import run_ranks

N, CLASSES = 37, 5


def problem() -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Logits, labels (some unknown) and masks, the last one empty."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(N, CLASSES, generator=generator, dtype=torch.float64)
    y = torch.randint(-1, CLASSES, (N,), generator=generator)
    role = torch.randint(0, 3, (N,), generator=generator)
    return logits, y, [role == 0, role == 1, torch.zeros(N, dtype=torch.bool)]


def test_nothing_labelled_costs_nothing():
    Z = torch.randn(4, 3, requires_grad=True)
    everything = torch.ones(4, dtype=torch.bool)
    loss = masked_cross_entropy(Z, torch.full((4,), -1), everything, 0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.equal(Z.grad, torch.zeros(4, 3))


WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
TABLE = torch.randint(-1, 2, (N, CLASSES), generator=torch.Generator().manual_seed(1))
NUMBERS = torch.where(
    TABLE < 0, torch.nan, torch.randn(N, CLASSES, generator=torch.Generator().manual_seed(2)) * 2
)


def losses() -> list[tuple[Loss, torch.Tensor, torch.nn.Module, torch.Tensor, torch.Tensor]]:
    """Each loss with its labels, and torch's own with its targets and what of them is known."""
    y, several = problem()[1], TABLE.to(torch.int8)
    numbers = NUMBERS.nan_to_num().double()
    target = TABLE.double()
    smooth = target * 0.8 + 0.1
    known, whole = TABLE >= 0, y >= 0
    return [
        (CrossEntropy(), y, torch.nn.CrossEntropyLoss(), y, whole),
        (CrossEntropy(WEIGHT), y, torch.nn.CrossEntropyLoss(WEIGHT), y, whole),
        (
            CrossEntropy(WEIGHT, 0.3),
            y,
            torch.nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.3),
            y,
            whole,
        ),
        (CrossEntropy(None, 0.1), y, torch.nn.CrossEntropyLoss(label_smoothing=0.1), y, whole),
        (BinaryCrossEntropy(), several, torch.nn.BCEWithLogitsLoss(), target, known),
        (BinaryCrossEntropy(None, 0.2), several, torch.nn.BCEWithLogitsLoss(), smooth, known),
        (Residual("mse"), NUMBERS, torch.nn.MSELoss(), numbers, known),
        (Residual("l1"), NUMBERS, torch.nn.L1Loss(), numbers, known),
        (Residual("huber"), NUMBERS, torch.nn.HuberLoss(), numbers, known),
    ]


def shares_of(rank: int) -> list[tuple[float, torch.Tensor, float]]:
    """One rank's shares of all losses over the first mask, gradients, and the share of none."""
    comm = connect()
    logits, _, masks = problem()
    own = slice(*RowLayout.even(N, comm.size).range(rank))
    found = []
    for loss, y, *_ in losses():
        Z = logits[own].clone().requires_grad_()
        mine = [mask[own] for mask in masks]
        totals = label_weights(loss, y[own], mine, comm)
        share = loss.share(Z, y[own], mine[0], totals[0])
        share.backward()
        nothing = loss.share(Z.detach(), y[own], mine[2], totals[2])
        found.append((float(share.detach()), Z.grad, float(nothing)))
    return found


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_loss_is_that_of_torch(ranks):
    results = run_ranks(shares_of, ranks)
    logits, _, masks = problem()
    for number, (_, _, theirs, target, known) in enumerate(losses()):
        Z = logits.clone().requires_grad_()
        chosen = masks[0] if known.dim() == 1 else masks[0][:, None]
        expected = theirs(Z[known & chosen], target[known & chosen])
        expected.backward()
        shares = [found[number] for found in results]
        assert sum(share for share, *_ in shares) == pytest.approx(float(expected.detach()))
        torch.testing.assert_close(torch.cat([grad for _, grad, _ in shares]), Z.grad)
        assert [nothing for *_, nothing in shares] == [0] * ranks


def test_labels_that_a_vertex_has_may_weigh_more():
    logits, *_, masks = problem()
    loss = BinaryCrossEntropy(WEIGHT)
    (total,) = label_weights(loss, TABLE.to(torch.int8), masks[:1], connect())
    entries = F.binary_cross_entropy_with_logits(
        logits, TABLE.double().clamp(min=0), pos_weight=WEIGHT, reduction="none"
    )
    expected = entries[(TABLE >= 0) & masks[0][:, None]].mean()
    torch.testing.assert_close(loss.share(logits, TABLE.to(torch.int8), masks[0], total), expected)


@pytest.mark.parametrize("loss", [CrossEntropy(), CrossEntropy(torch.ones(3).double(), 0.1)])
def test_any_negative_label_is_unknown(loss):
    """As torch's own -100."""
    logits, mask = torch.randn(4, 3), torch.tensor([True, True, True, False])
    share = loss.share(logits, torch.tensor([0, -100, 2, 1]), mask, 2)
    assert torch.equal(share, loss.share(logits, torch.tensor([0, -1, 2, -1]), mask, 2))
