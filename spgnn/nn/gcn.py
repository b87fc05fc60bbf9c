"""Graph convolutional networks (Kipf & Welling 2017) on a distributed matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.autograd import paper_layer
from spgnn.nn.dropout import DropoutKeys, dropout
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

Order = Literal["auto", "paper"]
ORDERS: tuple[str, ...] = get_args(Order)


@dataclass(frozen=True)
class Propagated:
    """A·X, made once by :func:`propagate_`; a first layer that gets it needs no exchange."""

    AX_local: Tensor


@dataclass(frozen=True)
class Products:
    """The distributed products of one training epoch: widths forward and of the adjoint."""

    forward: tuple[int, ...]
    adjoint: tuple[int, ...]


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


class GCNConv(nn.Module):
    """One layer ``Z = A H W + b``.

    Parameters
    ----------
    f_in, f_out : int
    order : {"auto", "paper"}
        ``auto`` moves the narrower of H and H W. ``paper`` always takes (A H) W, and A G in
        backward, as the ICPP'24 code does.
    input_layer : bool
        H is the input: it needs no gradient, so (A H) W has no product in backward.
    """

    def __init__(
        self, f_in: int, f_out: int, *, order: Order = "auto", input_layer: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(f_in, f_out))
        self.bias = nn.Parameter(torch.zeros(f_out))
        self.order = order
        self.input_layer = input_layer

    def forward(self, A: DistMatrix, H_local: Tensor | CSR | Propagated) -> Tensor:
        """H_local [own rows, f_in] to Z_local [own rows, f_out]. Collective.

        forward Z = A H W; dgrad dH = Aᵀ G Wᵀ; wgrad dW = (A H)ᵀ G = Hᵀ (Aᵀ G), whichever operand
        was kept.
        """
        W = self.weight
        if isinstance(H_local, Propagated):
            Z_local = H_local.AX_local @ W
        elif self.order == "paper":
            Z_local = paper_layer(A, _dense(H_local), W)
        elif self._multiplies_first(H_local):
            Z_local = A @ _times(H_local, W)
        else:
            Z_local = (A @ _dense(H_local)) @ W
        # In place: nobody keeps the product itself.
        return Z_local.add_(self.bias)

    def products(self, H_local: Tensor | CSR | Propagated | None) -> Products:
        """The products of one epoch; ``None`` stands for a hidden layer's H."""
        f_in, f_out = self.weight.shape
        if isinstance(H_local, Propagated):
            return Products((), ())
        if self.order == "paper":
            return Products((f_in,), (f_out,))
        if self._multiplies_first(H_local):
            return Products((f_out,), (f_out,))
        return Products((f_in,), () if self.input_layer else (f_in,))

    def _multiplies_first(self, H_local: Tensor | CSR | None) -> bool:
        """Whether A (H W) moves fewer bytes an epoch than (A H) W."""
        f_in, f_out = self.weight.shape
        # A times sparse features would fill in; H W is narrow and dense.
        return isinstance(H_local, CSR) or 2 * f_out <= f_in * (1 if self.input_layer else 2)


class GCN(nn.Module):
    """Layers of :class:`GCNConv` with ReLU and dropout between them.

    Weights are replicated: the same seed gives the same weights on every rank and at any P.

    Parameters
    ----------
    widths : sequence of int
        Features, hidden widths, classes.
    dropout : float
        Probability, on the input of every layer.
    order : {"auto", "paper"}
    seed : int
        Of the weights (Glorot & Bengio 2010, uniform).
    """

    def __init__(
        self, widths: Sequence[int], *, dropout: float = 0.0, order: Order = "auto", seed: int = 0
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.layers = nn.ModuleList(
            GCNConv(f_in, f_out, order=order, input_layer=number == 0)
            for number, (f_in, f_out) in enumerate(pairwise(widths))
        )
        generator = torch.Generator().manual_seed(seed)
        for layer in self.convolutions:
            bound = (6 / sum(layer.weight.shape)) ** 0.5
            with torch.no_grad():
                layer.weight.uniform_(-bound, bound, generator=generator)

    @property
    def convolutions(self) -> list[GCNConv]:
        """The layers."""
        return [layer for layer in self.layers if isinstance(layer, GCNConv)]

    def forward(
        self, A: DistMatrix, X_local: Tensor | CSR | Propagated, keys: DropoutKeys | None = None
    ) -> Tensor:
        """Logits [own rows, classes]. Collective.

        Parameters
        ----------
        A : DistMatrix
        X_local : Tensor or CSR [own rows, features], or Propagated
            Propagated features cannot be dropped: A·dropout(X) changes every epoch.
        keys : DropoutKeys, optional
            Only in training with dropout.
        """
        first, *rest = self.convolutions
        if not isinstance(X_local, Propagated):
            X_local = dropout(X_local, self.dropout, keys, 0)
        Z_local: Tensor = first(A, X_local)
        for number, layer in enumerate(rest, start=1):
            # In place: the gradient of ReLU needs its result alone.
            H_local = dropout(torch.relu_(Z_local), self.dropout, keys, number)
            Z_local = layer(A, H_local)
        return Z_local

    def products(self, X_local: Tensor | CSR | Propagated) -> Products:
        """All distributed products of one training epoch."""
        per_layer = [
            layer.products(None if number else X_local)
            for number, layer in enumerate(self.convolutions)
        ]
        return Products(
            tuple(width for products in per_layer for width in products.forward),
            tuple(width for products in per_layer for width in products.adjoint),
        )


def _times(H_local: Tensor | CSR, W: Tensor) -> Tensor:
    return kernels.spmm(H_local, W) if isinstance(H_local, CSR) else H_local @ W


def _dense(H_local: Tensor | CSR) -> Tensor:
    if not isinstance(H_local, CSR):
        return H_local
    return torch.from_numpy(H_local.to_scipy().toarray())
