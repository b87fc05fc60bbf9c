"""The largest or smallest of all neighbours, column by column."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spgnn.autograd import product
from spgnn.nn.propagation import LayerGraph, matrix_of
from spgnn.pattern import Pattern

Extreme = Literal["max", "min"]


def neighbour_extremes(graph: LayerGraph, H_local: Tensor, reduce: Extreme) -> Tensor:
    """``z_i = max_j h_j`` over the neighbours j of i, 0 without any. Collective.

    Weights do not count. Whole rows of H have to arrive, so the matrix must be 1D with column
    covers.

    Parameters
    ----------
    graph : LayerGraph
    H_local : Tensor [columns, f]
    reduce : {"max", "min"}

    Returns
    -------
    Tensor [rows, f]

    Raises
    ------
    InputError
        If the matrix has another cover.
    """
    A = matrix_of(graph, "none")
    if H_local.is_meta:
        return product(A, H_local)  # moves the same rows
    return pattern_extremes(A.local_pattern, A.halo(H_local), reduce)


def pattern_extremes(pattern: Pattern, H: Tensor, reduce: Extreme) -> Tensor:
    """The same of a pattern [rows, cols] and H [cols, f] on one process."""
    rows, width = pattern.shape[0], H.shape[1]
    lengths = pattern.indptr.diff()
    row = torch.arange(rows, device=H.device).repeat_interleave(lengths)
    found = H.new_zeros(rows, width)
    index = row[:, None].expand(-1, width)
    return found.scatter_reduce(
        0, index, H[pattern.indices.long()], f"a{reduce}", include_self=False
    )
