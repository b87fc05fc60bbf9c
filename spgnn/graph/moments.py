"""Mean and variance over the vertices of all ranks, numerically sound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.autograd import all_reduced
from spgnn.comm import (
    Communicator,
)


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
    count : int
    """

    centred: Tensor
    centre: Tensor
    mean: Tensor
    variance: Tensor
    count: int


def moments(x: Tensor, own: int | None, comm: Communicator | None) -> Moments:
    """Mean and variance of each column. Collective.

    Parameters
    ----------
    x : Tensor [rows, f]
    own : int, optional
        Rows that count, the first ones; by default all.
    comm : Communicator, optional
        All ranks whose rows count.
    """
    counted = x if own is None else x[:own]
    rows = len(counted)
    with torch.no_grad():
        total = torch.cat((counted.sum(0).double(), counted.new_tensor([rows]).double()))
        if comm is not None:
            comm.all_reduce(total).wait()
        count = rows if comm is None else int(total[-1])
        centre = (total[:-1] / max(count, 1)).to(x.dtype)
    centred = x - centre
    counted = centred if own is None else centred[:own]
    if rows:
        variance, mean = torch.var_mean(counted, 0, correction=0)
    else:
        mean = counted.sum(0)
        variance = mean
    if comm is None:
        return Moments(centred, centre, mean, variance, count)
    sums = rows * torch.stack((mean, variance + mean.square()))
    mean, square = all_reduced(sums, comm) / max(count, 1)
    return Moments(centred, centre, mean, square - mean.square(), count)
