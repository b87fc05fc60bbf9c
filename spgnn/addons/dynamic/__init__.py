"""Graphs that change: edges that come and go, and embeddings that follow."""

import lazy_loader

from spgnn.registry import GRAPH_METHODS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

GRAPH_METHODS.add("update", "spgnn.addons.dynamic.updates:update")
GRAPH_METHODS.add("update_types", "spgnn.addons.dynamic.types:update_types")
