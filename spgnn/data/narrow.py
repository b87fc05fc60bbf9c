"""Wider numbers than the engine's become narrow here: float32 weights, int32 columns.

SciPy's weights are float64, and its column numbers often int64. Every graph record passes its
matrices through `narrow`; readers check weights with `fits_float32` first, because they can name
the line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.sparse import CSR, EVERY_INTEGER, exact_in_float32

WEIGHT = "a weight that float32 can hold, 0 or 1.4e-45 to 3.4e38 in size"


def fits_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which finite values stay finite and do not become 0 in float32, bool [values]."""
    with np.errstate(over="ignore", under="ignore"):
        single = values.astype(np.float32)
    fits: npt.NDArray[np.bool_] = np.isfinite(single) & ((single != 0) | (values == 0))
    return fits


def narrow(block: CSR, owner: str) -> CSR:
    """The same block with float32 values and the narrowest column numbers.

    Raises
    ------
    InputError
        If a finite value is too large for float32, or one that is not 0 would become 0.
    """
    values = block.values
    if values is not None and values.dtype != torch.float32:
        wide = values.double().numpy()
        fits = fits_float32(wide) | ~np.isfinite(wide)
        if not fits.all():
            at = int(np.argmin(fits))
            row = int(np.searchsorted(block.indptr.numpy(), at, side="right")) - 1
            place = f"({row}, {int(block.indices[at])})"
            raise InputError(f"{owner}: entry {place} is {wide[at]:g}; it must be {WEIGHT}")
        values = values.to(torch.float32)
    return block if values is block.values else block.with_values(values)


def narrow_features(x: Tensor, name: str) -> Tensor:
    """Dense features as float32; what is too small for it becomes 0.

    Raises
    ------
    InputError
        If x is complex, a finite feature is too large for float32, or float32 rounds an integer.
    """
    if x.dtype == torch.float32:
        return x
    if x.is_complex():
        raise InputError(f"{name} must be real numbers, got {x.dtype}")
    single = x.to(torch.float32)
    if x.is_floating_point() and bool((single.isinf() & ~x.isinf()).any()):
        raise InputError(f"{name} holds a number too large for float32, at most 3.4e38")
    if not x.is_floating_point():
        exact = exact_in_float32(x.numpy())
        if not exact.all():
            raise InputError(f"{name} holds {int(x.numpy()[~exact][0])}; {EVERY_INTEGER}")
    return single
