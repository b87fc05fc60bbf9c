"""The GAT of DistGNN-MB (Vasimuddin et al. 2022, equation 2): bias and ReLU before attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spgnn.nn import GAT, GATConv


class ReluFirstConv(GATConv):
    """``h'_i = Σ_j α_ij z_j`` with ``z = ReLU(W h + b)``, of which α are scores as well."""

    def __init__(self, *arguments: Any, bias: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options | {"bias": False})
        width = self.heads * self.out_channels
        self.inner_bias = nn.Parameter(torch.zeros(width)) if bias else None

    def restore(self) -> None:
        """Initialise the bias."""
        if self.inner_bias is not None:
            nn.init.zeros_(self.inner_bias)

    def weighed(self, rows: Tensor) -> Tensor:
        """ReLU(W h + b) of W h."""
        rows = super().weighed(rows)
        if self.inner_bias is not None:
            rows = rows + self.inner_bias.to(rows.dtype)
        return torch.relu(rows)


class ReluFirstGAT(GAT):
    """Layers of :class:`ReluFirstConv`."""

    convolution = ReluFirstConv
