"""Links between vertices: decoders of embeddings, and scores of pairs that live on many ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn import autograd, kernels
from spgnn.nn.convolution import Linear, glorot_


class DotProduct(nn.Module):
    """The dot product of embeddings, z_u · z_v."""

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
        self.lin1, self.lin2 = Linear(channels, channels), Linear(channels, 1)
        generator = torch.Generator().manual_seed(seed)
        for layer in (self.lin1, self.lin2):
            glorot_(layer.weight, generator)

    def forward(self, Z_source: Tensor, Z_target: Tensor) -> Tensor:
        """Scores […] of embeddings […, f]; shapes broadcast."""
        scores: Tensor = self.lin2(torch.relu(self.lin1(Z_source * Z_target)))
        return scores[..., 0]


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Links and negative pairs at the same targets, and where their embeddings are.

    Attributes
    ----------
    targets : Tensor int64 [pairs]
        Own rows.
    sources : Linear
        From own rows to the embeddings of all sources: those of links first, then of negatives.
    negatives : int
        Negatives of each link.
    """

    targets: Tensor
    sources: autograd.Linear
    negatives: int

    def scores(self, Z_local: Tensor, decoder: nn.Module) -> tuple[Tensor, Tensor]:
        """Scores of links [pairs], and of negatives [pairs, negatives]. Collective.

        Differentiable: gradients of embeddings that came from other ranks are added up there.
        """
        return self.scores_of(*self.ends(Z_local), decoder)

    def ends(self, Z_local: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of all sources, and of targets. Collective."""
        Z_targets = kernels.gather_rows(Z_local, self.targets)
        return autograd.product(self.sources, Z_local), Z_targets

    def scores_of(
        self, Z_sources: Tensor, Z_targets: Tensor, decoder: nn.Module
    ) -> tuple[Tensor, Tensor]:
        """The same, of embeddings of both ends."""
        count = len(self.targets)
        Z_drawn = Z_sources[count:].view(count, self.negatives, Z_sources.shape[1])
        links = decoder(Z_sources[:count], Z_targets)
        drawn = decoder(Z_drawn, Z_targets[:, None])
        # Sums over many pairs have no digits left in less than float32.
        halves = links.dtype in (torch.bfloat16, torch.float16)
        return (links.float(), drawn.float()) if halves else (links, drawn)


def pairs_cross_entropy(links: Tensor, others: Tensor) -> Tensor:
    """The sum over links and negatives."""
    return F.softplus(-links).sum() + F.softplus(others).sum()
