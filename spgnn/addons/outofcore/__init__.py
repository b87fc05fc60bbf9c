"""Full graphs larger than memory: rows and columns in turn, from a disk."""

import lazy_loader

from spgnn.registry import SECTIONS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

SECTIONS.add("TrainConfig.storage", "spgnn.addons.outofcore:Storage")
