"""GraphSAGE (Hamilton et al. 2017) with all neighbours, on a distributed matrix."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn import kernels
from spgnn.autograd import autocast, product
from spgnn.errors import InputError, check_choice
from spgnn.nn.convolution import (
    Convolution,
    Linear,
    check_channels,
    check_options,
    linear,
    multiplies_first,
)
from spgnn.nn.extremes import neighbour_extremes
from spgnn.nn.features import Features, Propagated, features_beside
from spgnn.nn.products import Kind, operator_of
from spgnn.nn.propagation import LayerGraph, own_rows
from spgnn.nn.stack import Stack
from spgnn.sparse import CSR

Aggregation = Literal["mean", "sum", "add", "max", "min"]
AGGREGATIONS = ("mean", "sum", "add", "max", "min")
_MATRIX: dict[str, Kind] = {"mean": "row", "sum": "none", "add": "none"}


class SAGEConv(Convolution):
    """One layer ``Z = aggr(H) W_l + H W_r + b``: by default the mean of all neighbours, D^-1 A H.

    Parameters are those of PyG's layer of that name, and so are their names: ``lin_l`` (of the
    neighbours, with the bias), ``lin_r`` (of the vertex itself) and ``lin`` (of the projection).

    Parameters
    ----------
    in_channels, out_channels : int
        −1 finds `in_channels` at the first call.
    aggr : {"mean", "sum", "max", "min"}
    normalize : bool
        Divide each row by its length.
    root_weight : bool
        Without, there is no W_r.
    project : bool
        Neighbours are ``relu(H W + b)``.
    bias : bool
    options
        Of PyG's message passing; none but their defaults.
    """

    def __init__(  # noqa: PLR0917 - as PyG orders them
        self,
        in_channels: int,
        out_channels: int,
        aggr: Aggregation = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_channels("SAGEConv", in_channels=in_channels, out_channels=out_channels)
        check_options(self, options)
        check_choice("SAGEConv aggr", aggr, AGGREGATIONS)
        if project and in_channels < 0:
            raise InputError("SAGEConv: project=True needs in_channels")
        self.aggr, self.normalize = aggr, normalize
        self.out_channels = out_channels
        self.lin = linear(in_channels, in_channels) if project else None
        self.lin_l = linear(in_channels, out_channels, bias=bias)
        self.lin_r = linear(in_channels, out_channels, bias=False) if root_weight else None
        self.propagates = aggr in _MATRIX and not project
        self.looks_at_itself = root_weight

    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        The narrower of H and H W_l travels; H W_r goes nowhere.

        Raises
        ------
        InputError
            If there is no matrix, and H is not propagated; if it is, without H beside it. If H is
            sparse or propagated, and the largest neighbour is asked for.
        """
        Z_local = self._of_neighbours(H_local, graph)
        if self.lin_r is not None:
            # In place: nobody keeps the product itself.
            W_r = self.lin_r.weight.T
            if isinstance(H_local, CSR):
                Z_local = Z_local.add_(own_rows(graph, kernels.spmm(H_local, W_r)))
            elif isinstance(H_local, Propagated):
                Z_local = Z_local.addmm_(autocast(features_beside(H_local)), autocast(W_r))
            else:
                Z_local = Z_local.addmm_(autocast(own_rows(graph, H_local)), autocast(W_r))
        if self.lin_l.bias is not None:
            Z_local = Z_local.add_(self.lin_l.bias)
        return F.normalize(Z_local, dim=-1) if self.normalize else Z_local

    def _of_neighbours(self, H_local: Features, graph: LayerGraph) -> Tensor:
        W_l = self.lin_l.weight.T
        if isinstance(H_local, Propagated):
            if not self.propagates:
                raise InputError(f"SAGEConv: aggr {self.aggr} and project need X, not A·X")
            return H_local.AX_local @ W_l
        if self.lin is not None:
            H_local = _projected(self.lin, H_local)
        if self.aggr in _MATRIX:
            kind = _MATRIX[self.aggr]
            if isinstance(H_local, CSR):
                return product(operator_of(graph, kind), kernels.spmm(H_local, W_l))
            if multiplies_first(H_local, self.out_channels):
                return product(operator_of(graph, kind), H_local @ W_l)
            return product(operator_of(graph, kind), H_local) @ W_l
        if isinstance(H_local, CSR):
            raise InputError(
                f"aggr {self.aggr} needs dense features; make them so, once: nn.densified(X)"
            )
        largest = neighbour_extremes(graph, H_local, "max" if self.aggr == "max" else "min")
        return largest @ W_l


def _projected(lin: Linear, H_local: Tensor | CSR) -> Tensor:
    if isinstance(H_local, CSR):
        return torch.relu(kernels.spmm(H_local, lin.weight.T) + lin.bias)
    return torch.relu(lin(H_local))


class GraphSAGE(Stack):
    """Layers of :class:`SAGEConv`; parameters are those of :class:`Stack`, options the layers'."""

    convolution = SAGEConv
