"""GraphConv (Morris et al. 2019) on a distributed matrix."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spgnn.errors import InputError, check_choice
from spgnn.nn.aggregation import AGGREGATIONS, LINEAR, Aggregation, Weights, with_itself
from spgnn.nn.convolution import Convolution, check_channels, check_options, linear
from spgnn.nn.features import Features
from spgnn.nn.propagation import LayerGraph
from spgnn.nn.update import After


class GraphConv(Convolution):
    """One layer ``Z = aggr(H) W_rel + b + H W_root``: by default the weighted sum, A H.

    Parameters are those of PyG's layer of that name, and so are their names: ``lin_rel`` (of the
    neighbours, with the bias) and ``lin_root``.

    Parameters
    ----------
    in_channels, out_channels : int
        −1 finds `in_channels` at the first call.
    aggr : {"add", "sum", "mean", "max", "min"}
        Only sums know weights.
    bias : bool
    options
        Of PyG's message passing; none but their defaults.
    """

    looks_at_itself = True
    updates = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        aggr: Aggregation = "add",
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_channels("GraphConv", in_channels=in_channels, out_channels=out_channels)
        check_options(self, options)
        check_choice("GraphConv aggr", aggr, AGGREGATIONS)
        self.aggr = aggr
        self.lin_rel = linear(in_channels, out_channels, bias=bias)
        self.lin_root = linear(in_channels, out_channels, bias=False)
        self.propagates = aggr in LINEAR

    def forward(
        self, H_local: Features, graph: LayerGraph, *, update: After | None = None
    ) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out], updated. Collective.

        Raises
        ------
        InputError
            As SAGEConv; and if a graph has weights that the aggregation does not know.
        """
        if LINEAR.get(self.aggr) != "none" and getattr(graph, "edge_weight", None) is not None:
            raise InputError(f"GraphConv: aggr {self.aggr} of weighted edges is not supported")
        weights = Weights(self.lin_rel.weight, self.lin_root.weight, self.lin_rel.bias)
        return with_itself(self.aggr, H_local, weights, graph, "GraphConv", update)
