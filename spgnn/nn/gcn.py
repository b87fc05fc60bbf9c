"""Graph convolutional networks (Kipf & Welling 2017) on a distributed matrix."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.autograd import paper_layer, product
from spgnn.errors import InputError
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import LayerGraph, matrix_of
from spgnn.nn.stack import Convolution, Stack, glorot_, linear, multiplies_first
from spgnn.sparse import CSR

Order = Literal["auto", "paper"]
ORDERS: tuple[str, ...] = get_args(Order)


class GCNConv(Convolution):
    """One layer ``Z = A H W + b``.

    Parameters
    ----------
    in_channels, out_channels : int
    order : {"auto", "paper"}
        ``auto`` moves the narrower of H and H W. ``paper`` always takes (A H) W, and A G in
        backward, as the ICPP'24 code does.
    """

    def __init__(self, in_channels: int, out_channels: int, *, order: Order = "auto") -> None:
        super().__init__()
        self.lin = linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.order = order

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw the matrix anew, in the order [f_in, f_out] of its formula."""
        W = torch.empty_like(self.lin.weight.T, memory_format=torch.contiguous_format)
        glorot_(W, generator)
        self.lin.weight.data.copy_(W.T)

    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        forward Z = A H W; dgrad dH = Aᵀ G Wᵀ; wgrad dW = (A H)ᵀ G = Hᵀ (Aᵀ G), whichever operand
        was kept.

        Raises
        ------
        InputError
            If the order is ``paper`` and H is sparse: A H fills in. If there is no matrix, and H is
            not propagated.
        """
        W = self.lin.weight.T
        if isinstance(H_local, Propagated):
            Z_local = H_local.AX_local @ W
        elif isinstance(H_local, CSR):
            if self.order == "paper":
                raise InputError(
                    "order paper needs dense features; make them so, once: nn.densified(X)"
                )
            Z_local = product(matrix_of(graph, "sym"), kernels.spmm(H_local, W))
        elif self.order == "paper":
            Z_local = paper_layer(matrix_of(graph, "sym"), H_local, W)
        elif multiplies_first(H_local, len(self.bias)):
            Z_local = product(matrix_of(graph, "sym"), H_local @ W)
        else:
            Z_local = product(matrix_of(graph, "sym"), H_local) @ W
        # In place: nobody keeps the product itself.
        return Z_local.add_(self.bias)

    @staticmethod
    def size(f_in: int, f_out: int) -> int:
        """Numbers in its matrix."""
        return f_in * f_out


class GCN(Stack):
    """Layers of :class:`GCNConv`; parameters are those of :class:`Stack` and the layers' order."""

    convolution = GCNConv
