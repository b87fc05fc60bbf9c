"""Memory that exchanges keep."""

from __future__ import annotations

import torch
from torch import Tensor


class Workspace:
    """Buffers that outlive an exchange: no epoch should fault in new pages."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, *tuple[int, ...]], Tensor] = {}

    def rows(self, role: tuple[str, *tuple[int, ...]], count: int, like: Tensor) -> Tensor:
        """An uninitialised [count, f] with the width, dtype and device of `like`."""
        width = like.shape[1]
        held = self._buffers.get(role)
        if (
            held is None
            or held.numel() < count * width
            or held.dtype != like.dtype
            or held.device != like.device
        ):
            # The old memory goes before the new comes.
            del held
            self._buffers.pop(role, None)
            held = torch.empty(count * width, dtype=like.dtype, device=like.device)
            self._buffers[role] = held
        return held[: count * width].view(count, width)

    def held(self, *names: str) -> int:
        """Bytes that are held, for roles of some names or, without, for all."""
        chosen = (held for role, held in self._buffers.items() if not names or role[0] in names)
        return sum(held.nbytes for held in chosen)

    def release(self) -> None:
        """Give the memory back; the next exchange takes what it needs."""
        self._buffers.clear()
