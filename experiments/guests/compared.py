"""Compare what ranks computed with one process."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor


def compare(name: str, ranks: Tensor, alone: Tensor, within: float = 0.0) -> None:
    """Print how far ranks are from one process, and end all of them if that is too far. Collective.

    Parameters
    ----------
    name : str
    ranks, alone : Tensor
        Of this rank, and the same of one process.
    within : float
        The largest difference, as a share of the largest number; 0 if no bit may differ.
    """
    difference, scale = (ranks - alone).detach().double(), alone.detach().double()
    both = torch.stack(
        [t.abs().max() if t.numel() else t.new_zeros(()) for t in (difference, scale)]
    )
    if ranks.shape != alone.shape or not both.isfinite().all():
        both = torch.tensor([torch.inf, 1.0], dtype=torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    apart = float(both[0] / both[1].clamp(min=torch.finfo(torch.float64).tiny))
    if dist.get_rank() == 0:
        print(f"{name}: {apart:.1e} from one process, {within:.0e} allowed", flush=True)
    if apart > within:
        sys.exit(f"{name}: not equal to one process")
