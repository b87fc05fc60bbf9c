"""Buffers for rows under way."""

from __future__ import annotations

import torch
from torch import Tensor


class Pool:
    """Buffers that are given back: what is under way for long must not be written to meanwhile."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised [rows, width]."""
        nbytes = rows * width * dtype.itemsize
        fitting = [b for b in self._free if b.device == device and len(b) >= nbytes]
        if fitting:
            found = min(fitting, key=len)
            self._free = [buffer for buffer in self._free if buffer is not found]
        else:
            found = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return found[:nbytes].view(dtype).view(rows, width)

    def give(self, *buffers: Tensor) -> None:
        """Give buffers back."""
        for rows in buffers:
            whole = torch.empty(0, dtype=torch.uint8, device=rows.device)
            self._free.append(whole.set_(rows.untyped_storage()))

    def __deepcopy__(self, memo: object) -> Pool:
        return Pool()
