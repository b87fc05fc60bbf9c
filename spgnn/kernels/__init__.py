"""Products and row movements: the operations of spgnn that touch every feature.

Each is a registered torch operator (``torch.ops.spgnn.*``) that runs where its tensors live.
"""

from spgnn.kernels.operators import (
    dropout_rows,
    gather_rows,
    scatter_add_rows,
    spmm,
    spmm_transposed,
)
from spgnn.kernels.ordering import Reordering, reorder

__all__ = [
    "Reordering",
    "dropout_rows",
    "gather_rows",
    "reorder",
    "scatter_add_rows",
    "spmm",
    "spmm_transposed",
]
