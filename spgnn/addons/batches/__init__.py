"""Training on neighbourhoods of a few vertices at a time: loaders, samplers, tables of features."""

import lazy_loader

from spgnn.registry import MODES, SAMPLERS

SAMPLERS.add("neighbor", "spgnn.addons.batches.samplers:NeighborSampler")
SAMPLERS.add("labor", "spgnn.addons.batches.samplers:LaborSampler")
MODES.add("exact", "spgnn.addons.batches.rank_batches:Exact")
MODES.add("own", "spgnn.addons.batches.rank_batches:OwnSeeds")
MODES.add("cluster", "spgnn.addons.batches.rank_batches:Clusters")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
