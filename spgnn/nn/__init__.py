"""Layers, models and losses on distributed matrices."""

from __future__ import annotations

from spgnn.nn.dropout import DropoutKeys
from spgnn.nn.gcn import GCN, ORDERS, GCNConv, Order, Products, Propagated, propagate_
from spgnn.nn.loss import accuracies, count_labelled, masked_cross_entropy

__all__ = [
    "GCN",
    "ORDERS",
    "DropoutKeys",
    "GCNConv",
    "Order",
    "Products",
    "Propagated",
    "accuracies",
    "count_labelled",
    "masked_cross_entropy",
    "propagate_",
]
