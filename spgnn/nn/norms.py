"""Which norms there are, and how a model applies those that it is given."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from spgnn.errors import InputError, unknown
from spgnn.nn.norm import BatchNorm, GraphNorm, LayerNorm, Norm, PairNorm, Where

_NORMS: dict[str, type[nn.Module]] = {
    "batch": BatchNorm,
    "layer": LayerNorm,
    "graph": GraphNorm,
    "pair": PairNorm,
}
NORMS = tuple(_NORMS)


def norm_of(
    norm: str | nn.Module | type[nn.Module] | None, width: int, options: dict[str, Any]
) -> nn.Module:
    """A norm of its name; ``Identity`` of none.

    Parameters
    ----------
    norm : str, Module, class or None
        ``batch``, ``layer``, ``graph``, ``pair``, or PyG's names in any spelling (``BatchNorm``,
        ``batch_norm``). A module is copied; a class is made of the width.
    width : int
    options : dict
        For the norm.

    Raises
    ------
    InputError
        If there is no such norm, or it does not know an option; if a module would take statistics
        over one rank's rows.
    """
    if isinstance(norm, nn.Module):
        check_local(norm)
        return copy.deepcopy(norm)
    if norm is None or norm == "none":
        return nn.Identity()
    kind = norm
    if isinstance(norm, str):
        name = norm.lower().replace("_", "").replace("-", "").removesuffix("norm")
        if name not in _NORMS:
            raise unknown("norm", norm, ("none", *_NORMS))
        kind = _NORMS[name]
    assert isinstance(kind, type)
    given = () if kind is PairNorm else (width,)
    try:
        made = kind(*given, **options)
    except TypeError as error:
        raise InputError(f"norm {kind.__name__}: {error}") from None
    check_local(made)
    return made


def applied(module: nn.Module, x: Tensor, graph: Where, *shift: Tensor | None) -> Tensor:
    """A module of x; norms in it, and in a Sequential, look at all ranks.

    A `shift` is for norms that :func:`takes_shift` says yes of.
    """
    if isinstance(module, Norm) and x.dtype in (torch.bfloat16, torch.float16):
        # Statistics, and what they are taken of, are float32.
        wide: Tensor = module(x.float(), graph, *shift)
        return wide.to(x.dtype)
    if getattr(module, "takes_graph", False):
        found: Tensor = module(x, graph, *shift)
        return found
    if isinstance(module, nn.Sequential):
        for part in module:
            x = applied(part, x, graph)
        return x
    made: Tensor = module(x)
    return made


def takes_shift(module: nn.Module) -> bool:
    """Whether it is one of ours, which take what is added to x apart."""
    return type(module) in _NORMS.values()


def check_local(module: nn.Module) -> None:
    """Refuse what takes statistics over the rows of one rank, where ours look at all.

    Raises
    ------
    InputError
    """
    for part in module.modules():
        kind = type(part)
        theirs = kind.__module__.startswith("torch_geometric.nn.norm")
        local = theirs and getattr(part, "mode", "") == "node"
        batch = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if (batch and not isinstance(part, nn.SyncBatchNorm)) or (theirs and not local):
            raise InputError(
                f"{kind.__module__.partition('.')[0]}'s {kind.__name__} takes statistics over the "
                "rows of one rank; spgnn.nn has BatchNorm, LayerNorm, GraphNorm and PairNorm"
            )


def takes_all_rows(module: nn.Module) -> bool:
    """Whether any norm in it takes statistics over all vertices."""
    return any(isinstance(part, Norm) and part.takes_all_rows for part in module.modules())
