"""Mini-batches from a disk: features, structure and samples in files, caches before them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
