"""Graphs from other libraries. None of them is imported until asked for by name.

Everywhere an edge u → v becomes the entry in row v, column u: row = destination.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.data.edges import csr_from_edges
from spgnn.data.graph import MASKS, Graph
from spgnn.data.labels import labels_of_table
from spgnn.data.sets.ogb import labels_of
from spgnn.data.structure import with_entries
from spgnn.errors import InputError
from spgnn.nn.loss import UNKNOWN
from spgnn.sparse import CSR


def from_scipy(
    A: Any,
    *,
    x: Any = None,
    y: Any = None,
    train_mask: Any = None,
    val_mask: Any = None,
    test_mask: Any = None,
    name: str = "graph",
) -> Graph:
    """A graph from a square SciPy matrix; row i lists the vertices that vertex i receives from.

    Parameters
    ----------
    A : SciPy sparse matrix or array [n, n]
        Without weights if boolean or all entries are 1. Undirected if A = Aᵀ. Weights and features
        of any dtype become float32 (`spgnn.data.narrow`).
    x : array or Tensor [n, f], or SciPy sparse matrix, optional
    y : array or Tensor [n], [n, 1] or [n, columns], optional
        One class a vertex, several labels (0 or 1) or numbers; −1, or NaN in a floating array,
        where unknown. A vector of numbers that are all whole holds classes.
    train_mask, val_mask, test_mask : bool array or Tensor [n] or [n, splits], optional
    """
    A = sp.csr_array(A)
    if A.dtype.kind not in "fiub":
        raise InputError(f"edge weights must be real numbers, got {A.dtype}")
    if A.dtype != np.bool_ and bool((A.data == 1).all()):
        A = A.astype(np.bool_)
    return _graph(name, CSR.from_scipy(A), x, y, (train_mask, val_mask, test_mask))


def from_pyg(data: Any, name: str = "graph") -> Graph:
    """A graph from a PyTorch Geometric ``Data``: edge_index, edge_weight, x, y and masks.

    An edge that is named several times counts as often, as it does there: weights are summed, and
    without weights their number becomes the weight. `edges_of_pyg` has them one by one.

    Raises
    ------
    InputError
        If it has no edge_index, or labels that are none.
    """
    source, target = _ends(data)
    weights = _array(getattr(data, "edge_weight", None))
    adjacency = _counted(source, target, int(data.num_nodes), _weights(weights))
    masks = tuple(getattr(data, f"{kind}_mask", None) for kind in ("train", "val", "test"))
    return _graph(name, adjacency, getattr(data, "x", None), getattr(data, "y", None), masks)


@dataclass(frozen=True, eq=False)
class EdgeList:
    """Edges one by one, in the order of their source.

    Attributes
    ----------
    source, target : int64 [edges]
    weight : Tensor float32 [edges], optional
    attr : Tensor [edges, …], optional
    """

    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    weight: Tensor | None = None
    attr: Tensor | None = None

    @property
    def says_more(self) -> bool:
        """Whether an adjacency cannot say all of it: features, repetitions, or an order.

        The order of edges means something where they are sorted by target, and only among those of
        one target (an LSTM may take them in turn).
        """
        if self.attr is not None:
            return True
        order = np.lexsort((self.source, self.target))
        source, target = self.source[order], self.target[order]
        if bool(((source[1:] == source[:-1]) & (target[1:] == target[:-1])).any()):
            return True
        by_target = bool((np.diff(self.target) >= 0).all())
        return by_target and not np.array_equal(source, self.source)


def edges_of_pyg(data: Any) -> EdgeList:
    """The edges of a PyTorch Geometric ``Data`` as they stand, with edge_weight and edge_attr.

    Raises
    ------
    InputError
        If it has no edge_index, or weights and features are not one for each edge.
    """
    source, target = _ends(data)
    weight, attr = getattr(data, "edge_weight", None), getattr(data, "edge_attr", None)
    for name, array in (("edge_weight", weight), ("edge_attr", attr)):
        if array is not None and len(array) != len(source):
            raise InputError(f"{name} has {len(array)} rows for {len(source)} edges")
    if weight is not None:
        weight = torch.from_numpy(np.asarray(_weights(_array(weight)), np.float32))
    if attr is not None:
        attr = torch.as_tensor(attr).detach().cpu()
    return EdgeList(source.astype(np.int64), target.astype(np.int64), weight, attr)


def vertex_attributes_of_pyg(data: Any) -> dict[str, Tensor]:
    """Tensors of a PyTorch Geometric ``Data`` with a row for each vertex, but x, y and masks."""
    if not hasattr(data, "node_attrs"):
        return {}
    known = {"x", "y", *MASKS}
    found = {name: data[name] for name in data.node_attrs() if name not in known}
    return {name: t.detach().cpu() for name, t in found.items() if isinstance(t, Tensor)}


def _ends(data: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    edge_index = getattr(data, "edge_index", None)
    if edge_index is None:
        raise InputError("this Data has no edge_index; adj_t and heterogeneous data are not read")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.is_floating_point():
        found = f"{edge_index.dtype} {list(edge_index.shape)}"
        raise InputError(f"edge_index must be integers [2, edges], got {found}")
    source, target = (t.numpy(force=True) for t in edge_index)
    return source, target


def _counted(
    source: npt.NDArray[Any], target: npt.NDArray[Any], vertices: int, weights: Any
) -> CSR:
    """The adjacency; where edges without weights are repeated, their number is their weight."""
    adjacency = csr_from_edges(source, target, vertices, weights)
    if weights is None and adjacency.nnz < len(source):
        return csr_from_edges(source, target, vertices, np.ones(len(source), np.float32))
    return adjacency


def from_dgl(graph: Any, name: str = "graph", weight: str | None = None) -> Graph:
    """A graph from a homogeneous ``DGLGraph``: its edges and ``ndata`` feat, label and masks.

    Repeated edges count as in `from_pyg`.

    Parameters
    ----------
    graph : dgl.DGLGraph
    name : str
    weight : str, optional
        The entry of ``edata`` that holds edge weights.
    """
    source, target = (t.numpy(force=True) for t in graph.edges())
    weights = None if weight is None else _array(graph.edata[weight])
    adjacency = _counted(source, target, int(graph.num_nodes()), _weights(weights))
    data = graph.ndata
    masks = tuple(data.get(f"{kind}_mask") for kind in ("train", "val", "test"))
    x = data.get("feat", data.get("x"))
    return _graph(name, adjacency, x, data.get("label", data.get("y")), masks)


def from_ogb(dataset: Any) -> Graph:
    """A graph from an ``ogb.nodeproppred.NodePropPredDataset``, or from the name of one.

    A name needs the package ogb; `spgnn.data.load_dataset` reads the same sets without it.
    """
    if isinstance(dataset, str):
        from ogb.nodeproppred import NodePropPredDataset  # noqa: PLC0415

        dataset = NodePropPredDataset(dataset)
    graph, labels = dataset[0]
    vertices = int(graph["num_nodes"])
    source, target = np.asarray(graph["edge_index"])
    masks = []
    split = dataset.get_idx_split()
    for kind in ("train", "valid", "test"):
        mask = np.zeros(vertices, np.bool_)
        mask[_array(split[kind])] = True
        masks.append(mask)
    adjacency = _counted(source, target, vertices, None)
    return _graph(str(dataset.name), adjacency, graph.get("node_feat"), labels, tuple(masks))


def _graph(name: str, adjacency: CSR, x: Any, y: Any, masks: tuple[Any, ...]) -> Graph:
    if adjacency.values is not None and not bool(adjacency.values.isfinite().all()):
        raise InputError("an edge weight is NaN or infinite; every weight must be a finite number")
    A = with_entries(adjacency)
    directed = A.shape[0] == A.shape[1] and (A.T.tocsr() != A).nnz > 0
    train, val, test = (None if m is None else torch.as_tensor(_array(m)) for m in masks)
    return Graph(
        name,
        adjacency,
        directed,
        x=_features(x),
        y=_labels(y),
        train_mask=train,
        val_mask=val,
        test_mask=test,
    )


def _features(x: Any) -> Tensor | CSR | None:
    if x is None:
        return None
    features: Tensor | CSR
    array = x if sp.issparse(x) else np.asarray(_array(x))
    if array.dtype.kind not in "fiub":
        raise InputError(f"x must be real numbers, got {array.dtype}")
    if sp.issparse(x):
        features = CSR.from_scipy(x.astype(np.float32) if x.dtype == np.bool_ else x)
    else:
        features = torch.from_numpy(array)
    values = features.values if isinstance(features, CSR) else features
    if values is not None and not bool(values.isfinite().all()):
        raise InputError("x holds a NaN or an infinity; every feature must be a finite number")
    return features


def _labels(y: Any) -> Tensor | None:
    if y is None:
        return None
    labels = np.asarray(_array(y))
    if labels.dtype.kind not in "fiub" or labels.ndim not in (1, 2):
        found = f"{labels.dtype} {list(labels.shape)}"
        raise InputError(f"y must be labels [n] or [n, columns], got {found}")
    floating = labels.dtype.kind == "f"
    known = labels[~np.isnan(labels)] if floating else labels
    if labels.ndim == 1 or labels.shape[1] == 1:
        # Classes are often kept as floating numbers, with NaN where there is none.
        if not floating or bool((known == np.rint(known)).all()):
            return torch.from_numpy(labels_of(labels).astype(np.int64))
    elif floating and bool(((known == 0) | (known == 1)).all()):
        labels = np.where(np.isnan(labels), UNKNOWN, labels).astype(np.int8)
    return torch.from_numpy(labels_of_table(labels))


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
    return value


def _weights(weights: Any) -> Any:
    """Edge weights as a vector of real numbers."""
    if weights is None:
        return None
    vector = np.asarray(weights).reshape(-1)
    return vector if vector.dtype.kind == "f" else vector.astype(np.float32)
