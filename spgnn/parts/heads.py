"""The shape of attention: heads, of which a panel has as many as fit, and never a part of one."""

from __future__ import annotations

from typing import NamedTuple

import torch

from spgnn.kernels.attention_panel import packed_bytes


class Heads(NamedTuple):
    """How a layer weighs neighbours.

    Attributes
    ----------
    number : int
    channels : int
        Columns of each: of what is weighed.
    joint : bool
        Whether a row says all of them of its own scores (GATv2), and not a number.
    """

    number: int
    channels: int
    joint: bool

    @property
    def end(self) -> int:
        """Columns of each of what a row says of its own scores."""
        return self.channels if self.joint else 1

    @property
    def ends(self) -> int:
        """Columns of what a row says of its own scores."""
        return self.number * self.end

    def packed(self, panel: int, itemsize: int) -> int:
        """Bytes of a source in a panel of so many columns, as kernels take it."""
        dtype = torch.float64 if itemsize > 4 else torch.float32
        return packed_bytes(panel // self.channels, self.channels, dtype, joint=self.joint)
