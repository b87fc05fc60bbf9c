"""The operations of spgnn that touch every feature or every nonzero, one file a family.

Each is a registered torch operator (``torch.ops.spgnn.*``) that runs where its tensors live.
"""

from spgnn.kernels.attention import AttentionDropout, attention, attention_v2
from spgnn.kernels.cross_entropy import cross_entropy_sum
from spgnn.kernels.gemm import (
    add_times_transposed_,
    has_gemm,
    times_transposed,
    transposed_times,
)
from spgnn.kernels.quantise import dequantise_rows, packed_bytes, quantise_rows
from spgnn.kernels.rows import dropout_rows, gather_rows, scatter_add_rows
from spgnn.kernels.softmax import edge_softmax
from spgnn.kernels.spmm import sddmm, spmm
from spgnn.kernels.update import update_rows_

__all__ = [
    "AttentionDropout",
    "add_times_transposed_",
    "attention",
    "attention_v2",
    "cross_entropy_sum",
    "dequantise_rows",
    "dropout_rows",
    "edge_softmax",
    "gather_rows",
    "has_gemm",
    "packed_bytes",
    "quantise_rows",
    "scatter_add_rows",
    "sddmm",
    "spmm",
    "times_transposed",
    "transposed_times",
    "update_rows_",
]
