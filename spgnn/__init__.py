"""spgnn: full-graph neural network training on sparse matrices across many processes."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import lazy_loader

if sys.argv[0].rpartition("/")[2] in ("-m", "spgnn", "spgnn-partition"):
    from spgnn.signals import end_silently_on_interrupt

    end_silently_on_interrupt()  # in the seconds that importing the rest of a command takes

__version__ = "1.0.0"

_exported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _AddOns:
    """Finds add-ons where they are imported as rooms: ``from spgnn.recommend import top_k``."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        place, _, rest = name.partition(".")
        inside = place == __name__ and name not in sys.modules
        if not inside or not _is_addon(rest.partition(".")[0]):
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"{__name__}.addons.{spec.name.partition('.')[2]}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state  # which importing has replaced


@cache
def _is_addon(name: str) -> bool:
    return bool(name) and os.path.isdir(os.path.join(os.path.dirname(__file__), "addons", name))


sys.meta_path.insert(0, _AddOns())  # type: ignore[arg-type]


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
