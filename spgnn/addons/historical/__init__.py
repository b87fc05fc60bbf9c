"""Batches of a rank's own part, with stale embeddings of the others' vertices (DistGNN-MB)."""

import lazy_loader

from spgnn.registry import MODES

MODES.add("local", "spgnn.addons.historical.historical:Local")
MODES.add("historical", "spgnn.addons.historical.historical:History")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
