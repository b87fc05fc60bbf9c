"""Decoders: how likely two vertices are linked, by their embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spgnn.nn.convolution import glorot_, linear


class DotProduct(nn.Module):
    """The sum of what embeddings have in common, z_u · z_v."""

    def forward(self, Z_source: Tensor, Z_target: Tensor) -> Tensor:
        """Scores […] of embeddings […, f]; shapes broadcast."""
        return (Z_source * Z_target).sum(dim=-1)


class HadamardMLP(nn.Module):
    """A network of two layers on the products z_u ⊙ z_v, as OGB's baselines have it.

    Parameters
    ----------
    channels : int
        Width of embeddings, and of the layer between.
    seed : int
        Of the weights (Glorot & Bengio 2010, uniform).
    """

    def __init__(self, channels: int, seed: int = 0) -> None:
        super().__init__()
        self.lin1, self.lin2 = linear(channels, channels), linear(channels, 1)
        generator = torch.Generator().manual_seed(seed)
        for layer in (self.lin1, self.lin2):
            glorot_(layer.weight, generator)

    def forward(self, Z_source: Tensor, Z_target: Tensor) -> Tensor:
        """Scores […] of embeddings […, f]; shapes broadcast."""
        scores: Tensor = self.lin2(torch.relu(self.lin1(Z_source * Z_target)))
        return scores[..., 0]
