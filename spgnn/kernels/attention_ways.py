"""Who works on attention: the C++ kernels, those of CUDA, or torch.

Each way is a module with `attend`, `attend_v2`, their `…_backward`, `merge`, `finish` and
`head_products`, for arguments that have been checked.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor


def way(array: Tensor) -> Any:
    """The module for tensors like this one, imported on first use: CuPy is optional."""
    if array.is_cuda:
        return importlib.import_module("spgnn.kernels.cuda").implementation()
    return importlib.import_module("spgnn.kernels.attention_calls")
