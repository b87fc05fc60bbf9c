# ruff: noqa: F401
"""A function for each operation, which writes its result into ``out``; and whether one can run."""

from __future__ import annotations

import functools
import sys
import types

import torch

from spgnn.addons.cuda.attention import attend, attend_backward, attention_finish, head_products
from spgnn.addons.cuda.operations import (
    dequantise_rows,
    dropout_rows,
    edge_extremes,
    edge_products,
    edge_softmax,
    edge_sum,
    extreme,
    gather_rows,
    know_range,
    quantise_rows,
    row_sums,
    scatter_add_rows,
    sddmm,
    spmm,
    update_rows,
    update_rows_backward,
)
from spgnn.kernels import torch_kernels

cross_entropy = torch_kernels.cross_entropy
INSTALL = "pip install 'spgnn[gpu-cu12]' or 'spgnn[gpu-cu13]'"


def load() -> tuple[types.ModuleType, str]:
    """These functions, and why they cannot run here."""
    return sys.modules[__name__], trouble()


@functools.cache
def trouble() -> str:
    """The reason why the kernels cannot run here, a line; empty if one was compiled and run."""
    ones, written = torch.ones(1, 1, device="cuda"), torch.zeros(1, 1, device="cuda")
    try:
        dropout_rows(ones, torch.zeros(1, dtype=torch.int64, device="cuda"), 0, 0.0, written)
        if float(written) == 1.0:
            return ""
        why = f"a kernel that writes 1 wrote {float(written)}"
    except ModuleNotFoundError as error:
        return f"{error}; they come with {INSTALL}"
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{why}; torch is built for CUDA {torch.version.cuda}, and CuPy must be: {INSTALL}"
