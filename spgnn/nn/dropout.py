"""Dropout that depends on the vertex, not on the rank that owns it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.errors import InputError
from spgnn.kernels.torch_kernels import dropout_keeps
from spgnn.nn.propagation import LayerMatrix
from spgnn.sparse import CSR


@dataclass(frozen=True)
class DropoutKeys:
    """Where the masks of one training step come from.

    Parameters
    ----------
    vertex_ids : Tensor int64 [rows]
        Original ids of this rank's vertices; layers on a Propagation take those of its sources.
    seed, epoch : int
        With the layer, they make the key of the counter-based generator: the mask of a value is
        a pure function of (seed, epoch, layer, vertex, column), hence the same at any P.
    """

    vertex_ids: Tensor
    seed: int
    epoch: int

    def key(self, layer: int) -> int:
        """A 64-bit key; distinct for distinct (seed, epoch, layer) of less than 2²⁴, 2²⁴, 2¹⁶."""
        return ((self.seed & 0xFFFFFF) << 40) | ((self.epoch & 0xFFFFFF) << 16) | (layer & 0xFFFF)


def keys_on(keys: DropoutKeys | None, ids: Tensor | None) -> DropoutKeys | None:
    """A ghost is dropped as at its owner: by its own id."""
    return keys if keys is None or ids is None else replace(keys, vertex_ids=ids)


def dropout(X: Tensor | CSR, p: float, keys: DropoutKeys | None, layer: int) -> Tensor | CSR:
    """Zero each feature with probability p and scale the rest by 1 / (1 - p).

    Parameters
    ----------
    X : Tensor or CSR [rows, f]
        A stored zero and a missing one are dropped alike, so sparse and dense features train alike.
    p : float in [0, 1)
    keys : DropoutKeys or None
        ``None`` outside training: nothing is dropped.
    layer : int
    """
    if p == 0 or keys is None:
        return X
    if isinstance(X, CSR):
        if X.values is None:
            raise InputError("sparse features need values")
        vertices = keys.vertex_ids.repeat_interleave(X.row_lengths)
        kept = dropout_keeps(vertices, X.indices.long(), keys.key(layer), p)
        return replace(X, values=torch.where(kept, X.values * (1 / (1 - p)), 0.0))
    return kernels.dropout_rows(X, keys.vertex_ids, keys.key(layer), p)


def halo_ids(A: LayerMatrix, vertex_ids: Tensor) -> Tensor:
    """Original ids of own vertices and of those received: int64 [own + received]. Collective."""
    return A.halo(vertex_ids[:, None].double(), exact=True)[:, 0].long()


def edges_dropped(A: LayerMatrix, H_local: Tensor, ids: Tensor, key: int, p: float) -> Tensor:
    """``A·H`` with each nonzero of A dropped with probability p, the rest scaled. Collective.

    Whether a nonzero is dropped is a function of the two vertices, so it is the same at any P.

    Parameters
    ----------
    A : DistMatrix
        1D with column covers: whole rows of H have to arrive.
    H_local : Tensor [own rows, f]
    ids : Tensor int64 [own + received]
        Of the halo's vertices; see `halo_ids`.
    key : int
    p : float in [0, 1)
    """
    B = A.local_matrix()
    rows = torch.arange(B.shape[0], device=ids.device).repeat_interleave(B.row_lengths)
    kept = dropout_keeps(ids[rows], ids[B.indices.long()], key, p)
    values = kept.to(H_local.dtype) / (1 - p)
    values = values if B.values is None else values * B.values
    return kernels.spmm(B.with_values(values), A.halo(H_local))
