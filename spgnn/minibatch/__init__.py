"""Training on neighbourhoods of a few vertices at a time."""

from __future__ import annotations

from spgnn.minibatch.batch import Batch, Place
from spgnn.minibatch.expansion import Once
from spgnn.minibatch.links import LinkNeighborLoader
from spgnn.minibatch.loader import NeighborLoader
from spgnn.minibatch.source import Source
from spgnn.nn.block import Block, Degrees

__all__ = [
    "Batch",
    "Block",
    "Degrees",
    "LinkNeighborLoader",
    "NeighborLoader",
    "Once",
    "Place",
    "Source",
]
