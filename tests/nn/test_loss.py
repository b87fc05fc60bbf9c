"""Masked cross-entropy and accuracy over all ranks against the same on one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from spgnn import RowLayout
from spgnn.comm import connect
from spgnn.nn import accuracies, count_labelled, masked_cross_entropy
from spgnn.testing import run_ranks

N, CLASSES = 37, 5


def problem() -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Logits, labels (some unknown) and masks, the last one empty."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(N, CLASSES, generator=generator, dtype=torch.float64)
    y = torch.randint(-1, CLASSES, (N,), generator=generator)
    role = torch.randint(0, 3, (N,), generator=generator)
    return logits, y, [role == 0, role == 1, torch.zeros(N, dtype=torch.bool)]


def share_of(rank: int) -> tuple[list[float], list[int], list[float | None], torch.Tensor]:
    """One rank's shares of the losses, the totals, accuracies, and its gradient of the first."""
    comm = connect()
    logits, y, masks = problem()
    own = slice(*RowLayout.even(N, comm.size).range(rank))
    Z, labels, mine = logits[own].clone().requires_grad_(), y[own], [mask[own] for mask in masks]
    totals = count_labelled(mine, labels, comm)
    losses = [masked_cross_entropy(Z, labels, m, t) for m, t in zip(mine, totals, strict=True)]
    losses[0].backward()
    return (
        [float(loss.detach()) for loss in losses],
        totals,
        accuracies(Z.detach(), labels, mine, totals, comm),
        Z.grad,
    )


@pytest.mark.parametrize("ranks", [1, 4, 40])
def test_shares_add_up_to_the_loss_of_one_process(ranks):
    results = run_ranks(share_of, ranks)
    logits, y, masks = problem()
    logits.requires_grad_()
    chosen = [mask & (y >= 0) for mask in masks]
    counts = [int(c.sum()) for c in chosen]
    expected = [F.cross_entropy(logits[c], y[c]) for c in chosen[:2]]
    expected[0].backward()
    shares = torch.tensor([losses for losses, *_ in results])
    torch.testing.assert_close(
        shares.sum(dim=0), torch.tensor([*(float(e.detach()) for e in expected), 0.0])
    )
    torch.testing.assert_close(torch.cat([grad for *_, grad in results]), logits.grad)
    right = logits.argmax(dim=1) == y
    exact = [int((right & c).sum()) / n if n else None for c, n in zip(chosen, counts, strict=True)]
    for _, totals, scores, _ in results:
        assert totals == counts
        assert scores == exact
    assert exact[2] is None


def test_nothing_labelled_costs_nothing():
    Z = torch.randn(4, 3, requires_grad=True)
    everything = torch.ones(4, dtype=torch.bool)
    loss = masked_cross_entropy(Z, torch.full((4,), -1), everything, 0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.equal(Z.grad, torch.zeros(4, 3))
