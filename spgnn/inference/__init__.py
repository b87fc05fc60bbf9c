"""Trained models on whole graphs: weights from files, one forward, results to files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
