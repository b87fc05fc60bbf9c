"""Mini-batches from a disk: features, structure and samples in files, caches before them."""

import lazy_loader

from spgnn.registry import PROGRAMS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

PROGRAMS.add("minibatch.py", "spgnn.addons.diskbatches.minibatch_config:MiniBatchConfig")
