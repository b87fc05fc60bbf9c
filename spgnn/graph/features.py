"""Features as a first layer takes them: dense, sparse, or multiplied by A once, before training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.errors import InputError
from spgnn.kernels.gemm import times_transposed
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix


@dataclass(frozen=True)
class Propagated:
    """A·X, computed once; a first layer that gets it needs no exchange.

    Attributes
    ----------
    AX_local : Tensor [rows, f]
        Rows that the first layer makes: own ones, then those of a recomputed halo.
    X_local : Tensor [rows, f], optional
        X of the same vertices, for layers with a weight for the vertex itself.
    """

    AX_local: Tensor
    X_local: Tensor | None = None

    @property
    def own(self) -> Tensor:
        """X of the vertices whose A·X it is; refused if X was not kept."""
        if self.X_local is None:
            raise InputError(
                "layers with a weight for the vertex itself need X as well as A·X: "
                "propagate_(…, keep=True)"
            )
        return self.X_local

    def to(self, device: torch.device | str) -> Propagated:
        """The same on a device."""
        X_local = None if self.X_local is None else self.X_local.to(device)
        return Propagated(self.AX_local.to(device), X_local)


Features = Tensor | CSR | Propagated


def width_of(H: Features) -> int:
    """Columns of features, however they are stored."""
    shape = (H.AX_local if isinstance(H, Propagated) else H).shape
    if len(shape) < 2:
        raise InputError(f"features must be [rows, f], got {list(shape)}: one is x[:, None]")
    return int(shape[1])


def times(H: Tensor | CSR, W: Tensor) -> Tensor:
    """``H Wᵀ`` of dense or sparse rows H [n, f_in] and W [f_out, f_in]."""
    return kernels.spmm(H, W.T) if isinstance(H, CSR) else times_transposed(H, W)


def propagate_(
    A: DistMatrix, X_local: Tensor, columns: int = 32, *, keep: bool = False
) -> Propagated:
    """A·X, computed `columns` at a time and written over X. Collective.

    A second feature matrix may not fit in memory, and neither may received rows of full width.

    Parameters
    ----------
    X_local : Tensor [own rows, f]
        Overwritten, unless it is kept.
    keep : bool
        Write into a second matrix, and keep X.
    """
    AX_local = torch.empty_like(X_local) if keep else X_local
    columns = min(columns, A.executor.widest(X_local.dtype) or columns)
    for first in range(0, X_local.shape[1], columns):
        part = slice(first, first + columns)
        AX_local[:, part] = A.forward(X_local[:, part].contiguous())
    A.executor.workspace.release()
    return Propagated(AX_local, X_local if keep else None)


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
