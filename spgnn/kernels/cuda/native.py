"""The operations by spgnn's own kernels."""

from spgnn.kernels.cuda.nonzeros import edge_softmax, row_sums, sddmm
from spgnn.kernels.cuda.quantise import dequantise_rows, quantise_rows
from spgnn.kernels.cuda.rows import dropout_rows, gather_rows
from spgnn.kernels.cuda.spmm import scatter_add_rows, spmm

__all__ = [
    "dequantise_rows",
    "dropout_rows",
    "edge_softmax",
    "gather_rows",
    "quantise_rows",
    "row_sums",
    "scatter_add_rows",
    "sddmm",
    "spmm",
]
