"""Layers, models and losses on distributed graphs."""

from __future__ import annotations

from spgnn.graph.features import Propagated, densified, propagate_
from spgnn.nn.convolution import Convolution
from spgnn.nn.edge_features import (
    CGConv,
    GINEConv,
    InteractionNetwork,
    NNConv,
    TransformerConv,
)
from spgnn.nn.gat import GATConv, GATv2Conv
from spgnn.nn.hetero_layers import HANConv, HeteroConv, HGTConv
from spgnn.nn.layers import (
    APPNP,
    GCN2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    LGConv,
    SAGEConv,
    SGConv,
    TAGConv,
)
from spgnn.nn.models import GAT, GCN, GIN, GINE, GATv2, GraphSAGE, Stack
from spgnn.nn.norm import BatchNorm, GraphNorm, LayerNorm, PairNorm
from spgnn.nn.relational import RGCNConv
from spgnn.nn.rowwise import (
    DropoutKeys,
)

__all__ = [
    "APPNP",
    "GAT",
    "GCN",
    "GIN",
    "GINE",
    "BatchNorm",
    "CGConv",
    "Convolution",
    "DropoutKeys",
    "GATConv",
    "GATv2",
    "GATv2Conv",
    "GCN2Conv",
    "GCNConv",
    "GINConv",
    "GINEConv",
    "GraphConv",
    "GraphNorm",
    "GraphSAGE",
    "HANConv",
    "HGTConv",
    "HeteroConv",
    "InteractionNetwork",
    "LGConv",
    "LayerNorm",
    "NNConv",
    "PairNorm",
    "Propagated",
    "RGCNConv",
    "SAGEConv",
    "SGConv",
    "Stack",
    "TAGConv",
    "TransformerConv",
    "densified",
    "propagate_",
]
