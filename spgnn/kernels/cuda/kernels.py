# ruff: noqa: F401
"""Every operation by spgnn's own CUDA kernels, where it has one."""

from spgnn.kernels.cuda.attention import attend, attend_backward, attention_finish, head_products
from spgnn.kernels.cuda.operations import (
    dequantise_rows,
    dropout_rows,
    edge_extremes,
    edge_products,
    edge_softmax,
    edge_sum,
    extreme,
    gather_rows,
    quantise_rows,
    row_sums,
    scatter_add_rows,
    sddmm,
    spmm,
    update_rows,
    update_rows_backward,
)
from spgnn.kernels.torch_kernels import cross_entropy
