"""Graph isomorphism networks (Xu et al. 2019) on a distributed matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.autograd import product
from spgnn.nn.features import Features, Propagated, features_beside
from spgnn.nn.propagation import LayerGraph, matrix_of, own_rows
from spgnn.nn.stack import Convolution, Stack, linear, multiplies_first
from spgnn.sparse import CSR


class GINConv(Convolution):
    """One layer ``Z = relu((A H + (1 + ε) H) W_1 + b_1) W_2 + b_2``, with A the adjacency as it is.

    Parameters are those of PyG's layer around Linear, ReLU, Linear, and so are their names:
    ``nn.0``, ``nn.2`` and ``eps``.

    Parameters
    ----------
    f_in, f_out : int
        The width between the two linear layers is f_out, too.
    eps : float
    train_eps : bool
        Whether ε is learned.
    input_layer : bool
        H is the input: it needs no gradient, so (A H) W has no product in backward.
    """

    eps: Tensor

    def __init__(
        self,
        f_in: int,
        f_out: int,
        *,
        eps: float = 0.0,
        train_eps: bool = False,
        input_layer: bool = False,
    ) -> None:
        super().__init__()
        self.nn = nn.Sequential(linear(f_in, f_out), nn.ReLU(inplace=True), linear(f_out, f_out))
        if train_eps:
            self.eps = nn.Parameter(torch.full((1,), eps))
        else:
            self.register_buffer("eps", torch.full((1,), eps))
        self.multiplies_first = multiplies_first(f_in, f_out, input_layer)

    def forward(self, graph: LayerGraph, H_local: Features) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        The sum over the neighbours is linear, so it may come after W_1: the narrower of H and H W_1
        travels.

        Raises
        ------
        InputError
            If there is no matrix, and H is not propagated; if it is, without H beside it.
        """
        first, *rest = self.nn
        assert isinstance(first, nn.Linear)
        own = 1 + self.eps
        if isinstance(H_local, CSR) or (isinstance(H_local, Tensor) and self.multiplies_first):
            W = first.weight.T
            HW = kernels.spmm(H_local, W) if isinstance(H_local, CSR) else H_local @ W
            # In place, here and below: nobody keeps the product itself.
            Z_local = product(matrix_of(graph), HW).addcmul_(own_rows(graph, HW), own)
            Z_local = Z_local.add_(first.bias)
        else:
            if isinstance(H_local, Propagated):
                summed = torch.addcmul(H_local.AX_local, features_beside(H_local), own)
            else:
                AH = product(matrix_of(graph), H_local)
                summed = AH.addcmul_(own_rows(graph, H_local), own)
            Z_local = first(summed)
        for module in rest:
            Z_local = module(Z_local)
        return Z_local

    @staticmethod
    def size(f_in: int, f_out: int) -> int:
        """Numbers in its two matrices."""
        return (f_in + f_out) * f_out


class GIN(Stack):
    """Layers of :class:`GINConv`; parameters are those of :class:`Stack` and the layers' train_eps.

    As in the paper, ε begins at 0.
    """

    convolution = GINConv

    def __init__(
        self,
        widths: Sequence[int],
        *,
        dropout: float = 0.0,
        input_dropout: bool = True,
        train_eps: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            widths, dropout=dropout, input_dropout=input_dropout, seed=seed, train_eps=train_eps
        )
