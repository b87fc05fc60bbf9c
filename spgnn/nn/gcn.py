"""Graph convolutional networks (Kipf & Welling 2017) on a distributed matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.autograd import paper_layer, product
from spgnn.errors import InputError
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import LayerGraph, matrix_of
from spgnn.nn.stack import Convolution, Stack, multiplies_first
from spgnn.sparse import CSR

Order = Literal["auto", "paper"]
ORDERS: tuple[str, ...] = get_args(Order)


class GCNConv(Convolution):
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
        self.multiplies_first = multiplies_first(f_in, f_out, input_layer)

    def forward(self, graph: LayerGraph, H_local: Features) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        forward Z = A H W; dgrad dH = Aᵀ G Wᵀ; wgrad dW = (A H)ᵀ G = Hᵀ (Aᵀ G), whichever operand
        was kept.

        Raises
        ------
        InputError
            If the order is ``paper`` and H is sparse: A H fills in. If there is no matrix, and H is
            not propagated.
        """
        W = self.weight
        if isinstance(H_local, Propagated):
            Z_local = H_local.AX_local @ W
        elif isinstance(H_local, CSR):
            if self.order == "paper":
                raise InputError(
                    "order paper needs dense features; make them so, once: nn.densified(X)"
                )
            Z_local = product(matrix_of(graph), kernels.spmm(H_local, W))
        elif self.order == "paper":
            Z_local = paper_layer(matrix_of(graph), H_local, W)
        elif self.multiplies_first:
            Z_local = product(matrix_of(graph), H_local @ W)
        else:
            Z_local = product(matrix_of(graph), H_local) @ W
        # In place: nobody keeps the product itself.
        return Z_local.add_(self.bias)

    @staticmethod
    def size(f_in: int, f_out: int) -> int:
        """Numbers in its matrix."""
        return f_in * f_out


class GCN(Stack):
    """Layers of :class:`GCNConv`; parameters are those of :class:`Stack` and the layers' order."""

    convolution = GCNConv

    def __init__(
        self,
        widths: Sequence[int],
        *,
        dropout: float = 0.0,
        order: Order = "auto",
        input_dropout: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(
            widths, dropout=dropout, input_dropout=input_dropout, seed=seed, order=order
        )
