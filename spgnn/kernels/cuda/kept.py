"""What was found out about a tensor on a device, and costs too much to be found out again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spgnn.kernels.cuda import device

T = TypeVar("T")


class PerTensor:
    """Answers to questions about tensors, each kept while its tensor lives and is not written to.

    An answer is complete on the device before anyone can find it: another stream or thread that
    does need not wait.
    """

    def __init__(self) -> None:
        self._kept: Any = WeakTensorKeyDictionary()

    def get(self, tensor: Tensor, question: object, make: Callable[[], T]) -> T:
        """The kept answer to a question about a tensor, or that of ``make()``."""
        now = 0 if tensor.is_inference() else tensor._version
        version, answers = self._kept.get(tensor, (None, {}))
        if version != now:
            answers = {}
            self._kept[tensor] = (now, answers)
        if question not in answers:
            answer = make()
            device.finish(tensor.device)
            answers[question] = answer
        found: T = answers[question]
        return found


kept = PerTensor()
