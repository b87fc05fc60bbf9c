"""spgnn: full-graph neural network training on sparse matrices across many processes."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import lazy_loader

if sys.argv[0].rpartition("/")[2] in ("-m", "spgnn", "spgnn-partition"):
    from spgnn.signals import end_silently_on_interrupt

    end_silently_on_interrupt()  # in the seconds that importing the rest of a command takes

__version__ = "0.7.0"

_exported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """An exported name, a room, or an add-on: each is imported when it is first asked for."""
    if name in __all__:
        return _exported(name)
    for module in (f"spgnn.{name}", f"spgnn.addons.{name}") if not name.startswith("_") else ():
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in (module, "spgnn.addons"):
                raise
    raise AttributeError(f"module 'spgnn' has no attribute '{name}'")
