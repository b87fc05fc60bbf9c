"""Scores of pairs of vertices whose embeddings live on many ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn import kernels
from spgnn.autograd import product


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Links and made-up pairs at the same targets, and where their embeddings are.

    Attributes
    ----------
    targets : Tensor int64 [pairs]
        Own rows.
    sources : DistMatrix
        Makes the embeddings of all sources of those of own rows: links first, then made-up ones.
    negatives : int
        Made-up pairs for each link.
    """

    targets: Tensor
    sources: Any
    negatives: int

    def scores(self, Z_local: Tensor, decoder: nn.Module) -> tuple[Tensor, Tensor]:
        """Of links [pairs], and of made-up ones [pairs, negatives]. Collective.

        Differentiable: gradients of embeddings that came from other ranks are added up there.
        """
        count = len(self.targets)
        Z_sources = product(self.sources, Z_local)
        Z_targets = kernels.gather_rows(Z_local, self.targets)
        Z_drawn = Z_sources[count:].view(count, self.negatives, Z_local.shape[1])
        links = decoder(Z_sources[:count], Z_targets)
        drawn = decoder(Z_drawn, Z_targets[:, None])
        # Sums over many pairs have no digits left in less than float32.
        halves = links.dtype in (torch.bfloat16, torch.float16)
        return (links.float(), drawn.float()) if halves else (links, drawn)


def pairs_cross_entropy(links: Tensor, others: Tensor) -> Tensor:
    """The sum over links and made-up ones."""
    return F.softplus(-links).sum() + F.softplus(others).sum()
