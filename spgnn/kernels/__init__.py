"""The operations of spgnn that touch every feature or every nonzero, one file a family.

Each is a registered torch operator (``torch.ops.spgnn.*``) that runs where its tensors live.
"""

# Modules whose operators are registered as well.
from spgnn.kernels import cross_entropy, gemm, reductions, update  # noqa: F401
from spgnn.kernels.attention import attention
from spgnn.kernels.edge_spmm import edge_add, edge_spmm
from spgnn.kernels.quantise import dequantise_rows, quantise_rows
from spgnn.kernels.rows import dropout_rows, gather_rows, scatter_add_rows
from spgnn.kernels.softmax import edge_softmax
from spgnn.kernels.spmm import sddmm, spmm

__all__ = [
    "attention",
    "dequantise_rows",
    "dropout_rows",
    "edge_add",
    "edge_softmax",
    "edge_spmm",
    "gather_rows",
    "quantise_rows",
    "scatter_add_rows",
    "sddmm",
    "spmm",
]
