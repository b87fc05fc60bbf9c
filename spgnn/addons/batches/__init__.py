"""Training on neighbourhoods of a few vertices at a time: loaders, samplers, tables of features."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
