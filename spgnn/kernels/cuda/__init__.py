"""The operations on CUDA tensors. Without CuPy they run through torch, after one notice."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

from spgnn.kernels import (
    torch_kernels,
)
from spgnn.kernels.cuda import device, kernels


@cache
def implementation() -> ModuleType:
    """The module with a function for each operation, which writes its result into ``out``."""
    if device.available():
        return kernels
    warnings.warn(
        "CuPy is not installed: CUDA tensors are multiplied by cuSPARSE through torch; "
        "spgnn's own kernels come with: pip install spgnn[gpu]",
        RuntimeWarning,
        stacklevel=3,
    )
    return torch_kernels
