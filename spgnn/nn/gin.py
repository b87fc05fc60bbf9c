"""Graph isomorphism networks (Xu et al. 2019) on a distributed matrix."""

from __future__ import annotations

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
    in_channels, out_channels : int
        The width between the two linear layers is out_channels, too.
    eps : float
    train_eps : bool
        Whether ε is learned.
    """

    eps: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, *, eps: float = 0.0, train_eps: bool = False
    ) -> None:
        super().__init__()
        self.nn = nn.Sequential(
            linear(in_channels, out_channels),
            nn.ReLU(inplace=True),
            linear(out_channels, out_channels),
        )
        if train_eps:
            self.eps = nn.Parameter(torch.full((1,), eps))
        else:
            self.register_buffer("eps", torch.full((1,), eps))

    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
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
        if isinstance(H_local, CSR) or (
            isinstance(H_local, Tensor) and multiplies_first(H_local, first.out_features)
        ):
            W = first.weight.T
            HW = kernels.spmm(H_local, W) if isinstance(H_local, CSR) else H_local @ W
            # In place, here and below: nobody keeps the product itself.
            Z_local = product(matrix_of(graph, "none"), HW).addcmul_(own_rows(graph, HW), own)
            Z_local = Z_local.add_(first.bias)
        else:
            if isinstance(H_local, Propagated):
                summed = torch.addcmul(H_local.AX_local, features_beside(H_local), own)
            else:
                AH = product(matrix_of(graph, "none"), H_local)
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
