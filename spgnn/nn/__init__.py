"""Layers, models and losses on distributed matrices."""

from __future__ import annotations

from spgnn.nn.dropout import DropoutKeys
from spgnn.nn.dry_run import recorded_products
from spgnn.nn.features import Propagated, densified, propagate_
from spgnn.nn.gcn import GCN, ORDERS, GCNConv, Order
from spgnn.nn.loss import accuracies, count_labelled, masked_cross_entropy
from spgnn.nn.propagation import Propagation

__all__ = [
    "GCN",
    "ORDERS",
    "DropoutKeys",
    "GCNConv",
    "Order",
    "Propagated",
    "Propagation",
    "accuracies",
    "count_labelled",
    "densified",
    "masked_cross_entropy",
    "propagate_",
    "recorded_products",
]
