"""The operations on CUDA tensors, as the operators call them.

Arguments have been checked by `spgnn.kernels`; all work happens on torch's current stream.
Without CuPy the operations run through torch and cuSPARSE, after one notice.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

from spgnn.kernels.cuda import cusparse, device, native

__all__ = ["implementation"]


@cache
def implementation() -> ModuleType:
    """The module with a function for each operation, which writes its result into ``out``."""
    if device.available():
        return native
    warnings.warn(
        "CuPy is not installed: CUDA tensors are multiplied by cuSPARSE through torch; "
        "spgnn's own kernels come with: pip install spgnn[gpu]",
        RuntimeWarning,
        stacklevel=3,
    )
    return cusparse
