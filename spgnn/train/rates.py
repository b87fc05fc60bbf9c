"""The learning rate of each epoch: a function of the flags and of the history, hence of no state.

A resumed run reads its history, so its rates are those of a straight one, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spgnn.config import Training
from spgnn.errors import InputError


class Rates:
    """What each epoch's rate is.

    Parameters
    ----------
    options : Training
        ``lr``, ``lr_schedule``, ``lr_every``, ``lr_factor``, ``warmup`` and ``epochs``.
    """

    def __init__(self, options: Training) -> None:
        self._options = options
        self._plateau = _Plateau(options.lr_every)

    def factor(self, history: Sequence[Mapping[str, Any]]) -> float:
        """What the rates of all groups are multiplied by in the epoch after that history.

        Called with longer and longer histories, each of which begins with the one before.

        Raises
        ------
        InputError
            If a plateau has no validation loss to look at.
        """
        options, epoch = self._options, len(history)
        if epoch < options.warmup:
            return (epoch + 1) / options.warmup
        after, left = epoch - options.warmup, options.epochs - options.warmup
        match options.lr_schedule:
            case "cosine":
                return (1 + math.cos(math.pi * min(after / left, 1))) / 2
            case "linear":
                return max(1 - after / left, 0.0)
            case "step":
                return float(options.lr_factor ** (after // options.lr_every))
            case "plateau":
                return float(options.lr_factor ** self._plateau.reductions(history))
        return 1.0

    def apply(
        self, optimizer: torch.optim.Optimizer, history: Sequence[Mapping[str, Any]]
    ) -> float:
        """Set the rates of the epoch after that history; returns that of groups without their own.

        Parameters
        ----------
        optimizer : Optimizer
            Its groups' rates when this is first called are what all later ones are factors of.
        history : sequence of dict
        """
        factor = self.factor(history)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
        return self._options.lr * factor


class _Plateau:
    """How often the validation loss has not fallen for so many evaluations."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._seen = self._waited = self._reductions = 0
        self._best = math.inf

    def reductions(self, history: Sequence[Mapping[str, Any]]) -> int:
        for record in history[self._seen :]:
            if "val_loss" in record:
                self._look(record["val_loss"])
        self._seen = len(history)
        return self._reductions

    def _look(self, loss: float | None) -> None:
        if loss is None:
            raise InputError(
                "--lr-schedule plateau needs a validation loss, and no validation vertex has one"
            )
        if loss < self._best:
            self._best, self._waited = loss, 0
            return
        self._waited += 1
        if self._waited == self._patience:
            self._reductions, self._waited = self._reductions + 1, 0
