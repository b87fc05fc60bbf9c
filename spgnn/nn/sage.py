"""GraphSAGE (Hamilton et al. 2017) with the mean of all neighbours, on a distributed matrix."""

from __future__ import annotations

from torch import Tensor

from spgnn import kernels
from spgnn.autograd import autocast, product
from spgnn.nn.features import Features, Propagated, features_beside
from spgnn.nn.propagation import LayerGraph, matrix_of, own_rows
from spgnn.nn.stack import Convolution, Stack, linear, multiplies_first
from spgnn.sparse import CSR


class SAGEConv(Convolution):
    """One layer ``Z = A H W_l + H W_r + b``, with A = D^-1 B of the adjacency B as it is.

    Parameters are those of PyG's layer of that name, and so are their names: ``lin_l`` (of the
    neighbours, with the bias) and ``lin_r`` (of the vertex itself).

    Parameters
    ----------
    in_channels, out_channels : int
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin_l = linear(in_channels, out_channels)
        self.lin_r = linear(in_channels, out_channels, bias=False)

    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        The narrower of H and H W_l travels; H W_r goes nowhere.

        Raises
        ------
        InputError
            If there is no matrix, and H is not propagated; if it is, without H beside it.
        """
        W_l, W_r = self.lin_l.weight.T, self.lin_r.weight.T
        if isinstance(H_local, CSR):
            Z_local = product(matrix_of(graph, "row"), kernels.spmm(H_local, W_l))
            Z_local = Z_local.add_(own_rows(graph, kernels.spmm(H_local, W_r)))
        else:
            if isinstance(H_local, Propagated):
                Z_local, H_own = H_local.AX_local @ W_l, features_beside(H_local)
            else:
                H_own, A = own_rows(graph, H_local), matrix_of(graph, "row")
                first = multiplies_first(H_local, W_l.shape[1])
                Z_local = product(A, H_local @ W_l) if first else product(A, H_local) @ W_l
            # In place: nobody keeps the product itself.
            Z_local = Z_local.addmm_(autocast(H_own), autocast(W_r))
        return Z_local.add_(self.lin_l.bias)

    @staticmethod
    def size(f_in: int, f_out: int) -> int:
        """Numbers in its two matrices."""
        return 2 * f_in * f_out


class GraphSAGE(Stack):
    """Layers of :class:`SAGEConv`; parameters are those of :class:`Stack`."""

    convolution = SAGEConv
