"""Mean and variance over the vertices of all ranks, numerically sound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.autograd import all_reduced
from spgnn.comm import Communicator


@dataclass(frozen=True)
class Moments:
    """Mean and variance of each column over the own rows of all ranks.

    They are taken of x minus a constant near its mean, so nothing cancels: the corrected two-pass
    algorithm (Chan, Golub & LeVeque 1983). The mean of x is ``centre + mean``; what is
    differentiable are `centred`, `mean` and `variance`, which is all that is needed, because the
    result of a norm does not depend on the constant.

    Attributes
    ----------
    centred : Tensor [rows, f]
    centre, mean, variance : Tensor [f]
    count : int or Tensor float64
        Rows. A tensor where it is sure that there are two: no host has to wait for the number.
    updates : bool
        Whether a norm in training takes them into its running ones.
    """

    centred: Tensor
    centre: Tensor
    mean: Tensor
    variance: Tensor
    count: int | Tensor
    updates: bool = True

    @property
    def has_variance(self) -> bool:
        """True if at least two rows count."""
        return isinstance(self.count, Tensor) or self.count > 1


def moments(x: Tensor, own: int | None, comm: Communicator | None) -> Moments:
    """Mean and variance of each column of `own` rows, or of all; over all ranks. Collective."""
    comm = None if comm is None or comm.size == 1 else comm
    counted = x if own is None else x[:own]
    rows = len(counted)
    count: int | Tensor = rows
    with torch.no_grad():
        # Filled, not copied from the host, and exact whatever the dtype of x is.
        number = torch.full((1,), rows, dtype=torch.float64, device=x.device)
        total = torch.cat((counted.sum(0).double(), number))
        if comm is not None:
            total = all_reduced(total, comm)
            count = total[-1] if rows > 1 else int(total[-1])
        divisor = count if isinstance(count, Tensor) else max(count, 1)
        centre = (total[:-1] / divisor).to(x.dtype)
    centred = x - centre
    counted = centred if own is None else centred[:own]
    if rows:
        variance, mean = torch.var_mean(counted, 0, correction=0)
    else:
        variance = mean = counted.sum(0)
    if comm is None:
        return Moments(centred, centre, mean, variance, count)
    sums = rows * torch.stack((mean, variance + mean.square()))
    mean, square = all_reduced(sums, comm) / divisor
    return Moments(centred, centre, mean, square - mean.square(), count)
