"""What can be distributed: other libraries' graphs, ours, names, files and directories."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.data import Dataset

from spgnn.data import (
    Graph,
    GraphBlock,
    GraphSource,
    from_scipy,
    open_source,
)
from spgnn.data.adapters import (
    EdgeList,
    ForeignGraph,
    read_dgl,
    read_ogb,
    read_pyg,
    rows_of_vertices,
    unchanged,
    with_edge_index,
)
from spgnn.data.graph import MASKS, classes_of
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
        What else is known of each vertex; x and y, where they have dtypes or shapes of their own.
    shared : dict
        What is said of the whole graph: tensors [1, …] or [], and plain values.
    left_out : dict of str
        The names of everything else, and what it is.
    parallel : {"", "counted", "summed"}
        What the adjacency does with edges between the same two vertices, where there are any.
    """

    source: GraphSource
    edges: EdgeList | None = None
    attributes: dict[str, Tensor] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    parallel: str = ""

    @property
    def features(self) -> int:
        """Width of x, 0 without."""
        x = self.attributes.get("x")
        if x is None:
            return self.source.meta.features
        return 1 if x.dim() == 1 else int(x.shape[-1])

    @property
    def classes(self) -> int:
        """Largest class + 1, where y is one class a vertex."""
        y = self.attributes.get("y")
        return self.source.meta.classes if y is None else classes_of(y)

    @property
    def outputs(self) -> int:
        """Numbers that predict y: one a class, or one for each of its own."""
        y = self.attributes.get("y")
        return self.classes if y is None else self.classes or y[:1].numel()


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
    if isinstance(data, Dataset) and found and found[0] != "ogb":
        found = []  # PyG's take attributes of the graphs they hold
    if found:
        return found[0]
    kind = type(data).__name__
    if hasattr(data, "edge_types"):
        raise InputError("heterogeneous data are not distributed: take data.to_homogeneous()")
    if isinstance(data, list | tuple | Dataset):
        several = f"a {kind} may hold several graphs"
        raise InputError(f"{several}, and one is distributed: give that, as data[0]")
    raise InputError(
        f"data of type {kind} cannot be distributed: give a PyG Data, a DGLGraph, "
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
    given = {key: value for key, value in beside.items() if value is not None}
    sparse = {"x": given.pop("x")} if sp.issparse(given.get("x")) else {}
    tensors = rows_of_vertices(given, data.shape[0])
    inside, attributes = unchanged(tensors)
    masks = {key: tensors.get(key) for key in MASKS}
    record = from_scipy(data, name=name, **sparse, **inside, **masks)
    return _checked(Opened(MemorySource(record), attributes=attributes))


def _ogb(dataset: Any, *_: Any) -> Opened:
    """Of either flavour: edges in a dictionary, or in a PyG ``Data``."""
    data, name = dataset[0], str(dataset.name)
    if not hasattr(data, "edge_index"):
        return _foreign(read_ogb(dataset), name)
    data, split = data.clone(), dataset.get_idx_split()
    for key, part in zip(MASKS, ("train", "valid", "test"), strict=True):
        mask = torch.zeros(int(data.num_nodes), dtype=torch.bool)
        mask[split[part]] = True
        data[key] = mask
    return _pyg(data, name)


def _pyg(data: Any, name: str, *_: Any) -> Opened:
    return _foreign(read_pyg(with_edge_index(data)), name)


def _dgl(data: Any, name: str, *_: Any) -> Opened:
    if not getattr(data, "is_homogeneous", True):
        raise InputError("heterogeneous data are not distributed: take dgl.to_homogeneous(graph)")
    return _foreign(read_dgl(data), name)


def _foreign(whole: ForeignGraph, name: str) -> Opened:
    record, attributes = whole.apart(name)
    edges, parallel = whole.edges, ""
    if record.edges < len(edges.source):
        parallel = "summed" if "edge_weight" in edges.attributes else "counted"
    kept = edges if edges.says_more else None
    source = MemorySource(record)
    return _checked(Opened(source, kept, attributes, whole.shared, whole.left_out, parallel))


def _checked(opened: Opened) -> Opened:
    """Refuse what cannot be handed out."""
    edges = {} if opened.edges is None else opened.edges.attributes
    shared = {key: t for key, t in opened.shared.items() if isinstance(t, Tensor)}
    for key, rows in (opened.attributes | edges | shared).items():
        check_sent(key, rows)
    return opened


_OPENERS: dict[str, Callable[..., Opened]] = {
    "nothing": _missing,
    "name": _named,
    "scipy": _scipy,
    "ogb": _ogb,
    "pyg": _pyg,
    "dgl": _dgl,
    "graph": lambda data, *_: Opened(MemorySource(data)),
    "source": lambda data, *_: Opened(data),
}
