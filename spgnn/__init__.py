"""spgnn: full-graph neural network training on sparse matrices across many processes."""

# ruff: noqa: E402
from __future__ import annotations

from spgnn.signals import die_with_torchrun

# Importing torch takes seconds, in which torchrun may be killed.
die_with_torchrun()

from spgnn.autograd import product
from spgnn.comm import Mesh, connect
from spgnn.errors import InputError
from spgnn.frontend import distribute
from spgnn.graph import DistGraph
from spgnn.inference import infer
from spgnn.layout import Axes, RowLayout
from spgnn.minibatch import LinkNeighborLoader, NeighborLoader
from spgnn.pattern import Pattern
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

__all__ = [
    "CSR",
    "Axes",
    "DistGraph",
    "DistMatrix",
    "InputError",
    "LinkNeighborLoader",
    "Mesh",
    "NeighborLoader",
    "Pattern",
    "RowLayout",
    "connect",
    "distribute",
    "infer",
    "product",
]
__version__ = "0.7.0"
