"""Graph convolutional networks (Kipf & Welling 2017) on a distributed matrix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.autograd import paper_layer, product
from spgnn.errors import InputError
from spgnn.nn.dropout import DropoutKeys, dropout
from spgnn.nn.features import Propagated
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

Order = Literal["auto", "paper"]
ORDERS: tuple[str, ...] = get_args(Order)


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

        Raises
        ------
        InputError
            If the order is ``paper`` and H is sparse: A H fills in.
        """
        W = self.weight
        if isinstance(H_local, Propagated):
            Z_local = H_local.AX_local @ W
        elif isinstance(H_local, CSR):
            if self.order == "paper":
                raise InputError(
                    "order paper needs dense features; make them so, once: nn.densified(X)"
                )
            Z_local = product(A, kernels.spmm(H_local, W))
        elif self.order == "paper":
            Z_local = paper_layer(A, H_local, W)
        elif self._multiplies_first:
            Z_local = product(A, H_local @ W)
        else:
            Z_local = product(A, H_local) @ W
        # In place: nobody keeps the product itself.
        return Z_local.add_(self.bias)

    @property
    def _multiplies_first(self) -> bool:
        """Whether A (H W) moves fewer bytes an epoch than (A H) W."""
        f_in, f_out = self.weight.shape
        return bool(2 * f_out <= f_in * (1 if self.input_layer else 2))


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
