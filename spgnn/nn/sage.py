"""GraphSAGE (Hamilton et al. 2017) with all neighbours, on a distributed matrix."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn import kernels
from spgnn.errors import InputError, check_choice
from spgnn.nn.aggregation import (
    AGGREGATIONS,
    LINEAR,
    Aggregation,
    Weights,
    add_itself_,
    aggregated,
    with_itself,
)
from spgnn.nn.convolution import (
    Convolution,
    Linear,
    check_channels,
    check_options,
    linear,
)
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import LayerGraph
from spgnn.nn.stack import Stack
from spgnn.nn.update import After, finished
from spgnn.sparse import CSR


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

    updates = True

    def __init__(
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
        self.propagates = aggr in LINEAR and not project
        self.looks_at_itself = root_weight
        self.updates = not normalize

    def forward(
        self, H_local: Features, graph: LayerGraph, *, update: After | None = None
    ) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out], updated. Collective.

        The narrower of H and H W_l travels; H W_r goes nowhere.

        Raises
        ------
        InputError
            If there is no matrix, and H is not propagated; if it is, without H beside it. If H is
            sparse or propagated, and the largest neighbour is asked for.
        """
        W, bias = self.lin_l.weight, self.lin_l.bias
        if self.lin is None and self.lin_r is not None:
            weights = Weights(W, self.lin_r.weight, bias)
            Z_local = with_itself(self.aggr, H_local, weights, graph, "SAGEConv", update)
        else:
            neighbours = H_local if self.lin is None else _projected(self.lin, H_local)
            Z_local = aggregated(self.aggr, neighbours, W.T, graph, "SAGEConv")
            if self.lin_r is not None:
                Z_local = add_itself_(Z_local, H_local, self.lin_r.weight.T, graph)
            Z_local = finished(Z_local, bias, update)
        return F.normalize(Z_local, dim=-1) if self.normalize else Z_local


def _projected(lin: Linear, H_local: Features) -> Tensor:
    if isinstance(H_local, Propagated):
        raise InputError("SAGEConv: project needs X, not A·X")
    if isinstance(H_local, CSR):
        return torch.relu(kernels.spmm(H_local, lin.weight.T) + lin.bias)
    return torch.relu(lin(H_local))


class GraphSAGE(Stack):
    """Layers of :class:`SAGEConv`; parameters are those of :class:`Stack`, options the layers'."""

    convolution = SAGEConv
