"""Graphs in text, Parquet and Arrow files and from the internet; through a disk if too large."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
