"""Graphs from other libraries. None of them is imported until asked for by name.

Everywhere an edge u → v becomes the entry in row v, column u: row = destination.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from spgnn.data.graph import MASKS, UNKNOWN, Graph, labels_of_table, narrow_features, single_labels
from spgnn.data.structure import csr_from_edges, with_entries, without_ones
from spgnn.errors import InputError
from spgnn.files import errors_of
from spgnn.pattern import described
from spgnn.sparse import CSR
from spgnn.torch_internals import on_cpu


@on_cpu
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

    All arrays are copied: what is done to them afterwards changes nothing in the graph.

    Parameters
    ----------
    A : SciPy sparse matrix or array [n, n]
        Of any format; entries that occur twice are summed. Without weights if it is boolean or all
        entries are then 1. Undirected if A = Aᵀ, in its pattern too. Weights and features of any
        dtype become float32 (`spgnn.data.graph`).
    x : array or Tensor [n, f], or SciPy sparse matrix, optional
    y : array or Tensor [n], [n, 1] or [n, columns], optional
        One class a vertex, several labels (0 or 1) or numbers; −1, or NaN in a floating array,
        where unknown. A vector of numbers that are all whole holds classes.
    train_mask, val_mask, test_mask : bool array or Tensor [n] or [n, splits], optional
    """
    if not scipy.sparse.issparse(A) or A.ndim != 2:
        raise InputError(f"a graph is a sparse matrix of two dimensions, got {type(A).__name__}")
    adjacency = without_ones(_block("edge weights", A))
    masks = {"train_mask": train_mask, "val_mask": val_mask, "test_mask": test_mask}
    return _graph(name, adjacency, {"x": x, "y": y, **masks})


@on_cpu
def from_pyg(data: Any, name: str = "graph") -> Graph:
    """A graph from a PyTorch Geometric ``Data``: edge_index, edge_weight, edge_attr, x, y, masks.

    An edge that is named several times counts as often, as it does there: weights are summed, and
    without weights their number becomes the weight. All tensors are copied.
    """
    return read_pyg(data).record(name)


@on_cpu
def from_dgl(graph: Any, name: str = "graph", weight: str | None = None) -> Graph:
    """A graph from a homogeneous ``DGLGraph``: its edges and ``ndata`` feat, label and masks.

    `weight` names the entry of ``edata`` that holds edge weights. Repeated edges count as in
    `from_pyg`. All tensors are copied.
    """
    return read_dgl(graph, weight).record(name)


@on_cpu
def from_ogb(dataset: Any) -> Graph:
    """A graph from an ``ogb.nodeproppred.NodePropPredDataset``, or from the name of one.

    A name needs the package ogb; `spgnn.data.load_dataset` reads the same sets without it. All
    arrays are copied.
    """
    if isinstance(dataset, str):
        from ogb.nodeproppred import NodePropPredDataset

        dataset = NodePropPredDataset(dataset)
    return read_ogb(dataset).record(str(dataset.name))


@dataclass(frozen=True, eq=False)
class EdgeList:
    """Edges one by one, in the order of their source."""

    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]
    attributes: dict[str, Tensor] = field(default_factory=dict)  # [edges, …], of any dtype

    @property
    def says_more(self) -> bool:
        """True if an adjacency cannot hold all of it: attributes, repetitions, or an order."""
        for name, t in self.attributes.items():
            if name != "edge_weight" or t.dtype != torch.float32 or t.dim() != 1:
                return True
        order = np.lexsort((self.source, self.target))
        source, target = self.source[order], self.target[order]
        if bool(((source[1:] == source[:-1]) & (target[1:] == target[:-1])).any()):
            return True
        by_target = bool((np.diff(self.target) >= 0).all())
        return by_target and not np.array_equal(source, self.source)

    def adjacency(self, vertices: int) -> CSR:
        """The matrix of the edges; weights are summed, and repetitions without weights counted."""
        stated, weights = self.attributes.get("edge_weight"), None
        if stated is not None:
            edges = len(self.source)
            if stated.is_complex() or stated.shape not in ((edges,), (edges, 1)):
                got = described(stated)
                raise InputError(f"edge_weight must be real numbers [{edges} edges], got {got}")
            vector = stated.reshape(-1)
            if vector.dtype not in (torch.float32, torch.float64):
                vector = narrow_features(vector, "edge_weight")
                vector = vector if stated.is_floating_point() else vector.double()
            weights = vector.numpy()
        A = csr_from_edges(self.source, self.target, vertices, weights)
        if weights is None and A.nnz < len(self.source):
            ones = np.ones(len(self.source), np.float32)
            A = csr_from_edges(self.source, self.target, vertices, ones)
        if stated is not None and not stated.is_floating_point():
            assert A.values is not None
            # By way of integers, which are refused where they are rounded.
            return A.with_values(narrow_features(A.values.long(), "a sum of edge_weight"))
        return A


@dataclass(frozen=True, eq=False)
class ForeignGraph:
    """A graph of another library: its arrays as tensors on the CPU, otherwise unchanged."""

    vertices: int
    edges: EdgeList
    attributes: dict[str, Tensor]  # x, y, masks and all else that has a row for each vertex
    # Of the whole graph: tensors [1, …] or [], plain values, and texts.
    shared: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # all else, described
    listed: dict[str, Tensor] = field(default_factory=dict)  # `lists_of_vertices`
    pairs: dict[str, Tensor] = field(default_factory=dict)  # `pairs_of_vertices`

    def record(self, name: str) -> Graph:
        """The adjacency with x, y, masks and edge_attr, in the dtypes of a `Graph`."""
        graph = _graph(name, self.edges.adjacency(self.vertices), self.attributes)
        attr = self.edges.attributes.get("edge_attr")
        if attr is None or not attr.is_floating_point():
            return graph
        if graph.edges < len(attr):
            raise InputError(
                "edge_attr: an edge is named several times, and a Graph holds it once, with one "
                "row of features; spgnn.distribute takes such data as they are"
            )
        order = torch.from_numpy(np.lexsort((self.edges.source, self.edges.target)))
        return replace(graph, edge_attr=attr[order].reshape(len(attr), -1))

    def apart(self, name: str) -> tuple[Graph, dict[str, Tensor]]:
        """A record of what a `Graph` holds without any change, and all other attributes."""
        inside, others = unchanged(self.attributes)
        masks = {key: self.attributes.get(key) for key in MASKS}
        return _graph(name, self.edges.adjacency(self.vertices), {**inside, **masks}), others


def unchanged(attributes: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """X and y where a `Graph` holds them as they are, and everything else but masks."""
    kinds = {"x": (torch.float32, 2), "y": (torch.int64, 1)}
    inside = {
        name: t
        for name, t in attributes.items()
        if kinds.get(name) == (t.dtype, t.dim()) and t[:1].numel()
    }
    return inside, {k: t for k, t in attributes.items() if k not in inside and k not in MASKS}


def read_pyg(data: Any) -> ForeignGraph:
    edge_index = getattr(data, "edge_index", None)
    if edge_index is None:
        raise InputError("this Data has no edge_index; heterogeneous data are not read")
    ends = _tensor("edge_index", edge_index)
    if ends.dim() != 2 or ends.shape[0] != 2 or not _is_integer(ends):
        raise InputError(f"edge_index must be integers [2, edges], got {described(ends)}")
    names = data.keys() if callable(getattr(data, "keys", None)) else vars(data)
    named = {str(key): getattr(data, str(key)) for key in names}
    for key in ("edge_index", "adj_t", "num_nodes"):
        named.pop(key, None)
    vertices, x = int(data.num_nodes), named.get("x")
    if isinstance(x, Tensor) and x.shape[:1] == (vertices,) and bool((ends >= vertices).any()):
        raise InputError(f"x has {vertices} rows, and edge_index has vertex {int(ends.max())}")
    return _by_rows(ends[0].numpy(), ends[1].numpy(), vertices, named)


def read_dgl(graph: Any, weight: str | None = None) -> ForeignGraph:
    """Everything that a homogeneous ``DGLGraph`` holds: feat and label are called x and y."""
    source, target = (t.numpy(force=True).astype(np.int64) for t in graph.edges())
    of_vertices = _renamed(graph.ndata, {"feat": "x", "label": "y"}, "ndata")
    of_edges = _renamed(graph.edata, {} if weight is None else {weight: "edge_weight"}, "edata")
    attributes = {k: _rows(k, value, len(source), "edges") for k, value in of_edges.items()}
    vertices = int(graph.num_nodes())
    edges = EdgeList(source, target, attributes)
    return ForeignGraph(vertices, edges, rows_of_vertices(of_vertices, vertices))


def read_ogb(dataset: Any) -> ForeignGraph:
    """Everything in a ``NodePropPredDataset``: node_feat and edge_feat become x and edge_attr."""
    graph, labels = dataset[0]
    named = _renamed(graph, {"node_feat": "x", "edge_feat": "edge_attr"}, "the graph")
    source, target = np.asarray(named.pop("edge_index"))
    vertices = int(named.pop("num_nodes"))
    split = dataset.get_idx_split()
    masks = {}
    for kind, part in zip(MASKS, ("train", "valid", "test"), strict=True):
        masks[kind] = np.zeros(vertices, np.bool_)
        masks[kind][_array(split[part])] = True
    return _by_rows(source, target, vertices, {**named, "y": labels, **masks})


def _renamed(named: Mapping[str, Any], names: Mapping[str, str], owner: str) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for key in named:
        ours = names.get(key, key)
        if ours in renamed:
            raise InputError(f"{owner} has both {key} and {ours}, which are the same here")
        renamed[ours] = named[key]
    return renamed


def _by_rows(
    source: npt.NDArray[Any], target: npt.NDArray[Any], vertices: int, named: Mapping[str, Any]
) -> ForeignGraph:
    """Separate named values into those of vertices, of edges, and of the whole graph."""
    edges = len(source)
    listed = EdgeList(source.astype(np.int64), target.astype(np.int64), {})
    graph = ForeignGraph(vertices, listed, {})
    graph.listed.update(lists_of_vertices(named, vertices))
    graph.pairs.update(pairs_of_vertices(named, vertices, vertices))
    named = {key: value for key, value in named.items() if value is not None}
    for name, value in {**masks_of_lists(graph.listed), **named}.items():
        if name in graph.listed or name in graph.pairs:
            continue
        if name in ("x", "y", *MASKS):
            graph.attributes[name] = _rows(name, value, vertices, "vertices")
        elif name in ("edge_weight", "edge_attr"):
            listed.attributes[name] = _rows(name, value, edges, "edges")
        elif is_said_of_all(value, vertices, edges):
            graph.shared[name] = value
        elif not isinstance(value, Tensor | np.ndarray) or numbers_vertices(name, value, named):
            graph.left_out[name] = described(value)
        elif value.shape[:1] == (vertices,) and (edges != vertices or "edge" not in name):
            graph.attributes[name] = _tensor(name, value)
        elif value.shape[:1] == (edges,):
            listed.attributes[name] = _tensor(name, value)
        elif value.shape[:1] in ((), (1,)):
            graph.shared[name] = _tensor(name, value)
        else:
            graph.left_out[name] = described(value)
    return graph


def is_said_of_all(value: Any, *rows: int) -> bool:
    """True for plain values, and for texts that are not one for each vertex or edge."""
    if isinstance(value, str | bool | int | float):
        return True
    if not isinstance(value, list | tuple | dict) or len(value) in rows:
        return False
    texts = chain(value, value.values()) if isinstance(value, dict) else value
    return all(isinstance(text, str) for text in texts)


def numbers_vertices(name: str, value: Any, named: Mapping[str, Any]) -> bool:
    """True for pairs of vertices, as a link split has them, their labels, and faces of a mesh."""
    first = value.shape[0] if value.ndim == 2 else 0
    return (
        f"{name}_index" in named or ("index" in name and first == 2) or (name, first) == ("face", 3)
    )


def lists_of_vertices(named: Mapping[str, Any], vertices: int) -> dict[str, Tensor]:
    """``train_idx`` and the like as masks [n], and ``train_y`` as rows of all vertices.

    ``split_idx`` may be a dictionary of them, as OGB's ``get_idx_split`` returns it. Lists in which
    a vertex is there twice, or one that the graph does not have, are passed over.
    """
    splits = named.get("split_idx")
    lists = {f"{key}_idx": t for key, t in splits.items()} if isinstance(splits, Mapping) else {}
    lists |= {key: t for key, t in named.items() if t is not None}
    tables: dict[str, Tensor] = {}
    for name in _LISTS:
        value = lists.get(name)
        if not isinstance(value, Tensor | np.ndarray) or value.ndim != 1:
            continue
        index = _tensor(name, value)
        if not _are_numbers(index, vertices) or len(index.unique()) < len(index):
            continue
        tables[name] = torch.zeros(vertices, dtype=torch.bool).index_fill_(0, index.long(), True)
        labels = name.removesuffix("_idx") + "_y"
        y = named.get(labels)
        if isinstance(y, Tensor | np.ndarray) and y.shape[:1] == (len(index),):
            rows = _tensor(labels, y)
            table = rows.new_zeros((vertices, *rows.shape[1:]))
            tables[labels] = table.index_copy_(0, index.long(), rows)
    return tables


_LISTS = {
    "train_idx": "train_mask",
    "val_idx": "val_mask",
    "valid_idx": "val_mask",
    "test_idx": "test_mask",
}


def masks_of_lists(tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The masks that lists of vertices stand for."""
    return {mask: tables[name] for name, mask in _LISTS.items() if name in tables}


def of_own_rows(tables: dict[str, Tensor]) -> dict[str, Tensor]:
    """Lists of a rank's own rows, and what is known of those listed, of their tables."""
    masks = {name: tables[name] for name in _LISTS if name in tables}
    result = {name: mask.nonzero()[:, 0] for name, mask in masks.items()}
    for name, mask in masks.items():
        labels = name.removesuffix("_idx") + "_y"
        if labels in tables:
            result[labels] = tables[labels][mask]
    return result


def pairs_of_vertices(named: Mapping[str, Any], sources: int, targets: int) -> dict[str, Tensor]:
    """``edge_label_index``, also ``pos_…``, int64 [2, k], with ``edge_label`` [k, …], if there."""
    pairs: dict[str, Tensor] = {}
    for name, value in named.items():
        if not name.endswith("edge_label_index") or not isinstance(value, Tensor | np.ndarray):
            continue
        index = _tensor(name, value)
        if index.dim() != 2 or len(index) != 2 or index.layout != torch.strided:
            continue
        if not (_are_numbers(index[0], sources) and _are_numbers(index[1], targets)):
            continue
        pairs[name] = index.long()
        labels = name.removesuffix("_index")
        y = named.get(labels)
        if isinstance(y, Tensor | np.ndarray) and y.shape[:1] == (index.shape[1],):
            pairs[labels] = _tensor(labels, y)
    return pairs


def _is_integer(t: Tensor) -> bool:
    return not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)


def _are_numbers(index: Tensor, rows: int) -> bool:
    """True for integers from 0 to below a number of rows."""
    return _is_integer(index) and bool(((index >= 0) & (index < rows)).all())


def rows_of_vertices(named: Mapping[str, Any], vertices: int) -> dict[str, Tensor]:
    """Arrays with a row for each vertex, as tensors."""
    return {name: _rows(name, value, vertices, "vertices") for name, value in named.items()}


def _rows(name: str, value: Any, rows: int, of: str) -> Tensor:
    tensor = _tensor(name, value)
    if name == "edge_weight":
        return tensor  # its shape is checked with its numbers
    if name in ("x", "y", *MASKS):
        tensor = tensor.to_dense()
    if name in ("x", "edge_attr"):
        _check_finite(name, tensor)
    if not tensor.dim():
        raise InputError(f"{name} must be [{rows} {of}, …], got a scalar")
    if len(tensor) != rows:
        raise InputError(f"{name} has {len(tensor)} rows for {rows} {of}")
    return tensor


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


def _graph(name: str, adjacency: CSR, arrays: Mapping[str, Any]) -> Graph:
    _check_finite("A", adjacency, "weight")
    # Undirected means equal to its transpose, in its pattern and its values.
    directed = not adjacency.pattern.is_symmetric
    if not directed and adjacency.values is not None:
        A = with_entries(adjacency)
        directed = (A.T.tocsr() != A).nnz > 0
    masks = {key: _tensor(key, arrays[key]) for key in MASKS if arrays.get(key) is not None}
    # Where some masks have several splits, the others are the same in all.
    splits = {mask.shape[1] for mask in masks.values() if mask.dim() == 2}
    for key, mask in masks.items():
        repeated = len(splits) == 1 and mask.dim() == 1
        masks[key] = mask[:, None].repeat(1, *splits) if repeated else mask.clone()
    x, y = _features(arrays.get("x")), _labels(arrays.get("y"))
    return Graph(name, adjacency, directed, x=x, y=y, **masks)


def _features(x: Any) -> Tensor | CSR | None:
    if x is None:
        return None
    if scipy.sparse.issparse(x):
        sparse = _block("x", x)
        _check_finite("x", sparse)
        return sparse.with_values(torch.ones(sparse.nnz)) if sparse.values is None else sparse
    try:
        array = np.asarray(_array(x))
    except ValueError:
        raise InputError("x must be [n, features], and its rows are not all as long") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"x must be real numbers, got {array.dtype}")
    dense = torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))
    _check_finite("x", dense)
    return dense


def _block(what: str, A: Any) -> CSR:
    """`CSR.from_scipy`, with errors that name the matrix."""
    if A.dtype.kind not in "fiub":
        raise InputError(f"{what} must be real numbers, got {A.dtype}")
    with errors_of(what):
        return CSR.from_scipy(A)


def _check_finite(name: str, numbers: Tensor | CSR, what: str = "feature") -> None:
    values = numbers.values if isinstance(numbers, CSR) else numbers
    if values is None or bool((good := values.isfinite()).all()):
        return
    first = (~good).nonzero()[0].tolist()
    value = float(values[tuple(first)])
    if isinstance(numbers, CSR):
        first = [ends[first[0]] for ends in numbers.to_scipy().nonzero()]
    where = ", ".join(map(str, first))
    raise InputError(f"{name}[{where}] is {value}; every {what} must be a finite number")


def _labels(y: Any) -> Tensor | None:
    if y is None:
        return None
    labels = np.asarray(_array(y))
    if labels.dtype.kind not in "fiub" or labels.ndim not in (1, 2):
        got = f"{labels.dtype} {list(labels.shape)}"
        raise InputError(f"y must be labels [n] or [n, columns], got {got}")
    floating = labels.dtype.kind == "f"
    present = labels[~np.isnan(labels)] if floating else labels
    if labels.ndim == 1 or labels.shape[1] == 1:
        # Classes are often kept as floating numbers, with NaN where there is none.
        if not floating or bool((np.isfinite(present) & (present == np.rint(present))).all()):
            return torch.from_numpy(single_labels(labels).astype(np.int64))
    elif floating and bool(((present == 0) | (present == 1)).all()):
        labels = np.where(np.isnan(labels), UNKNOWN, labels).astype(np.int8)
    return torch.from_numpy(labels_of_table(labels))


def _array(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.to_dense() if value.layout != torch.strided else value
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
    return value


def _tensor(name: str, value: Any) -> Tensor:
    """A tensor in memory of the CPU with the values, the dtype and the shape of an array."""
    try:
        if not isinstance(value, Tensor | list | tuple):
            array = np.asarray(value)
            if not array.flags.writeable or any(step < 0 for step in array.strides):
                array = array.copy()
            value = array.astype(array.dtype.newbyteorder("="), copy=False)
        tensor = torch.as_tensor(value)
        if tensor.requires_grad:
            raise InputError(
                f"{name} requires a gradient, which ranks, whose rows are copies, cannot lead to "
                f"it: give {name}.detach(), and what the graph has of it requires_grad_()"
            )
        return tensor.cpu()
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError):
        kind = type(value).__name__
        if isinstance(value, list | tuple):
            kind += " with other things than numbers, or with rows of different lengths"
        elif isinstance(value, np.ndarray | np.generic):
            kind += f" of {value.dtype}, not of numbers"
        raise InputError(f"{name} must be a tensor, got a {kind}") from None
