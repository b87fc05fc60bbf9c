"""Graphs from other libraries. None of them is imported until asked for by name.

Everywhere an edge u → v becomes the entry in row v, column u: row = destination.
"""

from __future__ import annotations

import copy
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
    if not sp.issparse(A) or A.ndim != 2:
        raise InputError(f"a graph is a sparse matrix of two dimensions, got {type(A).__name__}")
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
    weights = _weights(getattr(data, "edge_weight", None), len(source))
    adjacency = _counted(source, target, int(data.num_nodes), weights)
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
    if weight is not None:
        weight = torch.from_numpy(np.asarray(_weights(weight, len(source)), np.float32))
    if attr is not None:
        attr = _tensor("edge_attr", attr)
        if not attr.dim():
            raise InputError(f"edge_attr must be [{len(source)} edges, …], got a scalar")
        if len(attr) != len(source):
            raise InputError(f"edge_attr has {len(attr)} rows for {len(source)} edges")
    return EdgeList(source.astype(np.int64), target.astype(np.int64), weight, attr)


def with_edge_index(data: Any) -> Any:
    """A PyTorch Geometric ``Data`` whose edges are in `edge_index`, if they are in `adj_t` alone.

    Values of the matrix become weights unless all are 1, or features if there are several an edge.
    """
    adjacency = getattr(data, "adj_t", None)
    if getattr(data, "edge_index", None) is not None or adjacency is None:
        return data
    if isinstance(adjacency, Tensor):
        if adjacency.layout == torch.strided:
            raise InputError("adj_t must be a sparse matrix, got a dense one; edge_index does, too")
        entries = adjacency.to_sparse_coo().coalesce()
        (target, source), value = entries.indices(), entries.values()
    else:  # of torch-sparse
        target, source, value = adjacency.coo()
    data = copy.copy(data)
    data.edge_index = torch.stack((source, target))
    if value is not None and not (value.dim() == 1 and bool((value == 1).all())):
        setattr(data, "edge_weight" if value.dim() == 1 else "edge_attr", value)
    return data


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
        raise InputError("this Data has no edge_index; heterogeneous data are not read")
    edge_index = _tensor("edge_index", edge_index)
    kind = edge_index.dtype
    integers = not (kind.is_floating_point or kind.is_complex or kind == torch.bool)
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or not integers:
        found = f"{kind} {list(edge_index.shape)}"
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
    weights = None if weight is None else _weights(graph.edata[weight], len(source))
    adjacency = _counted(source, target, int(graph.num_nodes()), weights)
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
    train, val, test = _masks(masks)
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


def _masks(masks: tuple[Any, ...]) -> list[Tensor | None]:
    """Masks of tensors; where some have several splits, the others are the same in all."""
    found = [
        None if mask is None else _tensor(name, mask)
        for name, mask in zip(MASKS, masks, strict=True)
    ]
    splits = {mask.shape[1] for mask in found if mask is not None and mask.dim() == 2}
    if len(splits) != 1:
        return found
    (several,) = splits
    return [
        mask if mask is None or mask.dim() != 1 else mask[:, None].repeat(1, several)
        for mask in found
    ]


def _features(x: Any) -> Tensor | CSR | None:
    if x is None:
        return None
    features: Tensor | CSR
    try:
        array = x if sp.issparse(x) else np.asarray(_array(x))
    except ValueError:
        raise InputError("x must be [n, features], and its rows are not all as long") from None
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
        if not floating or bool((np.isfinite(known) & (known == np.rint(known))).all()):
            return torch.from_numpy(labels_of(labels).astype(np.int64))
    elif floating and bool(((known == 0) | (known == 1)).all()):
        labels = np.where(np.isnan(labels), UNKNOWN, labels).astype(np.int8)
    return torch.from_numpy(labels_of_table(labels))


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.to_dense() if value.layout != torch.strided else value
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
    return value


def _weights(weights: Any, edges: int) -> Any:
    """Edge weights as a vector of real numbers.

    Raises
    ------
    InputError
        If they are others, or not one for each edge.
    """
    if weights is None:
        return None
    found = np.asarray(_array(weights))
    if found.dtype.kind not in "fiub" or found.shape not in ((edges,), (edges, 1)):
        raise InputError(
            f"edge_weight must be real numbers [{edges} edges], got {found.dtype} "
            f"{list(found.shape)}"
        )
    vector = found.reshape(-1)
    # SciPy knows no halves.
    return vector if vector.dtype in (np.float32, np.float64) else vector.astype(np.float32)


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be a tensor, got a {type(value).__name__}") from None
