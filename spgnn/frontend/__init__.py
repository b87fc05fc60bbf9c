"""The front end: a user's data to each rank's share of a distributed graph."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
