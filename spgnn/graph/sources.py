"""What can be distributed: other libraries' graphs, ours, names, files and directories."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.data import (
    Graph,
    GraphBlock,
    GraphSource,
    from_dgl,
    from_ogb,
    from_pyg,
    from_scipy,
    open_source,
)
from spgnn.data.adapters import (
    EdgeList,
    edges_of_pyg,
    vertex_attributes_of_pyg,
    with_edge_index,
)
from spgnn.data.graph import MASKS
from spgnn.data.source import MemorySource
from spgnn.errors import InputError
from spgnn.graph.vertices import check_sent
from spgnn.progress import ProgressBar

# With a SciPy matrix, what is known of its vertices comes beside it.
BESIDE = ("x", "y", *MASKS)


@dataclass(frozen=True, eq=False)
class Opened:
    """A graph that rank 0 can read.

    Attributes
    ----------
    source : GraphSource
    edges : EdgeList, optional
        The edges one by one, where the adjacency does not say all of them.
    attributes : dict of Tensor [n, …]
        What else is known of each vertex.
    parallel : {"", "counted", "summed"}
        What the adjacency does with edges between the same two vertices, where there are any.
    """

    source: GraphSource
    edges: EdgeList | None = None
    attributes: dict[str, Tensor] = field(default_factory=dict)
    parallel: str = ""


def kind_of(data: Any) -> str:
    """What something is, in one word; "nothing" for ``None``.

    Raises
    ------
    InputError
        If it is nothing that can be distributed.
    """
    signs = {
        "nothing": data is None,
        "name": isinstance(data, str | os.PathLike),
        "graph": isinstance(data, Graph),
        "block": isinstance(data, GraphBlock),
        "source": isinstance(data, GraphSource),
        "scipy": sp.issparse(data),
        "ogb": hasattr(data, "get_idx_split"),
        "dgl": hasattr(data, "ndata"),
        "pyg": hasattr(data, "edge_index"),
    }
    found = [kind for kind, there in signs.items() if there]
    if found:
        return found[0]
    if hasattr(data, "edge_types"):
        raise InputError("heterogeneous data are not distributed: take data.to_homogeneous()")
    raise InputError(
        f"data of type {type(data).__name__} cannot be distributed: give a PyG Data, a DGLGraph, "
        "an OGB dataset, a SciPy matrix, a spgnn.data.Graph, or the name or path of a data set"
    )


def opener(
    data: Any, beside: dict[str, Any], name: str, data_dir: str | None
) -> Callable[[], Opened]:
    """What rank 0 has to do to read a graph.

    Parameters
    ----------
    data
        Anything but a block.
    beside : dict
        Of what `BESIDE` names, what was given.
    name : str
        What messages call a graph that has no name of its own.
    data_dir : str, optional
        Where named sets are looked for.
    """
    kind = kind_of(data)

    def opened() -> Opened:
        given = [key for key, value in beside.items() if value is not None]
        if given and kind != "scipy":
            raise InputError(f"{given[0]}= belongs to a SciPy matrix; this data has its own")
        return _OPENERS[kind](data, name, data_dir, beside)

    return opened


def _missing(data: Any, *_: Any) -> Opened:
    raise InputError("data: rank 0 has none; it has to hold the graph")


def _named(data: Any, name: str, data_dir: str | None, _: Any) -> Opened:
    with ProgressBar() as progress:
        return Opened(open_source(os.fspath(data), data_dir, progress=progress))


def _scipy(data: Any, name: str, _: Any, beside: dict[str, Any]) -> Opened:
    return Opened(MemorySource(from_scipy(data, name=name, **beside)))


def _ogb(dataset: Any, *_: Any) -> Opened:
    """Of either flavour: edges in a dictionary, or in a PyG ``Data``."""
    data = dataset[0]
    if not hasattr(data, "edge_index"):
        return Opened(MemorySource(from_ogb(dataset)))
    data, split = data.clone(), dataset.get_idx_split()
    for name, part in zip(MASKS, ("train", "valid", "test"), strict=True):
        mask = torch.zeros(int(data.num_nodes), dtype=torch.bool)
        mask[split[part]] = True
        data[name] = mask
    return _pyg(data, str(dataset.name))


def _pyg(data: Any, name: str, *_: Any) -> Opened:
    data = with_edge_index(data)
    attributes = vertex_attributes_of_pyg(data)
    y = getattr(data, "y", None)
    if isinstance(y, Tensor) and not _is_classes(y) and len(y) == int(data.num_nodes):
        attributes["y"] = y.detach().cpu()
        data = copy.copy(data)
        data.y = None
    for key, rows in attributes.items():
        check_sent(f"{key} of the Data", rows)
    graph, edges = from_pyg(data, name), edges_of_pyg(data)
    if edges.attr is not None:
        check_sent("edge_attr", edges.attr)
    parallel = ""
    if graph.edges < len(edges.source):
        parallel = "counted" if edges.weight is None else "summed"
    kept = edges if edges.says_more else None
    return Opened(MemorySource(graph), kept, attributes, parallel)


def _is_classes(y: Tensor) -> bool:
    """Whether labels are one class a vertex, rather than several, or numbers to be predicted."""
    if y.dim() > 2 or (y.dim() == 2 and y.shape[1] != 1):
        return False
    if not y.is_floating_point():
        return True
    known = y[~y.isnan()]
    return bool((known == known.round()).all())


_OPENERS: dict[str, Callable[..., Opened]] = {
    "nothing": _missing,
    "name": _named,
    "scipy": _scipy,
    "ogb": _ogb,
    "pyg": _pyg,
    "dgl": lambda data, name, *_: Opened(MemorySource(from_dgl(data, name))),
    "graph": lambda data, *_: Opened(MemorySource(data)),
    "source": lambda data, *_: Opened(data),
}
