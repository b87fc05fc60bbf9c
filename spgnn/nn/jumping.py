"""Jumping knowledge (Xu et al. 2018): what is made of the outputs of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from spgnn.errors import InputError

Jumps = Literal["last", "cat", "max", "lstm"]
JUMPS = ("none", "last", "cat", "max", "lstm")


class JumpingKnowledge(nn.Module):
    """All layers' rows to one; parameters and their names are those of PyG's.

    Parameters
    ----------
    mode : {"last", "cat", "max", "lstm"}
        The last one; side by side; the largest of each column; a sum with the attention of a
        bidirectional LSTM.
    widths : sequence of int
        Of the layers; all alike, but for ``last`` and ``cat``.

    Attributes
    ----------
    width : int
        Of what it makes.
    """

    def __init__(self, mode: str, widths: Sequence[int]) -> None:
        super().__init__()
        if mode in ("max", "lstm") and len(set(widths)) > 1:
            raise InputError(f"jk={mode} needs layers of one width, got {list(widths)}")
        self.mode = mode
        self.width = sum(widths) if mode == "cat" else widths[-1]
        if mode == "lstm":
            inner = len(widths) * widths[0] // 2
            self.lstm = nn.LSTM(widths[0], inner, bidirectional=True, batch_first=True)
            self.att = nn.Linear(2 * inner, 1)

    def forward(self, made: Sequence[Tensor]) -> Tensor:
        """A list of [rows, f], one a layer, to [rows, width]."""
        if self.mode == "last":
            return made[-1]
        if self.mode == "cat":
            return torch.cat(list(made), dim=-1)
        if self.mode == "max":
            return torch.stack(list(made), dim=-1).max(dim=-1)[0]
        x = torch.stack(list(made), dim=1)
        share = torch.softmax(self.att(self.lstm(x)[0]).squeeze(-1), dim=-1)
        return (x * share.unsqueeze(-1)).sum(dim=1)
