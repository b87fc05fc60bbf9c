"""A matrix of one process that layers take as they take a distributed one: cheap to make."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention import Attention
from spgnn.autograd import named
from spgnn.comm import SoloCommunicator
from spgnn.errors import InputError
from spgnn.exchange import Plan, Stage, Step
from spgnn.kernels.recycling import new_rows
from spgnn.operands import Operands
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

_ALONE = SoloCommunicator()


class LocalMatrix:
    """``B + diag(d)`` on one process, B [rows, columns] with rows ≤ columns; linear.

    Row i and column i are the same vertex, so the diagonal needs no place in the pattern.

    Parameters
    ----------
    block : CSR [rows, columns]
    diagonal : Tensor float32 [rows], optional
    """

    def __init__(self, block: CSR, diagonal: Tensor | None = None) -> None:
        self.block, self.diagonal = block, diagonal
        self.rows, self.columns = block.shape
        self.record: list[Any] = []
        self.operands = Operands(_ALONE)
        self.handle = named(self)
        self._as: dict[torch.dtype, tuple[CSR, Tensor | None]] = {}
        self._beside: dict[int, BesideOwn] = {}

    def next_step(self, H_local: Tensor) -> Step:
        """Check an operand.

        Raises
        ------
        InputError
            If it has not one row for each column.
        """
        return _checked(H_local, self.block)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """``B·H + d·H``, without autograd."""
        block, diagonal = self._in(H_local)
        Z = kernels.spmm(block, H_local)
        return Z if diagonal is None else Z.addcmul_(H_local[: self.rows], diagonal)

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """``Bᵀ·G + d·G``, without autograd."""
        block, diagonal = self._in(G_local)
        dH = kernels.spmm(block.T, G_local)
        if diagonal is not None:
            dH[: self.rows].addcmul_(G_local, diagonal)
        return dH

    def halo(self, H_local: Tensor, *, exact: bool = True) -> Tensor:
        """All that its rows need: H itself, which is exact in any case."""
        _ = self.next_step(H_local)
        return H_local

    @property
    def local_pattern(self) -> Pattern:
        """Its nonzeros, those of the diagonal apart."""
        return self.block.pattern

    def local_matrix(self) -> CSR:
        """The matrix as one block.

        Raises
        ------
        InputError
            If it has a diagonal apart.
        """
        if self.diagonal is not None:
            raise InputError("the edges of a batch cannot be dropped where self-loops are added")
        return self.block

    @cached_property
    def attention(self) -> Attention:
        """What runs attention over the nonzeros."""
        return Attention(Plan((Stage(self.block, None, ()),)), {"everyone": _ALONE})

    def beside_own(self, width: int) -> BesideOwn:
        """What has the rows' own vertices beside what is made of neighbours, of so wide an H."""
        if width not in self._beside:
            assert self.diagonal is None
            self._beside[width] = BesideOwn(self.block, width)
        return self._beside[width]

    def _in(self, like: Tensor) -> tuple[CSR, Tensor | None]:
        """The block and its diagonal for operands of a dtype."""
        found = self._as.get(like.dtype)
        if found is None:
            block = self.block.to(like.dtype)
            column = None if self.diagonal is None else self.diagonal[:, None].to(like.dtype)
            found = self._as[like.dtype] = block, column
        return found


class BesideOwn:
    """H to ``[A·H, own rows of H, ones]``, side by side; affine.

    One dense product then maps both and adds a bias, and the gradient in H is made in one piece.
    Columns of zeros make their number a multiple of 16, which dense products like.

    Parameters
    ----------
    block : CSR [rows, columns]
        A.
    width : int
        f.
    """

    def __init__(self, block: CSR, width: int) -> None:
        self.block = block
        self.rows, self.columns = block.shape
        self.width, self.wide = width, -(-(2 * width + 1) // 16) * 16
        self.handle = named(self)

    def next_step(self, H_local: Tensor) -> Step:
        """Check an operand."""
        return _checked(H_local, self.block)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """H [columns, f] to [rows, 2 f + 1 and a few], without autograd."""
        f = self.width
        both = new_rows(self.rows, H_local.new_empty(0, self.wide))
        kernels.spmm(self.block.to(H_local.dtype), H_local, out=both[:, :f])
        both[:, f : 2 * f] = H_local[: self.rows]
        both[:, 2 * f] = 1
        both[:, 2 * f + 1 :] = 0
        return both

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """The gradient in H of one in all columns, without autograd; ones have none."""
        f = self.width
        dH = kernels.spmm(self.block.T.to(G_local.dtype), G_local[:, :f])
        dH[: self.rows] += G_local[:, f : 2 * f]
        return dH


def _checked(H_local: Tensor, block: CSR) -> Step:
    """Refuse what a block does not multiply."""
    if H_local.dim() != 2 or H_local.shape[0] != block.shape[1]:
        shape, given = list(block.shape), list(H_local.shape)
        hops = "; layers of several hops take a batch's own graph" if len(given) == 2 else ""
        raise InputError(f"a block {shape} multiplies {shape[1]} rows, got {given}{hops}")
    return Step()
