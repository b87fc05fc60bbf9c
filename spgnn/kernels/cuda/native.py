"""The operations by spgnn's own kernels."""

from spgnn.kernels.cuda.attention import attend, attend_v2, finish, merge
from spgnn.kernels.cuda.attention_backward import (
    attend_backward,
    attend_v2_backward,
    head_products,
)
from spgnn.kernels.cuda.extremes import extreme
from spgnn.kernels.cuda.nonzeros import edge_softmax, row_sums, sddmm
from spgnn.kernels.cuda.quantise import dequantise_rows, quantise_rows
from spgnn.kernels.cuda.rows import dropout_rows, gather_rows
from spgnn.kernels.cuda.spmm import scatter_add_rows, spmm
from spgnn.kernels.cuda.update import update_rows, update_rows_backward

__all__ = [
    "attend",
    "attend_backward",
    "attend_v2",
    "attend_v2_backward",
    "dequantise_rows",
    "dropout_rows",
    "edge_softmax",
    "extreme",
    "finish",
    "gather_rows",
    "head_products",
    "merge",
    "quantise_rows",
    "row_sums",
    "scatter_add_rows",
    "sddmm",
    "spmm",
    "update_rows",
    "update_rows_backward",
]
