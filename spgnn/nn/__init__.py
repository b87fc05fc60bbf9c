"""Layers, models and losses on distributed matrices."""

from __future__ import annotations

from spgnn.nn.convolution import Convolution
from spgnn.nn.dropout import DropoutKeys
from spgnn.nn.dry_run import Recorded, RecordedAttention, RecordedProduct, recorded_products
from spgnn.nn.features import Features, Propagated, densified, propagate_
from spgnn.nn.gat import GAT, GATConv, GATv2, GATv2Conv
from spgnn.nn.gcn import GCN, ORDERS, GCNConv, Order
from spgnn.nn.gin import GIN, GINConv
from spgnn.nn.loss import count_labelled, masked_cross_entropy
from spgnn.nn.metrics import accuracies
from spgnn.nn.mlp import MLP
from spgnn.nn.models import MODELS
from spgnn.nn.norm import NORMS, BatchNorm, GraphNorm, LayerNorm, Norm, PairNorm
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
from spgnn.nn.sage import GraphSAGE, SAGEConv
from spgnn.nn.stack import JUMPS, Stack

__all__ = [
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
    "GCNConv",
    "GINConv",
    "Graph",
    "GraphNorm",
    "GraphSAGE",
    "HasMatrices",
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
    "Recorded",
    "RecordedAttention",
    "RecordedProduct",
    "SAGEConv",
    "Stack",
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
