"""Layers, models and losses on distributed graphs."""

from __future__ import annotations

from spgnn.graph.features import Features, Propagated, densified, propagate_
from spgnn.nn.convolution import Convolution
from spgnn.nn.gat import GATConv, GATv2Conv
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
from spgnn.nn.loss import count_labelled, masked_cross_entropy
from spgnn.nn.metrics import accuracies
from spgnn.nn.mlp import MLP
from spgnn.nn.models import GAT, GCN, GIN, JUMPS, MODELS, GATv2, GraphSAGE, Order, Stack
from spgnn.nn.norm import NORMS, BatchNorm, GraphNorm, LayerNorm, Norm, PairNorm
from spgnn.nn.relational import GINEConv, RGCNConv
from spgnn.nn.rowwise import (
    PRECISIONS,
    DropoutKeys,
    Precision,
    dtype_of,
    multiplied_in,
    stored_in,
    weights_of,
)

__all__ = [
    "APPNP",
    "GAT",
    "GCN",
    "GIN",
    "JUMPS",
    "MLP",
    "MODELS",
    "NORMS",
    "PRECISIONS",
    "BatchNorm",
    "Convolution",
    "DropoutKeys",
    "Features",
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
    "LGConv",
    "LayerNorm",
    "Norm",
    "Order",
    "PairNorm",
    "Precision",
    "Propagated",
    "RGCNConv",
    "SAGEConv",
    "SGConv",
    "Stack",
    "TAGConv",
    "accuracies",
    "count_labelled",
    "densified",
    "dtype_of",
    "masked_cross_entropy",
    "multiplied_in",
    "propagate_",
    "stored_in",
    "weights_of",
]
