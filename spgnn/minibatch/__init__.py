"""Training on neighbourhoods of a few vertices at a time."""

from __future__ import annotations

from spgnn.minibatch.batch import Batch
from spgnn.minibatch.expansion import Once
from spgnn.minibatch.links import LinkNeighborLoader
from spgnn.minibatch.loader import NeighborLoader
from spgnn.minibatch.source import Source

__all__ = ["Batch", "LinkNeighborLoader", "NeighborLoader", "Once", "Source"]
