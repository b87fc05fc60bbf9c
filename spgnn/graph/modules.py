"""Modules of others that look beyond the neighbours of a vertex, known by their names."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from spgnn.comm import world
from spgnn.errors import InputError

# Of PyG: what looks at all vertices it is given, in training and afterwards.
_OF_ALL_VERTICES = {
    "CorrectAndSmooth",
    "DeepGraphInfomax",
    "DiffGroupNorm",
    "EquilibriumAggregation",
    "GPSConv",
    "GraphNorm",
    "GraphSizeNorm",
    "HANConv",
    "HeteroBatchNorm",
    "InstanceNorm",
    "MeanSubtractionNorm",
    "PairNorm",
    "PerformerAttention",
    "PolynormerAttention",
    "SGFormerAttention",
}
# Modules of these choose among all vertices, or merge them.
_POOLS = "torch_geometric.nn.pool."
# Of PyG: what goes on through the padding behind a vertex's neighbours.
_PADDED = {
    "GRUAggregation",
    "LCMAggregation",
    "LSTMAggregation",
    "PatchTransformerAggregation",
}

# Of PyG: what cannot be called without any neighbours, as on a rank without edges, or for quantiles
# where the first vertex has none: on one process that is one vertex, here one of each rank.
_NEED_NEIGHBOURS = {
    "GraphMultisetTransformer",
    "LCMAggregation",
    "MedianAggregation",
    "PatchTransformerAggregation",
    "QuantileAggregation",
    "SetTransformerAggregation",
    "SortAggregation",
}
_BEFORE = "_spgnn_vertex_before"


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
        if _asks_all_edges(module) and module.normalization is None and not _knows(module):
            raise InputError(
                f"{called} without normalization takes the largest weight of all edges, which "
                "ranks have to agree on: call graph.replicate(model) before the first epoch"
            )
        if _is_padded(module) and not _knows(module):
            raise InputError(
                f"{called} pads neighbours to the largest number of them, which ranks have to "
                "agree on: call graph.replicate(model) before the first epoch"
            )


def refuse_callers() -> None:
    """Refuse a look-up that a module of PyG makes for something of all vertices.

    Of a module that no graph was given: only those who call it are known.

    Raises
    ------
    InputError
    """
    frame = inspect.currentframe()
    while frame is not None:
        kind, _, method = frame.f_code.co_qualname.partition(".")
        looks = method in ("forward", "correct") and kind in _OF_ALL_VERTICES
        if looks and "torch_geometric" in frame.f_code.co_filename:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module):
                refuse_one_rank(module)
        frame = frame.f_back


def pad_alike(model: nn.Module) -> None:
    """Tell modules that pad neighbours, from now on, the largest number of them on any rank.

    Those that need a bound on all edges' weights refuse to be called without one. Those that need
    some neighbour of the first vertex get a vertex before it, which has two.
    """
    for module in model.modules():
        if _is_padded(module) and not _knows(module):
            module.register_forward_pre_hook(_with_largest, with_kwargs=True)
        if _asks_all_edges(module) and not _knows(module):
            module.register_forward_pre_hook(_with_bound, with_kwargs=True)
        if (
            _needs_neighbours(module)
            and _with_vertex_before not in module._forward_pre_hooks.values()
        ):
            # Before the largest number of neighbours is looked for.
            module.register_forward_pre_hook(_with_vertex_before, with_kwargs=True, prepend=True)
            module.register_forward_hook(_without_it, with_kwargs=True)


def _sees_all(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return module.training and not isinstance(module, nn.SyncBatchNorm)
    kind = type(module).__name__
    by_graph = kind == "LayerNorm" and getattr(module, "mode", "") == "graph"
    pools = type(module).__module__.startswith(_POOLS)
    scales = getattr(module, "autoscale", True)  # of CorrectAndSmooth: by a mean error
    return _is_of_pyg(module) and ((kind in _OF_ALL_VERTICES and scales) or by_graph or pools)


def _is_padded(module: nn.Module) -> bool:
    return _is_of_pyg(module) and type(module).__name__ in _PADDED


def _needs_neighbours(module: nn.Module) -> bool:
    return _is_of_pyg(module) and type(module).__name__ in _NEED_NEIGHBOURS


def _asks_all_edges(module: nn.Module) -> bool:
    return _is_of_pyg(module) and type(module).__name__ == "ChebConv"


def _is_of_pyg(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch_geometric.")


def _knows(module: nn.Module) -> bool:
    hooks = module._forward_pre_hooks.values()
    return _with_largest in hooks or _with_bound in hooks


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
    largest += type(module).__name__ == "PatchTransformerAggregation"  # as it counts by itself
    return args, {**kwargs, "max_num_elements": comm.agree(largest)}


def _with_bound(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Say `lambda_max`, where it is not given: PyG takes it from one rank's edges. Collective.

    It is twice the largest entry of the Laplacian: 2, where that is normalised and no weight is
    negative.
    """
    comm = world()
    if comm is None or comm.size == 1 or _argument(args, kwargs, 4, "lambda_max") is not None:
        return None
    weight = _argument(args, kwargs, 2, "edge_weight")
    negative = weight is not None and comm.agree(int(bool((weight < 0).any())))
    if getattr(module, "normalization", None) is None or negative:
        raise InputError(
            "ChebConv without normalization, or of negative weights, takes the largest eigenvalue "
            "from one rank's edges: give lambda_max, the same on all ranks"
        )
    return args, {**kwargs, "lambda_max": 2.0}


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _with_vertex_before(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Put a vertex with two neighbours before the first one, if that has none."""
    index, size, dim = kwargs.get("index"), kwargs.get("dim_size"), kwargs.get("dim", -2)
    if index is None or size is None or not args:
        return None
    if len(index) > 1 and bool((index == 0).any()):
        return None
    x = args[0]
    shape = list(x.shape)
    shape[dim] = 2
    x = torch.cat((x.new_zeros(shape), x), dim)
    module.__dict__[_BEFORE] = True
    index = torch.cat((index.new_zeros(2), index + 1))
    return (x, *args[1:]), {**kwargs, "index": index, "ptr": None, "dim_size": size + 1}


def _without_it(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """What was made for the vertex before the first is taken away."""
    if not module.__dict__.pop(_BEFORE, False):
        return out
    dim = kwargs.get("dim", -2)
    return out.narrow(dim, 1, out.shape[dim] - 1)
