"""Activations by name, as PyG's models name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import activation

from spgnn.errors import InputError, unknown
from spgnn.kernels.update import Act

Activation = Callable[[Tensor], Tensor]
_KNOWN = {
    name.lower(): kind
    for name, kind in vars(activation).items()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and name in activation.__all__
} | {"swish": nn.SiLU}


def activation_of(act: str | Activation | None, options: dict[str, Any]) -> Activation | None:
    """The activation of a name; a callable stands for itself, and ``None`` for none.

    Parameters
    ----------
    act : str, callable or None
        A class of ``torch.nn.modules.activation`` in any spelling (``relu``, ``LeakyReLU``,
        ``leaky_relu``), or ``swish``.
    options : dict
        For that class.

    Raises
    ------
    InputError
        If there is no such activation, or it does not know an option.
    """
    if act is None or not isinstance(act, str):
        return act
    name = act.lower().replace("_", "").replace("-", "").replace(" ", "")
    if name not in _KNOWN:
        raise unknown("act", act, _KNOWN)
    try:
        made: Activation = _KNOWN[name](**options)
    except TypeError as error:
        raise InputError(f"act {act}: {error}") from None
    return made


@dataclass(frozen=True)
class Rule:
    """An activation as :func:`spgnn.kernels.update_rows_` names it; none without a name."""

    name: Act | None = None
    alpha: float = 0.0

    def __call__(self, Z: Tensor) -> Tensor:
        """Of a tensor of any kind that nobody else needs."""
        match self.name:
            case "relu":
                return torch.relu_(Z)
            case "leaky_relu":
                return F.leaky_relu(Z, self.alpha)
            case "elu":
                return F.elu(Z, self.alpha)
        return Z


def rule_of(act: Activation | None) -> Rule | None:
    """How the fused update makes it, ``None`` if it does not: those whose result says enough."""
    if act is None:
        return Rule()
    if type(act) is nn.ReLU:
        return Rule("relu")
    if type(act) is nn.LeakyReLU and act.negative_slope > 0:
        return Rule("leaky_relu", act.negative_slope)
    if type(act) is nn.ELU and act.alpha > 0:
        return Rule("elu", act.alpha)
    return None


def activated(act: Activation | None, Z: Tensor, *, owned: bool) -> Tensor:
    """The activation of Z, which is overwritten where that is possible.

    Parameters
    ----------
    owned : bool
        Whether nobody else needs Z: not even the gradient of what made it.
    """
    if act is None:
        return Z
    if owned and type(act) is nn.ReLU:
        # The gradient of ReLU needs its result alone.
        return torch.relu_(Z)
    return act(Z)
