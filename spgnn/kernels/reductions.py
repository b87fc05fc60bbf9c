"""Reductions over the neighbours of a row, besides their sum: one function each.

A reduction takes A [rows, cols] and X [cols, f] to [rows, f], 0 in rows without nonzeros. Torch can
differentiate it, so it works wherever all neighbours of a row are at hand: in memory, over a halo,
in mini-batches, out of core.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.extremes import extreme
from spgnn.kernels.spmm import spmm
from spgnn.registry import REDUCTIONS
from spgnn.sparse import CSR, SUM_DTYPE

LEAST_VARIANCE = 1e-5  # as PyG's: below, the deviation is 0 and passes no gradient


def mean(A: CSR, X: Tensor) -> Tensor:
    """The products of a row over the number of its nonzeros."""
    share = A.pattern.row_lengths.clamp_min(1).to(SUM_DTYPE[X.dtype]).reciprocal()
    scale = share if A.row_scale is None else A.row_scale * share
    return spmm(CSR(A.pattern, A.values, scale, A.col_scale), X)


def deviation(A: CSR, X: Tensor) -> Tensor:
    """The standard deviation of a row's neighbours, of a matrix without values and scalings."""
    if A.values is not None or A.row_scale is not None or A.col_scale is not None:
        raise InputError('reduce="std" takes a matrix without values and scalings')
    # E[x²] − E[x]² in float64 keeps more digits than float32 has.
    wide = X.double()
    average, square = mean(A, torch.cat((wide, wide.square()), -1)).chunk(2, -1)
    variance = (square - average.square()).clamp_min(LEAST_VARIANCE)
    return torch.where(variance > LEAST_VARIANCE, variance.sqrt(), 0.0).to(X.dtype)


REDUCTIONS.add("mean", mean)
REDUCTIONS.add("max", partial(extreme, largest=True))
REDUCTIONS.add("min", partial(extreme, largest=False))
REDUCTIONS.add("std", deviation)
