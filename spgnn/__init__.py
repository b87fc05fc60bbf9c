"""spgnn: full-graph neural network training on sparse matrices across many processes."""

from __future__ import annotations

from spgnn.comm import connect
from spgnn.errors import InputError
from spgnn.layout import ProcessGrid, RowLayout
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix, GridComm

__all__ = ["CSR", "DistMatrix", "GridComm", "InputError", "ProcessGrid", "RowLayout", "connect"]
__version__ = "0.1.0"
