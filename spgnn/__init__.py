"""spgnn: full-graph neural network training on sparse matrices across many processes."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.argv[0].rpartition("/")[2] in ("-m", "spgnn", "spgnn-partition"):
    from spgnn.signals import end_silently_on_interrupt

    end_silently_on_interrupt()  # in the seconds that importing the rest of a command takes

if TYPE_CHECKING:
    from spgnn.autograd import product
    from spgnn.comm import (
        Mesh,
        connect,
    )
    from spgnn.errors import InputError
    from spgnn.frontend.distribute import distribute
    from spgnn.graph.distgraph import DistGraph
    from spgnn.halo import Halo
    from spgnn.inference import Embeddings, infer
    from spgnn.layout import Axes, RowLayout
    from spgnn.loader import (
        LinkNeighborLoader,
        NeighborLoader,
    )
    from spgnn.pattern import Pattern
    from spgnn.sparse import CSR
    from spgnn.spmm import DistMatrix
    from spgnn.train import (
        Trainer,
        load,
        save,
    )

__all__ = [
    "CSR",
    "Axes",
    "DistGraph",
    "DistMatrix",
    "Embeddings",
    "Halo",
    "InputError",
    "LinkNeighborLoader",
    "Mesh",
    "NeighborLoader",
    "Pattern",
    "RowLayout",
    "Trainer",
    "connect",
    "distribute",
    "infer",
    "load",
    "product",
    "save",
]
__version__ = "0.7.0"

# The room of each name; like all rooms, it is imported when it is first asked for.
_HOMES = {
    "CSR": "sparse",
    "Axes": "layout",
    "DistGraph": "graph.distgraph",
    "DistMatrix": "spmm",
    "Embeddings": "inference",
    "Halo": "halo",
    "InputError": "errors",
    "LinkNeighborLoader": "loader",
    "Mesh": "comm",
    "NeighborLoader": "loader",
    "Pattern": "pattern",
    "RowLayout": "layout",
    "Trainer": "train",
    "connect": "comm",
    "distribute": "frontend",
    "infer": "inference",
    "load": "train",
    "product": "autograd",
    "save": "train",
}


if not TYPE_CHECKING:  # mypy would take it for the origin of the names above

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            globals()[name] = value = getattr(import_module(f"spgnn.{_HOMES[name]}"), name)
            return value
        try:
            if not name.startswith("_"):
                return import_module(f"spgnn.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"spgnn.{name}":
                raise
        raise AttributeError(f"module 'spgnn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
