"""Activation, dropout and bias, row by row, and the precision of all of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import activation

from spgnn import kernels
from spgnn.errors import InputError, unknown
from spgnn.graph.features import Features, Propagated
from spgnn.kernels.torch_kernels import dropout_keeps
from spgnn.kernels.update import Act, hide_gradient, update_rows_
from spgnn.registry import Precision
from spgnn.sparse import CSR, SUM_DTYPE
from spgnn.torch_internals import has_hooks

Activation = Callable[[Tensor], Tensor]
_KNOWN = {
    name.lower(): kind
    for name, kind in vars(activation).items()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and name in activation.__all__
} | {"swish": nn.SiLU}


def activation_of(act: str | Activation | None, options: dict[str, Any]) -> Activation | None:
    """The activation with a name; a callable stands for itself, and ``None`` for none."""
    if act is None or not isinstance(act, str):
        return act
    name = act.lower().replace("_", "").replace("-", "").replace(" ", "")
    if name not in _KNOWN:
        raise unknown("act", act, _KNOWN)
    try:
        result: Activation = _KNOWN[name](**options)
    except TypeError as error:
        raise InputError(f"act {act}: {error}") from None
    return result


def check_width(layer: str, width: int, rows: str, columns: int) -> None:
    """Refuse rows of another width than a layer takes, unless that is -1."""
    if width not in (-1, columns):
        of = "" if rows == "x" else f" of {rows}"
        raise InputError(f"{layer}: the layer takes {width} columns{of}, x has {columns}")


@dataclass(frozen=True)
class Rule:
    """An activation as :func:`spgnn.kernels.update.update_rows_` names it; none without a name."""

    name: Act | None = None
    alpha: float = 0.0

    def __call__(self, Z: Tensor) -> Tensor:
        """Apply it to a tensor of any kind that nobody else needs."""
        match self.name:
            case "relu":
                return torch.relu_(Z)
            case "leaky_relu":
                return F.leaky_relu(Z, self.alpha)
            case "elu":
                return F.elu(Z, self.alpha)
        return Z


def rule_of(act: Activation | None) -> Rule | None:
    """The fused update's rule for an activation."""
    if act is None:
        return Rule()
    if isinstance(act, nn.Module) and has_hooks(act):
        return None
    if type(act) is nn.ReLU:
        return Rule("relu")
    if type(act) is nn.LeakyReLU and act.negative_slope > 0:
        return Rule("leaky_relu", act.negative_slope)
    if type(act) is nn.ELU and act.alpha > 0:
        return Rule("elu", act.alpha)
    return None


def activated(act: Activation | None, Z: Tensor, *, owned: bool) -> Tensor:
    """The activation of Z, which is overwritten where that is possible."""
    if act is None:
        return Z
    if owned and type(act) is nn.ReLU and not has_hooks(act):
        # The gradient of ReLU needs its result alone.
        return torch.relu_(Z)
    return act(Z)


@dataclass(frozen=True)
class DropoutKeys:
    """The keys of the dropout masks of one training step.

    Parameters
    ----------
    vertex_ids : Tensor int64 [rows]
        Original ids of the vertices, one for each row that is dropped.
    seed, epoch : int
        With the layer, they make the key of the counter-based generator: the mask of a value is
        a pure function of (seed, epoch, layer, vertex, column), hence the same at any P.
    """

    vertex_ids: Tensor
    seed: int
    epoch: int

    def key(self, layer: int) -> int:
        """A 64-bit key; distinct for distinct (seed, epoch, layer) of less than 2²⁴, 2²⁴, 2¹⁶."""
        return ((self.seed & 0xFFFFFF) << 40) | ((self.epoch & 0xFFFFFF) << 16) | (layer & 0xFFFF)


def keys_on(keys: DropoutKeys | None, ids: Tensor | None) -> DropoutKeys | None:
    """The same keys for other vertices: a row of a recomputed halo is dropped as at its owner."""
    return keys if keys is None or ids is None else replace(keys, vertex_ids=ids)


def dropout(X: Tensor | CSR, p: float, keys: DropoutKeys | None, layer: int) -> Tensor | CSR:
    """Zero each feature with probability p and scale the rest by 1 / (1 - p).

    Parameters
    ----------
    X : Tensor or CSR [rows, f]
        A stored zero and a missing one are dropped alike, so sparse and dense features train alike.
    p : float in [0, 1)
    keys : DropoutKeys or None
        ``None`` outside training: nothing is dropped.
    """
    if p == 0 or keys is None:
        return X
    if isinstance(X, CSR):
        if X.values is None:
            raise InputError("sparse features need values")
        vertices = keys.vertex_ids.repeat_interleave(X.row_lengths)
        stays = dropout_keeps(vertices, X.indices.long(), keys.key(layer), p)
        return replace(X, values=torch.where(stays, X.values * (1 / (1 - p)), 0.0))
    return kernels.dropout_rows(X, keys.vertex_ids, keys.key(layer), p)


@dataclass(frozen=True)
class Update:
    """``dropout(act(Z + b))``, in one pass over the rows."""

    act: Rule
    p: float = 0.0
    keys: DropoutKeys | None = None
    layer: int = 0
    hidden: bool = False

    def __call__(self, Z: Tensor, bias: Tensor | None = None) -> Tensor:
        """Rows [n, f], which are overwritten, and a bias [f] that is added first."""
        if Z.dim() != 2 or Z.dtype not in SUM_DTYPE:
            Z = Z if bias is None else Z.add_(bias.to(Z.dtype))
            rows = dropout(self.act(Z), self.p, self.keys, self.layer)
            assert isinstance(rows, Tensor)
            return rows
        if bias is not None and bias.dtype != SUM_DTYPE[Z.dtype]:
            bias = bias.to(SUM_DTYPE[Z.dtype])
        how: dict[str, Any] = {"act": self.act.name, "alpha": self.act.alpha}
        if self.keys is not None and self.p:
            ids, key = self.keys.vertex_ids, self.keys.key(self.layer)
            how |= {"vertex_ids": ids, "key": key, "p": self.p}
        rows = update_rows_(Z, bias, **how)
        return hide_gradient(rows) if self.hidden else rows


def dtype_of(precision: Precision) -> torch.dtype:
    """The dtype of activations, messages and dense features."""
    dtype: torch.dtype = getattr(torch, precision)
    return dtype


def weights_of(precision: Precision) -> torch.dtype:
    """The dtype of parameters, gradients and the optimiser's moments: never less than float32."""
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
            own = None if X.X_local is None else X.X_local.to(dtype_of(precision))
            return Propagated(X.AX_local.to(dtype_of(precision)), own)
    return X.to(dtype_of(precision))
