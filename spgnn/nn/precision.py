"""In which precision a model is trained: what is stored, multiplied and sent."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch

from spgnn.graph.features import Features, Propagated
from spgnn.sparse import CSR

Precision = Literal["float32", "bfloat16", "float64"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


def dtype_of(precision: Precision) -> torch.dtype:
    """Of activations, messages and dense features."""
    dtype: torch.dtype = getattr(torch, precision)
    return dtype


def weights_of(precision: Precision) -> torch.dtype:
    """Of parameters, their gradients and the optimiser's moments: never less than float32."""
    return torch.float64 if precision == "float64" else torch.float32


def multiplied_in(
    precision: Precision, device: torch.device | str
) -> AbstractContextManager[object]:
    """Within it, products on that device are made in this precision, by torch.autocast."""
    if precision != "bfloat16":
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


def stored_in(X: Features, precision: Precision) -> Features:
    """Features as they are kept. The values of sparse ones are never less than float32."""
    match X:
        case CSR():
            values = X.values
            return X if values is None else X.with_values(values.to(weights_of(precision)))
        case Propagated():
            kept = None if X.X_local is None else X.X_local.to(dtype_of(precision))
            return Propagated(X.AX_local.to(dtype_of(precision)), kept)
    return X.to(dtype_of(precision))
