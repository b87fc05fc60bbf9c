"""Modules of others that look beyond the neighbours of a vertex, known by their names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spgnn.comm import world
from spgnn.errors import InputError

# Of PyG: what looks at all vertices it is given, in training and afterwards.
_OF_ALL_VERTICES = {
    "DiffGroupNorm",
    "GPSConv",
    "GraphNorm",
    "HANConv",
    "InstanceNorm",
    "MeanSubtractionNorm",
    "PairNorm",
}
# Of PyG: what goes on through the padding behind a vertex's neighbours.
_PADDED = {"LSTMAggregation", "GRUAggregation"}


def refuse_one_rank(model: nn.Module) -> None:
    """Refuse modules that would see one rank's vertices where they should see all.

    Raises
    ------
    InputError
        Names the first one, and what to do.
    """
    for name, module in model.named_modules():
        kind = type(module).__name__
        called = f"{name or 'the model'} ({kind})"
        if _sees_all(module):
            raise InputError(
                f"{called} looks at all vertices at once, and would see those of one rank: take a "
                "norm of spgnn.nn or a LayerNorm of each vertex, or call eval() of a batch norm"
            )
        if _is_padded(module) and not _knows(module):
            raise InputError(
                f"{called} pads neighbours to the largest number of them, which ranks have to "
                "agree on: call graph.replicate(model) before the first epoch"
            )


def pad_alike(model: nn.Module) -> None:
    """Tell modules that pad neighbours, from now on, the largest number of them on any rank."""
    for module in model.modules():
        if _is_padded(module) and not _knows(module):
            module.register_forward_pre_hook(_with_largest, with_kwargs=True)


def _sees_all(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return module.training and not isinstance(module, nn.SyncBatchNorm)
    kind = type(module).__name__
    by_graph = kind == "LayerNorm" and getattr(module, "mode", "") == "graph"
    return _is_of_pyg(module) and (kind in _OF_ALL_VERTICES or by_graph)


def _is_padded(module: nn.Module) -> bool:
    return _is_of_pyg(module) and type(module).__name__ in _PADDED


def _is_of_pyg(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch_geometric.")


def _knows(module: nn.Module) -> bool:
    return _with_largest in module._forward_pre_hooks.values()


def _with_largest(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Say the largest number of neighbours, if the caller does not. Collective."""
    comm, index, ptr = world(), kwargs.get("index"), kwargs.get("ptr")
    if comm is None or kwargs.get("max_num_elements") is not None:
        return args, kwargs
    if index is None:
        counts = torch.zeros(0, dtype=torch.int64) if ptr is None else ptr.diff()
    else:
        counts = torch.bincount(index)
    largest = int(counts.max()) if counts.numel() else 0
    return args, {**kwargs, "max_num_elements": comm.agree(largest)}
