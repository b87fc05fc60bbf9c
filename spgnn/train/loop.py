"""The training loop: full-graph epochs, gradients summed over all ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Any

import torch

from spgnn.comm import Communicator, Ledger
from spgnn.nn import (
    GCN,
    DropoutKeys,
    accuracies,
    count_labelled,
    masked_cross_entropy,
)
from spgnn.train import checkpoint
from spgnn.train.clock import OperatorClock, breakdown
from spgnn.train.config import TrainConfig
from spgnn.train.progress import ProgressBar
from spgnn.train.setup import Problem

# What the exchange of rows costs; gradients are summed apart.
ROW_OPERATIONS = ("alltoall", "broadcast", "reduce")
SCORES = ("val_loss", "train_acc", "val_acc", "test_acc")
Scores = dict[str, float | None]
NOT_EVALUATED: Scores = dict.fromkeys(SCORES)


@dataclass
class Measured:
    """What this rank's training epochs cost."""

    seconds: list[float]
    breakdowns: list[list[float]]
    sent_bytes: list[int]
    received_bytes: list[int]


class Trainer:
    """Trains a GCN on one rank's share of a problem, together with all other ranks.

    Parameters
    ----------
    config : TrainConfig
    problem : Problem
    comm : Communicator
        All ranks.
    device : torch.device
    """

    def __init__(
        self, config: TrainConfig, problem: Problem, comm: Communicator, device: torch.device
    ) -> None:
        self.config = config
        self.problem = problem
        self.comm = comm
        self.device = device
        hidden = [config.hidden] * (config.layers - 1)
        self.widths = [problem.features, *hidden, problem.classes]
        self.model = GCN(
            self.widths, dropout=config.dropout, order=config.order, seed=config.seed
        ).to(device)
        self.optimizer = self._optimizer()
        self.totals = count_labelled(problem.masks, problem.y, comm)
        self.history: list[dict[str, Any]] = []
        self.measured = Measured([], [], [], [])

    def run(self) -> None:
        """Train for ``config.epochs`` epochs, resuming and checkpointing as asked. Collective."""
        config = self.config
        first = self._resume() if config.resume else 0
        with ProgressBar(config.epochs, first, shown=self.comm.rank == 0) as bar:
            for epoch in range(first, config.epochs):
                loss, seconds = self._measured_epoch(epoch)
                last = epoch == config.epochs - 1
                scores = NOT_EVALUATED
                if last or (epoch + 1) % config.eval_every == 0:
                    scores = self.evaluate()
                self.history.append({"epoch": epoch, "loss": loss, **scores, "seconds": seconds})
                bar.advance(loss, scores["val_acc"])
                last = last or self._should_stop()
                if config.checkpoint and (last or (epoch + 1) % config.checkpoint_every == 0):
                    self._save(config.checkpoint, epoch + 1)
                if last:
                    break

    def train_epoch(self, epoch: int) -> float:
        """One forward, one backward, one step; returns the loss over all ranks. Collective."""
        problem, config = self.problem, self.config
        keys = DropoutKeys(problem.vertex_ids, config.seed, epoch)
        logits = self.model(problem.A, problem.X, keys)
        share = masked_cross_entropy(logits, problem.y, problem.masks[0], self.totals[0])
        share.backward()
        loss = self._sum_gradients(share.detach())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    @torch.no_grad()
    def evaluate(self) -> Scores:
        """Validation loss, then accuracy on train, validation and test, all ranks. Collective."""
        problem = self.problem
        logits = self.model(problem.A, problem.X)
        loss = masked_cross_entropy(logits, problem.y, problem.masks[1], self.totals[1])
        total = loss.reshape(1).cpu()
        self.comm.all_reduce(total).wait()
        val_loss = float(total) if self.totals[1] else None
        right = accuracies(logits, problem.y, problem.masks, self.totals, self.comm)
        return dict(zip(SCORES, [val_loss, *right], strict=True))

    def _should_stop(self) -> bool:
        """Early stopping of Kipf & Welling (2017, section 5.2) and their code.

        True once the newest validation loss is above the mean of the `patience` before it. The
        losses are the same on every rank, so all stop together.
        """
        patience = self.config.patience
        losses = [r["val_loss"] for r in self.history if r["val_loss"] is not None]
        if patience == 0 or len(losses) <= patience + 1 or self.history[-1]["val_loss"] is None:
            return False
        return bool(losses[-1] > fmean(losses[-patience - 1 : -1]))

    def _measured_epoch(self, epoch: int) -> tuple[float, float]:
        before = self.comm.ledger.copy()
        clock = OperatorClock(self.device)
        start = perf_counter()
        with clock:
            loss = self.train_epoch(epoch)
        seconds = perf_counter() - start
        ledger = self.comm.ledger.since(before)
        self.measured.seconds.append(seconds)
        self.measured.breakdowns.append(breakdown(seconds, clock, ledger))
        self.measured.sent_bytes.append(_row_bytes(ledger, "sent_bytes"))
        self.measured.received_bytes.append(_row_bytes(ledger, "received_bytes"))
        return loss, seconds

    def _sum_gradients(self, loss_share: torch.Tensor) -> float:
        """Every rank holds distinct rows, so gradients and loss just add up; one message."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients] + [loss_share.reshape(1)])
        self.comm.all_reduce(flat).wait()
        start = 0
        for gradient in gradients:
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()
        return float(flat[-1])

    def _optimizer(self) -> torch.optim.Optimizer:
        config = self.config
        # As Kipf & Welling (2017, section 5.2), only the first layer decays.
        first, *rest = self.model.convolutions
        groups: list[dict[str, Any]] = [
            {"params": list(first.parameters()), "weight_decay": config.weight_decay},
            {"params": [p for layer in rest for p in layer.parameters()], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if config.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=config.lr)
        return torch.optim.Adam(groups, lr=config.lr)

    def _resume(self) -> int:
        directory = self.config.checkpoint
        assert directory is not None
        progress = checkpoint.load(
            directory, self.model, self.optimizer, self.config.seed, self.widths
        )
        self.history = list(progress.history)
        return progress.epoch

    def _save(self, directory: str, epoch: int) -> None:
        if self.comm.rank == 0:
            progress = checkpoint.Progress(
                epoch, self.config.seed, self.widths, self.config.optimizer, self.history
            )
            checkpoint.save(directory, self.model, self.optimizer, progress)


def _row_bytes(ledger: Ledger, direction: str) -> int:
    totals: defaultdict[str, int] = defaultdict(int)
    for name, traffic in ledger.operations.items():
        totals[name] += getattr(traffic, direction)
    return sum(totals[name] for name in ROW_OPERATIONS)
