"""Another order of working on the rows of a block, for locality; results keep their bits.

A product reads one row of X per nonzero. If neighbouring rows of A share columns, those rows of X
are still in cache. `reorder` groups the rows of A into clusters that do, and keeps a copy of A's
rows in that order beside the block; X and Y stay where they are.

The rule: (1) count the *far* nonzeros, those whose column none of the last `WINDOW` nonzeros used.
If they are fewer than `WORTH_A_LOOK` of all, the order is good already. (2) Cluster the rows by
size-constrained label propagation and count again. (3) Keep the new order if it has at most
`WORTH_KEEPING` times as many far nonzeros.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels import native
from spgnn.pattern import INT32_LIMIT
from spgnn.sparse import CSR

WINDOW = 2**15
WORTH_A_LOOK = 0.25
WORTH_KEEPING = 0.8
# 4096 rows of X with 64 float32 columns are 1 MiB, about the second-level cache of a core.
LARGEST_CLUSTER = 4096
SWEEPS = 4

_KEPT_AS = "_reordering"


@dataclass(frozen=True)
class Reordering:
    """What `reorder` found and what it cost.

    Attributes
    ----------
    kept : bool
        Whether products with the block now run in the new order.
    seconds : float
        Time taken by counting, clustering and copying.
    far_before, far_after : float
        Share of far nonzeros in the given and in the clustered order; equal if not clustered.
    """

    kept: bool
    seconds: float
    far_before: float
    far_after: float


def reorder(A: CSR) -> Reordering:
    """Let products ``A X`` run in a cache-friendlier row order, if the block gains by one.

    Costs a few products' time once (see `Reordering.seconds`) and, if kept, a second copy of A's
    indices and values. It changes no bit of any result. Products with ``Aᵀ`` gain from
    ``reorder(A.T)``. Calling it again measures again.

    Parameters
    ----------
    A : CSR [n, n], on the CPU

    Raises
    ------
    InputError
        If the block is not square or not on the CPU.
    """
    if A.shape[0] != A.shape[1] or A.device.type != "cpu" or A.shape[0] >= INT32_LIMIT:
        raise InputError(f"only a square block on the CPU can be reordered, got {A} on {A.device}")
    started = time.perf_counter()
    A.__dict__.pop(_KEPT_AS, None)
    before = after = native.far_share(A, None, WINDOW)
    order = None
    if before >= WORTH_A_LOOK:
        order = native.cluster_order(A, LARGEST_CLUSTER, SWEEPS)
        after = native.far_share(A, order, WINDOW)
    kept = order is not None and after <= WORTH_KEEPING * before
    if order is not None and kept:
        A.__dict__[_KEPT_AS] = _permuted(A, order)
    return Reordering(kept, time.perf_counter() - started, before, after)


def is_reordered(A: CSR) -> bool:
    """Whether products with A run through a permuted copy of its rows."""
    return _KEPT_AS in A.__dict__


def stored_arrays(A: CSR | None) -> tuple[Tensor | None, ...]:
    """indptr, indices, values and row order in which products with A run."""
    if A is None:
        return (None,) * 4
    kept: tuple[Tensor | None, ...] | None = A.__dict__.get(_KEPT_AS)
    return kept if kept is not None else (A.indptr, A.indices, A.values, None)


def _permuted(A: CSR, order: Tensor) -> tuple[Tensor | None, ...]:
    lengths = A.row_lengths[order.long()]
    indptr = torch.zeros_like(A.indptr)
    torch.cumsum(lengths, 0, out=indptr[1:])
    # Nonzero e of new row i is nonzero e − indptr[i] of old row order[i].
    shift = A.indptr[:-1][order.long()] - indptr[:-1]
    source = torch.arange(A.nnz) + shift.repeat_interleave(lengths)
    values = None if A.values is None else A.values[source]
    return indptr, A.indices[source], values, order
