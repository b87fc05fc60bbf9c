"""Inference over the whole graph, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.errors import InputError, check_integer
from spgnn.graph import DistGraph, DistributedGraph, Features, check_replicated
from spgnn.graph.outputs import plain
from spgnn.graph.protocol import graphs_for
from spgnn.nn import Stack, edge_arguments, evaluating, takes_graph
from spgnn.spmm import DistMatrix
from spgnn.torch_internals import default_device


class Outputs(Protocol):
    """Outputs of a model on a graph that can be brought up to date, as `spgnn.Embeddings`."""

    outputs: Tensor

    @property
    def model(self) -> nn.Module:
        """The model."""

    @property
    def graph(self) -> DistGraph:
        """The graph that changes."""

    def update(self) -> None:
        """Compute again what has changed. Collective."""


def infer(
    model: nn.Module,
    graph: DistributedGraph | DistMatrix,
    x: Features | None = None,
    *,
    layer: int | None = None,
    since: Outputs | None = None,
) -> Any:
    """Run a model on all vertices, without gradients, in evaluation mode. Collective.

    A model of ours works layer by layer over the whole graph: besides the features, the output
    of one layer and that of the next one are in memory, and the rows that this rank receives
    (``--schedule peers`` bounds them).

    Parameters
    ----------
    model : Module
        The same on all ranks; called as ``model(x, graph)``, or ``model(x, graph.edge_index)`` if
        an argument of it is called ``edge_index``, as of PyG's models, with ``edge_weight`` and
        ``edge_attr`` where it names them and the graph has them.
    graph : DistGraph, HeteroDistGraph or DistMatrix
        Of several vertex types, the model is called with ``graph.x_dict`` and, if it has no layer
        of ours, ``graph.edge_index_dict``.
    x : Tensor or CSR [own rows, f], or Propagated, optional
        By default the graph's features.
    layer : int, optional
        Return what this layer hands to the next one, after norm and activation: embeddings. By
        default, and for the last one, what the model returns. Layers are ``model.convs``.
    since : Embeddings, optional
        Of this model and graph: those rows alone are computed that updates of the graph reached
        since, in place. Return its ``outputs``.

    Returns
    -------
    Tensor [own rows, …]
        Row i is the vertex ``graph.vertex_ids[i]``. Of several vertex types, whatever the model
        returns: rows of one type, or a dictionary of those of several.

    Raises
    ------
    InputError
        On all ranks, if the ranks' models differ, the model does not return one row for each own
        vertex, or there is no such layer.
    """
    if isinstance(graph, DistributedGraph) and not isinstance(graph, DistGraph):
        refused = {"x": x, "layer": layer, "since": since}
        return _of_types(model, graph, [name for name, one in refused.items() if one is not None])
    comm = graph.mesh.everyone if isinstance(graph, DistMatrix) else graph.comm
    comm.check_agreement("infer", since=since is not None)
    if since is not None:
        comm.on_every_rank(lambda: _check_since(model, graph, x, layer, since))
        since.update()
        return since.outputs
    features = comm.on_every_rank(lambda: _checked(model, graph, x, layer))
    with evaluating(model), torch.no_grad(), default_device(comm.device):
        check_replicated(model, comm)
        inner = _unwrapped(model)
        structure: Any = graph
        edges = dict[str, Tensor]()
        if isinstance(graph, DistGraph) and not takes_graph(inner):
            by_edges = any(one.name == "edge_index" for one in _arguments(inner))
            structure = graph.edge_index if by_edges else graph
            edges = edge_arguments(inner, graph)
        if layer is None or layer == len(cast(nn.ModuleList, inner.convs)):
            outputs = model(features, structure, **edges)
        elif isinstance(inner, Stack):
            outputs = _before(inner, layer, features, graph)
        else:
            outputs = _input_of(inner, layer, partial(model, features, structure, **edges))
    return _of_own_rows(plain(outputs), graph.own_rows, comm)


def _check_since(model: Any, graph: Any, x: object, layer: object, since: Any) -> None:
    if not hasattr(since, "outputs"):
        raise InputError(
            f"infer: since must be spgnn.Embeddings(model, graph), got a {type(since).__name__}"
        )
    if since.model is not model or since.graph is not graph:
        raise InputError("infer: since is of another model or graph")
    if x is not None or layer is not None:
        raise InputError(
            "infer: with since, features are the graph's, and layers are since.layers: give "
            "neither x nor layer"
        )


def _of_types(model: Any, graph: DistributedGraph, refused: list[str]) -> Any:
    """Outputs of a model on a graph of several vertex types. Collective."""

    def check() -> None:
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise InputError(f"infer: the model must be a torch.nn.Module, got {kind}")
        if refused:
            raise InputError(f"infer: {refused[0]}= is for graphs of one vertex type: leave it out")

    graph.comm.on_every_rank(check)
    with evaluating(model), torch.no_grad():
        check_replicated(model, graph.comm)
        return plain(model(*graph.model_inputs(takes_graph(model))))


def _checked(model: Any, graph: Any, x: Features | None, layer: int | None) -> Features:
    if not isinstance(model, nn.Module):
        raise InputError(f"infer: the model must be a torch.nn.Module, got {type(model).__name__}")
    if layer is not None:
        convs = getattr(_unwrapped(model), "convs", None)
        if not isinstance(convs, nn.ModuleList):
            raise InputError(
                f"infer: layer={layer} needs a model with a ModuleList of layers called convs; "
                f"{type(model).__name__} has none"
            )
        check_integer("layer", layer, 1, len(convs))
    features = x if x is not None or isinstance(graph, DistMatrix) else graph.x
    if features is None:
        raise InputError("infer: the graph has no features; give x")
    return features


def _arguments(model: nn.Module) -> list[Parameter]:
    try:
        return list(signature(model.forward).parameters.values())
    except ValueError:  # TorchScript's have none
        return []


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module in DistributedDataParallel and AveragedModel, which take ``*args``."""
    inner = getattr(model, "module", None)
    passes_on = any(one.kind is one.VAR_POSITIONAL for one in _arguments(model))
    return _unwrapped(inner) if passes_on and isinstance(inner, nn.Module) else model


class _Arrived(Exception):
    """A model has come to a layer, with these arguments."""


def _input_of(model: nn.Module, layer: int, call: Callable[[], Any]) -> Any:
    """The rows that a layer of a module of others is called with; nothing after it is computed."""

    def stop(module: nn.Module, args: tuple[Any, ...]) -> None:
        raise _Arrived(*args)

    hook = cast(nn.ModuleList, model.convs)[layer].register_forward_pre_hook(stop)
    try:
        call()
    except _Arrived as arrived:
        return arrived.args[0]
    finally:
        hook.remove()
    raise InputError(f"infer: {type(model).__name__} does not call convs[{layer}]")


def _before(model: Stack, layer: int, features: Features, graph: Any) -> Tensor:
    """The rows that a layer is given."""
    H = features
    for number, on in enumerate(graphs_for(graph, len(model.convs))[:layer]):
        H = model.run_layer(model.call_of(number), model.entering(number, H, on, None), on)
    assert isinstance(H, Tensor)
    return H


def _of_own_rows(outputs: Any, rows: int, comm: Communicator) -> Tensor:
    """Refuse anything but one row for each own vertex, of the same shape on all ranks."""

    def checked() -> Tensor:
        if not isinstance(outputs, Tensor):
            raise InputError(f"infer: the model must return a tensor, got {type(outputs).__name__}")
        if outputs.shape[:1] != (rows,):
            raise InputError(
                f"infer: the model must return a row for each of the {rows} vertices of this rank, "
                f"got {list(outputs.shape)}"
            )
        return outputs

    result = comm.on_every_rank(checked)
    comm.check_agreement(
        "what the model returns", width=tuple(result.shape[1:]), dtype=str(result.dtype)
    )
    return result
