"""Graph convolutional networks (Kipf & Welling 2017) on a distributed matrix."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.autograd import paper_layer, product
from spgnn.errors import InputError, check_choice
from spgnn.nn.convolution import (
    Convolution,
    check_channels,
    check_options,
    glorot_,
    linear,
    multiplies_first,
)
from spgnn.nn.features import Features, Propagated
from spgnn.nn.products import Kind, operator_of
from spgnn.nn.propagation import LayerGraph, matrix_of
from spgnn.nn.stack import Stack
from spgnn.nn.update import After, finished
from spgnn.sparse import CSR

Order = Literal["auto", "paper"]
ORDERS: tuple[str, ...] = get_args(Order)


class GCNConv(Convolution):
    """One layer ``Z = Â H W + b`` with ``Â = D^-1/2 (A + I) D^-1/2``.

    Parameters are those of PyG's layer of that name, and so are their names: ``lin`` and ``bias``.

    Parameters
    ----------
    in_channels, out_channels : int
        −1 finds `in_channels` at the first call.
    improved : bool
        ``A + 2 I`` in the place of ``A + I``.
    cached : bool
        Has no effect: a graph keeps its matrices.
    add_self_loops : bool, optional
        By default if the matrix is normalised.
    normalize : bool
        ``False``: A as it is.
    bias : bool
    order : {"auto", "paper"}
        ``auto`` moves the narrower of H and H W. ``paper`` always takes (A H) W, and A G in
        backward, as the ICPP'24 code does.
    options
        Of PyG's message passing; none but their defaults.
    """

    bias: Tensor | None
    updates = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        *,
        order: Order = "auto",
        **options: Any,
    ) -> None:
        super().__init__()
        check_channels("GCNConv", in_channels=in_channels, out_channels=out_channels)
        check_options(self, options, aggr="add")
        check_choice("order", order, ORDERS)
        loops = normalize if add_self_loops is None else add_self_loops
        if loops and not normalize:
            raise InputError("GCNConv: add_self_loops=True needs normalize=True")
        self.out_channels = out_channels
        self.kind: Kind = "none"
        if normalize:
            self.kind = ("improved" if improved else "sym") if loops else "plain"
        if order == "paper" and self.kind != "sym":
            raise InputError("GCNConv: order paper needs the normalisation of Kipf & Welling")
        self.lin = linear(in_channels, out_channels, bias=False)
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_channels))
        else:
            self.register_parameter("bias", None)
        self.order = order

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw the matrix anew, in the order [f_in, f_out] of its formula; a bias of zero."""
        W = torch.empty_like(self.lin.weight.T, memory_format=torch.contiguous_format)
        glorot_(W, generator)
        self.lin.weight.data.copy_(W.T)

    def forward(
        self, H_local: Features, graph: LayerGraph, *, update: After | None = None
    ) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out], updated. Collective.

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
            Z_local = kernels.times_transposed(H_local.AX_local, W.T)
        elif isinstance(H_local, CSR):
            if self.order == "paper":
                raise InputError(
                    "order paper needs dense features; make them so, once: nn.densified(X)"
                )
            Z_local = product(operator_of(graph, self.kind), kernels.spmm(H_local, W))
        elif self.order == "paper":
            Z_local = paper_layer(matrix_of(graph, "sym"), H_local, W)
        elif multiplies_first(H_local, self.out_channels, graph):
            Z_local = product(operator_of(graph, self.kind), kernels.times_transposed(H_local, W.T))
        else:
            AH = product(operator_of(graph, self.kind), H_local)
            Z_local = kernels.times_transposed(AH, W.T)
        return finished(Z_local, self.bias, update)


class GCN(Stack):
    """Layers of :class:`GCNConv`; parameters are those of :class:`Stack`, options the layers'."""

    convolution = GCNConv
