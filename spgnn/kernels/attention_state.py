# O is the name of attention's sums in all of its literature.
# ruff: noqa: E741
"""Softmaxes that are not finished: what nonzeros seen so far give each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.attention_ways import way
from spgnn.kernels.recycling import new_rows
from spgnn.sparse import SUM_DTYPE

STORED, MERGED, FINISHED = range(3)  # Ending of attention_types.hpp and attention.cuh


@dataclass(eq=False)
class AttentionState:
    """What nonzeros seen so far give each row: a softmax that is not finished.

    In the dtype of sums. Of rows without nonzeros, m is −∞ and the others are 0.

    Parameters
    ----------
    m : Tensor [rows, heads]
        Largest score.
    n : Tensor [rows, heads]
        Sum of exp(score − m).
    O : Tensor [rows, heads * width]
        Sum of exp(score − m) · z, dropout applied.
    P, pi : Tensor [rows, heads * width] and [rows, heads], optional
        O and n over those nonzeros alone on which LeakyReLU's argument is positive: all that the
        gradient in d needs. GATv2 has none.
    """

    m: Tensor
    n: Tensor
    O: Tensor
    P: Tensor | None = None
    pi: Tensor | None = None

    @classmethod
    def new(cls, rows: int, Z: Tensor, heads: int, gradients: bool) -> AttentionState:
        """Uninitialised rows for features like those of Z."""
        wide = Z.new_empty((0, Z.shape[1]), dtype=SUM_DTYPE[Z.dtype])
        m, n, O = wide.new_empty(rows, heads), wide.new_empty(rows, heads), new_rows(rows, wide)
        if not gradients:
            return cls(m, n, O)
        return cls(m, n, O, new_rows(rows, wide), torch.empty_like(n))

    @property
    def arrays(self) -> tuple[Tensor | None, ...]:
        """m, n, O, P, pi."""
        return self.m, self.n, self.O, self.P, self.pi


@dataclass(frozen=True, eq=False)
class Target:
    """Where the softmaxes of rows go.

    Parameters
    ----------
    ending : int
        `STORED` or `MERGED` into the arrays; or `FINISHED`: divided by n, to ``out``, ``lse`` and,
        where they are wanted, P and pi.
    arrays : (m, n, O, P, pi)
        As `AttentionState.arrays`; of finished rows P and pi alone.
    out : Tensor [rows, heads * width], optional
    lse : Tensor [rows, heads], optional
    """

    ending: int
    arrays: tuple[Tensor | None, ...]
    out: Tensor | None = None
    lse: Tensor | None = None

    @classmethod
    def of(
        cls, state: AttentionState | None, rows: int, Z: Tensor, heads: int, gradients: bool
    ) -> tuple[AttentionState, Target]:
        """A state to be merged into, or a new one, and the target that it makes."""
        if state is not None:
            return state, cls(MERGED, state.arrays)
        state = AttentionState.new(rows, Z, heads, gradients)
        return state, cls(STORED, state.arrays)


def merge_(state: AttentionState, rows: Tensor | None, other: AttentionState) -> AttentionState:
    """Merge other triples into listed rows of a state, in place.

    Parameters
    ----------
    state : AttentionState of n rows
        If it has P and pi, and ``other`` has none, they are left as they are but rescaled: then
        they speak of the state's own nonzeros.
    rows : Tensor, int32 or int64 [k], optional
        Where each row of ``other`` belongs, no row twice; without it all rows in their order.
    other : AttentionState of k rows

    Returns
    -------
    AttentionState
        ``state``
    """
    count = other.m.shape[0]
    if count != state.m.shape[0] if rows is None else count != rows.shape[0]:
        raise InputError(f"{count} rows cannot be merged into {state.m.shape[0]} without a list")
    way(state.m).merge(state.arrays, rows, other.arrays)
    return state


def finish(state: AttentionState, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Weighted sums and normalisers of rows that have seen all of their nonzeros.

    Parameters
    ----------
    state : AttentionState
        Not changed.
    dtype : optional
        Of the sums; that of the state without it.

    Returns
    -------
    out : Tensor [rows, heads * width]
        O / n; zeros for rows without nonzeros.
    lse : Tensor [rows, heads], dtype of the state
        m + log n, −∞ for rows without nonzeros.
    """
    out, lse = torch.empty_like(state.O, dtype=dtype), torch.empty_like(state.m)
    way(state.m).finish(state.arrays, out, lse)
    return out, lse


def head_products(G: Tensor, X: Tensor, heads: int) -> Tensor:
    """<G[i, h], X[i, h]> for every row and head: [rows, heads], dtype of sums.

    Parameters
    ----------
    G : Tensor [rows, heads * width]
    X : Tensor [rows, heads * width], dtype of G or of its sums
    """
    products = G.new_empty((G.shape[0], heads), dtype=SUM_DTYPE[G.dtype])
    way(G).head_products(G, X, products)
    return products


def row_gradient(
    state: AttentionState, G: Tensor, lse: Tensor, D: Tensor, slope: float = 0.2
) -> Tensor:
    """Gradient in d by the nonzeros that a state has seen, which may be a block's alone.

    Gradients of states that make up a row add up to that of the row. In exact terms, with the
    state's sums rescaled by exp(m − lse):
    ``slope · (<G, O> − D n) + (1 − slope) · (<G, P> − D pi)``.

    Parameters
    ----------
    state : AttentionState with P and pi
    G : Tensor [rows, heads * width]
        Gradient in the weighted sums.
    lse, D : Tensor [rows, heads], dtype of sums
        Of whole rows: `finish` gives lse; D is ``head_products(G, out, heads)``.

    Returns
    -------
    Tensor [rows, heads], dtype of sums
    """
    assert state.P is not None
    assert state.pi is not None
    heads = lse.shape[1]
    scale = torch.where(state.n == 0, 0.0, torch.exp(state.m - lse))
    below = head_products(G, state.O, heads) - D * state.n
    above = head_products(G, state.P, heads) - D * state.pi
    return scale * (slope * below + (1 - slope) * above)
