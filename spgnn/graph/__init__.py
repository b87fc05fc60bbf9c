"""A graph distributed over ranks, and the protocol by which layers ask a graph for aggregations."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
