# ruff: noqa: F401
"""The operations on CUDA tensors. Where the kernels cannot run torch does it, after one notice."""

from __future__ import annotations

import functools
import sys
import types
import warnings

import torch

from spgnn.kernels import torch_kernels
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

INSTALL = "pip install 'spgnn[gpu-cu12]' or 'spgnn[gpu-cu13]'"


@functools.cache
def implementation() -> types.ModuleType:
    """The module with a function for each operation, which writes its result into ``out``."""
    why = trouble()
    if why is None:
        return sys.modules[__name__]
    warnings.warn(
        f"spgnn's CUDA kernels cannot run here, so cuSPARSE multiplies through torch: {why}",
        RuntimeWarning,
        stacklevel=3,
    )
    return torch_kernels


@functools.cache
def trouble() -> str | None:
    """The reason why the kernels cannot run here, a line; ``None`` if one was compiled and run."""
    ones, written = torch.ones(1, 1, device="cuda"), torch.zeros(1, 1, device="cuda")
    try:
        dropout_rows(ones, torch.zeros(1, dtype=torch.int64, device="cuda"), 0, 0.0, written)
        if float(written) == 1.0:
            return None
        why = f"a kernel that writes 1 wrote {float(written)}"
    except ModuleNotFoundError as error:
        return f"{error}; they come with {INSTALL}"
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{why}; torch is built for CUDA {torch.version.cuda}, and CuPy must be: {INSTALL}"
