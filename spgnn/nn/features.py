"""What is made of features once, before training: A·X, or dense ones of sparse."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix


@dataclass(frozen=True)
class Propagated:
    """A·X, made once by :func:`propagate_`; a first layer that gets it needs no exchange."""

    AX_local: Tensor


def propagate_(A: DistMatrix, X_local: Tensor, columns: int = 32) -> Propagated:
    """Overwrite X by A·X, `columns` at a time. Collective.

    A second feature matrix may not fit beside the first, and neither may received rows of full
    width.

    Parameters
    ----------
    A : DistMatrix
    X_local : Tensor [own rows, f]
        Overwritten.
    """
    for first in range(0, X_local.shape[1], columns):
        chunk = X_local[:, first : first + columns]
        chunk.copy_(A.forward(chunk.contiguous()))
    A.executor.workspace.release()
    return Propagated(X_local)


def densified(X_local: CSR) -> Tensor:
    """Sparse features as a dense tensor [own rows, f] on the same device.

    Raises
    ------
    InputError
        If the features have no values.
    """
    if X_local.values is None:
        raise InputError("sparse features need values")
    rows, _ = X_local.shape
    row = torch.arange(rows, device=X_local.device).repeat_interleave(X_local.row_lengths)
    X = X_local.values.new_zeros(X_local.shape)
    X[row, X_local.indices.long()] = X_local.values
    return X
