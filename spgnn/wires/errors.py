"""The error that wires make: how far from exact is what arrives."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.exchange import Step

MEASURED_EVERY = 10


class Errors:
    """Squared errors of the products of one matrix, on this rank, by what made them.

    Whoever knows what was lost adds it: the sender where rows are rounded or left out, the receiver
    where they are late. Sums over all ranks and hops, divided, are relative errors of products.
    """

    def __init__(self) -> None:
        self._accounts: dict[tuple[int, bool, str], Tensor] = {}

    @staticmethod
    def measured(epoch: int) -> bool:
        """Whether errors are looked at: in the first epochs, then now and then."""
        return epoch < MEASURED_EVERY or epoch % MEASURED_EVERY == 0

    def account(self, kind: str, step: Step, device: torch.device) -> Tensor:
        """What to add to: squared error and squared norm, float64 [2].

        Parameters
        ----------
        kind : str
            What makes the error.
        step : Step
        device : torch.device
        """
        key = step.product, step.adjoint, kind
        if key not in self._accounts:
            self._accounts[key] = torch.zeros(2, dtype=torch.float64, device=device)
        return self._accounts[key]

    def add(self, kind: str, step: Step, made: Tensor, exact: Tensor) -> None:
        """Add an error, and what it is an error of, both [rows, f]."""
        norms = torch.stack((squared_norm(made), squared_norm(exact)))
        self.account(kind, step, made.device).add_(norms)

    def sums(self) -> dict[tuple[int, bool, str], Tensor]:
        """By (product, adjoint, kind): squared error and squared norm, float64 [2]."""
        return dict(self._accounts)


def squared_norm(rows: Tensor) -> Tensor:
    """The sum of squares, a float64 scalar."""
    norm: Tensor = torch.linalg.vector_norm(rows, dtype=torch.float64)
    return norm.square()
