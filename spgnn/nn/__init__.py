"""Layers, models and losses on distributed graphs."""

from typing import Any

import lazy_loader

from spgnn.registry import LAYERS

_exported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """An exported name, or a layer that was registered."""
    if name not in __all__ and not name.startswith("_") and name in LAYERS:
        return LAYERS[name]
    return _exported(name)
