"""Layers, models and losses on distributed matrices."""

from __future__ import annotations

from spgnn.nn.convolution import Convolution
from spgnn.nn.dropout import DropoutKeys
from spgnn.nn.dry_run import Recorded, RecordedAttention, RecordedProduct, recorded_products
from spgnn.nn.features import Features, Propagated, densified, propagate_
from spgnn.nn.gat import GAT, GATConv, GATv2, GATv2Conv
from spgnn.nn.gcn import GCN, ORDERS, GCNConv, Order
from spgnn.nn.gin import GIN, GINConv, GINEConv
from spgnn.nn.graph_conv import GraphConv
from spgnn.nn.jumping import JUMPS
from spgnn.nn.loss import count_labelled, masked_cross_entropy
from spgnn.nn.metrics import accuracies
from spgnn.nn.mlp import MLP
from spgnn.nn.models import MODELS
from spgnn.nn.norm import BatchNorm, GraphNorm, LayerNorm, Norm, PairNorm
from spgnn.nn.norms import NORMS
from spgnn.nn.powers import APPNP, GCN2Conv, LGConv, SGConv, TAGConv
from spgnn.nn.precision import (
    PRECISIONS,
    Precision,
    dtype_of,
    multiplied_in,
    stored_in,
    weights_of,
)
from spgnn.nn.propagation import (
    Graph,
    HasMatrices,
    LayerGraph,
    Matrices,
    Normalised,
    Propagation,
    matrices_of,
)
from spgnn.nn.rgcn import RGCNConv
from spgnn.nn.sage import GraphSAGE, SAGEConv
from spgnn.nn.stack import Stack

__all__ = [
    "APPNP",
    "GAT",
    "GCN",
    "GIN",
    "JUMPS",
    "MLP",
    "MODELS",
    "NORMS",
    "ORDERS",
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
    "Graph",
    "GraphConv",
    "GraphNorm",
    "GraphSAGE",
    "HasMatrices",
    "LGConv",
    "LayerGraph",
    "LayerNorm",
    "Matrices",
    "Norm",
    "Normalised",
    "Order",
    "PairNorm",
    "Precision",
    "Propagated",
    "Propagation",
    "RGCNConv",
    "Recorded",
    "RecordedAttention",
    "RecordedProduct",
    "SAGEConv",
    "SGConv",
    "Stack",
    "TAGConv",
    "accuracies",
    "count_labelled",
    "densified",
    "dtype_of",
    "masked_cross_entropy",
    "matrices_of",
    "multiplied_in",
    "propagate_",
    "recorded_products",
    "stored_in",
    "weights_of",
]
