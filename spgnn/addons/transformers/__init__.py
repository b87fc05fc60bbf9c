"""Models in which every vertex attends to all: SGFormer, Polynormer, GPS."""

import lazy_loader

from spgnn.registry import LAYERS, MODELS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

for _name in ("GPS", "GPSConv", "Polynormer", "SGFormer"):
    LAYERS.add(_name, f"spgnn.addons.transformers.models:{_name}")
for _name in ("GPS", "Polynormer", "SGFormer"):
    MODELS.add(_name.lower(), f"spgnn.addons.transformers.models:{_name}")
MODELS.add("gps-performer", "spgnn.addons.transformers.models:GPSPerformer")
