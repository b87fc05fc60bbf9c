"""Graphs of several vertex types: their distribution, their relations, layers for them."""

import lazy_loader

from spgnn.registry import DATA, LAYERS, MODELS, OPENERS, SECTIONS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

for _layer in ("HANConv", "HGTConv", "HeteroConv"):
    LAYERS.add(_layer, f"spgnn.addons.hetero.layers:{_layer}")
for _model in ("RGCN", "RGAT", "HGT"):
    MODELS.add(_model.lower(), f"spgnn.addons.hetero.typed_models:{_model}")
SECTIONS.add("TrainConfig.types", "spgnn.addons.hetero.typed_options:Types")
OPENERS.add("several types", "spgnn.addons.hetero.data:open_types")
OPENERS.add("typed batches", "spgnn.addons.hetero.batches:TypedGraph")
DATA.add("HeteroData", "spgnn.addons.hetero.data:HETERO_DATA")
LAYERS.add("RGCNConv", "spgnn.addons.hetero.relational:RGCNConv")
