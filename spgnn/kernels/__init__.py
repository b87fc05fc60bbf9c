# Names that are not in __all__ are for add-ons with kernels of their own.
# ruff: noqa: F401
"""The operations of spgnn that touch every feature or every nonzero, one file a family.

Each is a registered torch operator (``torch.ops.spgnn.*``) that runs where its tensors live. What
does not fit (types, shapes, dtypes, devices, rows that do not exist) is an `InputError`.
"""

from spgnn.kernels import bfloat16, cross_entropy, gemm, reductions, update
from spgnn.kernels import torch_kernels as torch_kernels
from spgnn.kernels.attention import FINISHED as FINISHED
from spgnn.kernels.attention import MERGED as MERGED
from spgnn.kernels.attention import STORED as STORED
from spgnn.kernels.attention import AttentionDropout, attention, finish, head_products
from spgnn.kernels.attention import AttentionState as AttentionState
from spgnn.kernels.attention import Gat as Gat
from spgnn.kernels.attention import GatV2 as GatV2
from spgnn.kernels.attention import Rules as Rules
from spgnn.kernels.attention import Target as Target
from spgnn.kernels.cpu import PackedShape as PackedShape
from spgnn.kernels.cpu import side as side
from spgnn.kernels.cross_entropy import cross_entropy_sum
from spgnn.kernels.edge_spmm import edge_add, edge_spmm
from spgnn.kernels.extremes import PICK as PICK
from spgnn.kernels.extremes import add_to_extremes_, extreme_
from spgnn.kernels.gemm import times_transposed, transposed_times
from spgnn.kernels.quantise import dequantise_rows, packed_bytes, quantise_rows
from spgnn.kernels.recycling import new_rows
from spgnn.kernels.rows import dropout_rows, gather_rows, scatter_add_rows
from spgnn.kernels.softmax import edge_softmax
from spgnn.kernels.spmm import sddmm, spmm
from spgnn.torch_internals import transformed

__all__ = [
    "AttentionDropout",
    "add_to_extremes_",
    "attention",
    "bfloat16",
    "cross_entropy_sum",
    "dequantise_rows",
    "dropout_rows",
    "edge_add",
    "edge_softmax",
    "edge_spmm",
    "extreme_",
    "finish",
    "gather_rows",
    "head_products",
    "new_rows",
    "packed_bytes",
    "quantise_rows",
    "scatter_add_rows",
    "sddmm",
    "spmm",
    "times_transposed",
    "transformed",
    "transposed_times",
]
