"""When the codec of a matrix is used: whoever makes a step asks a policy whether it is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor, nn

from spgnn.errors import InputError
from spgnn.exchange import Carried
from spgnn.exchange.traffic import Traffic


class Policy:
    """Products are approximate while autograd records, but not inside of :meth:`exact`.

    Nor where models are known, and all of them are in evaluation.

    Parameters
    ----------
    least_width : int
        Rows of fewer columns are always exact: ids, degrees, and what is made of them.

    Attributes
    ----------
    epoch : int
        −1 before the first one.
    models : set of Module
        Those that are trained, as far as they are known, as long as they live.
    """

    def __init__(self, least_width: int = 1) -> None:
        self.epoch = -1
        self.begun = 0  # how often an epoch has begun
        self.models: WeakSet[nn.Module] = WeakSet()
        self._least_width = least_width
        self._exact = 0
        self._moved: list[Callable[[], Iterator[Carried]]] = []

    def approximates(self, rows: object) -> bool:
        """Whether a product of these rows, which is about to begin, is approximate.

        Raises
        ------
        InputError
            If it is, and no epoch has begun.
        """
        if self._exact or not torch.is_grad_enabled():
            return False
        if not isinstance(rows, Tensor) or rows.dim() != 2 or not rows.is_floating_point():
            return False
        models = list(self.models)
        if rows.shape[1] < self._least_width or (models and not any(m.training for m in models)):
            return False
        if self.epoch < 0 and not rows.is_meta:
            raise InputError(
                "approximate messages have to know which epoch it is: call graph.next_epoch() at "
                "the beginning of each epoch of training"
            )
        return True

    def begin_epoch(self, epoch: int) -> None:
        """Say that an epoch of training begins."""
        self.epoch, self._moved = epoch, []
        self.begun += 1

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Everything inside is exact, and so are its gradients."""
        self._exact += 1
        try:
            yield
        finally:
            self._exact -= 1

    def note(self, carried: Callable[[], Iterator[Carried]]) -> None:
        """Take down what is about to move, to be asked when it has."""
        self._moved.append(carried)

    def traffic(self) -> Traffic:
        """What the approximate products of this epoch have moved on this rank."""
        carried = (each for moved in self._moved for each in moved())
        return sum((each.traffic() for each in carried), Traffic())
