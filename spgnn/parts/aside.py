"""Gradients of parameters that are made before anybody asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from torch import Tensor
from torch.nn import Parameter


class Aside:
    """Gradients that autograd adds up beside those that the parameters have.

    Inside ``with aside:`` what is added to ``parameter.grad`` is collected here; outside,
    parameters have what they had.

    Parameters
    ----------
    parameters : iterable of Parameter
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._parameters = list(parameters)
        self._kept: list[Tensor | None] = [None] * len(self._parameters)

    def clear(self) -> None:
        """Forget what was collected."""
        self._kept = [None] * len(self._parameters)

    def __enter__(self) -> None:
        self._swap()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._swap()

    def add(self, scale: Tensor) -> None:
        """Add what was collected, times a number, to the parameters' own gradients; forget it."""
        for parameter, kept in zip(self._parameters, self._kept, strict=True):
            if kept is not None:
                found = kept * scale
                parameter.grad = found if parameter.grad is None else parameter.grad + found
        self.clear()

    def _swap(self) -> None:
        for place, parameter in enumerate(self._parameters):
            self._kept[place], parameter.grad = parameter.grad, self._kept[place]
