"""A graph on one process that batches are drawn from: structure, and tables of its entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches.feature_rows import MemoryRows, Rows
from spgnn.addons.batches.samplers import GraphSampler
from spgnn.addons.batches.sampling import Sampler, offsets_of
from spgnn.data import MASKS, Graph, with_edge_index
from spgnn.errors import InputError
from spgnn.frontend import kind_of, open_data
from spgnn.graph import Degrees, DistGraph
from spgnn.pattern import Pattern, described, index_dtype
from spgnn.sparse import CSR

FeatureStore = Rows | CSR | None
_PIECE = 1 << 16  # rows that are looked at together
_OF_VERTICES = ("x", "y", *MASKS)
_OF_EDGES = ("edge_weight", "edge_attr", "edge_type")
_STRUCTURE = ("edge_index", "adj", "adj_t", "num_nodes")


class StoredPattern(ABC):
    """A pattern whose column numbers lie elsewhere: as far as batches use one.

    Attributes
    ----------
    indptr : Tensor int64 [rows + 1]
    shape : (rows, cols)
    """

    indptr: Tensor
    shape: tuple[int, int]

    @property
    def nnz(self) -> int:
        """Number of column numbers."""
        return int(self.indptr[-1])

    @property
    def row_lengths(self) -> Tensor:
        """Entries of each row, int64 [rows]."""
        return self.indptr.diff()

    @property
    @abstractmethod
    def indices(self) -> Any:
        """All column numbers, as far as they are sliced."""

    @abstractmethod
    def sampler(self, kind: type[GraphSampler], counts: Sequence[int], **options: Any) -> Sampler:
        """A sampler that makes the samples of a kind's in memory."""

    def release(self) -> None:
        """Give back memory that can be filled again, until rows are asked for."""
        return


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphTables:
    """Tables that a batch can look up of its graph; dtype and shape are the caller's."""

    vertices: dict[str, Tensor]  # [n, …] of each vertex: y, masks
    edges: dict[str, Tensor]  # [edges, …] in the order of the graph as it was given
    others: dict[str, Any] = field(default_factory=dict)  # of no vertex and no edge
    edge_ids: Tensor | None = None  # int64 [nnz]: the edge of each nonzero; None: in order
    vertex_ids: Tensor | None = None  # int64 [n]: original ids; None: the numbers themselves
    known_degrees: Degrees | None = None  # in the whole graph, of all vertices
    numbers_edges: bool = True  # a place in the tables of edges is that in the graph as given

    def ids_of(self, nodes: Tensor) -> Tensor:
        """Original ids of some vertices."""
        return nodes if self.vertex_ids is None else self.vertex_ids[nodes]

    def degrees(self, nodes: Tensor) -> Degrees:
        """Degrees of some vertices in the whole graph."""
        assert self.known_degrees is not None
        return self.known_degrees.of(nodes)

    def excerpt(self, nodes: Tensor, edges: Tensor, *, degrees: bool) -> GraphTables:
        """The same of some vertices and edges alone, which are numbered from 0 in it."""
        return GraphTables(
            vertices={name: entries_of(name, t, nodes) for name, t in self.vertices.items()},
            edges={name: entries_of(name, t, edges) for name, t in self.edges.items()},
            others=self.others,
            vertex_ids=self.ids_of(nodes),
            known_degrees=self.degrees(nodes) if degrees else None,
            numbers_edges=self.numbers_edges,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledGraph(GraphTables):
    """A graph on one process that batches are drawn from."""

    name: str
    pattern: Pattern | StoredPattern  # row i lists whom vertex i aggregates from, columns rising
    x: FeatureStore
    numbered: bool = False  # batches number their edges: the graph came as a list of them

    @property
    def structure(self) -> Pattern:
        """The pattern, for what needs it in memory; an InputError if it lies on a disk."""
        if isinstance(self.pattern, Pattern):
            return self.pattern
        raise InputError(f"{self.name}: its structure lies on a disk; this needs it in memory")

    @property
    def rows(self) -> int:
        """Number of vertices."""
        return self.pattern.shape[0]

    @cached_property
    def edge_weight(self) -> Tensor | None:
        """Weights of the nonzeros, float32 [nnz]."""
        if "edge_weight" not in self.edges:
            return None
        return self.of_nonzeros("edge_weight").reshape(-1).float()

    def of_nonzeros(self, name: str) -> Tensor:
        """A table of the edges, in the order of the pattern."""
        table = self.edges[name]
        return table if self.edge_ids is None else table[self.edge_ids]

    def degrees(self, nodes: Tensor) -> Degrees:
        degrees = self._all_degrees if self.known_degrees is None else self.known_degrees
        return degrees.of(nodes)

    @cached_property
    def _all_degrees(self) -> Degrees:
        edges, ends = self.pattern.row_lengths, self.pattern.indptr
        weight, loops = edges.float(), []
        if self.edge_weight is not None:
            rows = torch.arange(self.rows).repeat_interleave(edges)
            weight = torch.zeros(self.rows).index_add_(0, rows, self.edge_weight)
        for piece in torch.arange(self.rows).split(_PIECE):
            rows = piece.repeat_interleave(edges[piece])
            first = int(piece[0])
            columns = self.pattern.indices[int(ends[first]) : int(ends[first + len(piece)])]
            loops.append(rows[columns == rows])
        bare = None
        if any(map(len, loops)):
            looped = torch.cat(loops)
            bare = torch.ones(self.rows).index_add_(0, looped, -torch.ones(len(looped)))
        return Degrees(edges, weight, bare)


def sampled_graph_of(
    data: Any,
    store: Rows | None = None,
    data_dir: str | None = None,
    structure: StoredPattern | None = None,
) -> SampledGraph:
    """Read a loader's data; the arguments are those of `NeighborLoader`."""
    graph = _read(data, data_dir)
    if structure is not None:
        if not isinstance(structure, StoredPattern):
            raise InputError(f"structure must be a DiskPattern, got {type(structure).__name__}")
        graph = on_disk(graph, structure)
    if store is not None:
        if not isinstance(store, Rows):
            raise InputError(f"store must be Rows, got {type(store).__name__}")
        if store.rows != graph.rows:
            raise InputError(f"store has {store.rows} rows, the graph {graph.rows} vertices")
        graph = replace(graph, x=store)
    return graph


def on_disk(graph: SampledGraph, structure: StoredPattern) -> SampledGraph:
    """The same graph with its pattern on a disk; edges may be no more than a pattern."""
    if structure.shape != graph.pattern.shape or structure.nnz != graph.pattern.nnz:
        raise InputError(
            f"structure has {structure.shape[0]} rows of {structure.nnz} entries, "
            f"{graph.name} {graph.rows} of {graph.pattern.nnz}"
        )
    if graph.edges:
        names = ", ".join(graph.edges)
        raise InputError(f"{graph.name}: edges on a disk have no {names}")
    return replace(graph, pattern=structure)


def _read(data: Any, data_dir: str | None) -> SampledGraph:
    if isinstance(data, SampledGraph):
        return data
    if isinstance(data, DistGraph):
        return _of_dist_graph(data)
    x = None
    if isinstance(data, tuple) and len(data) == 2:
        data, x = data
    kind = kind_of(data)
    if kind == "pyg":
        return _of_pyg(data)
    if kind in ("nothing", "block"):
        raise InputError(f"batches are drawn from a graph on one process, not from {kind}")
    beside = {name: None for name in ("x", "y", *MASKS)} | {"x": x}
    opened = open_data(data, beside, "graph", data_dir)
    attributes = dict(opened.attributes)
    graph = sampled_graph(opened.source.graph(), attributes.pop("x", None))
    return replace(graph, vertices=graph.vertices | attributes)


def sampled_graph(graph: Graph, x: Tensor | FeatureStore = None) -> SampledGraph:
    """A graph of our own record, with its own features or others."""
    tables = {name: getattr(graph, name) for name in ("y", *MASKS)}
    x = graph.x if x is None else x
    return _of_tables(graph.name, graph.adjacency, x, tables, graph.vertex_ids)


def _of_dist_graph(graph: DistGraph) -> SampledGraph:
    if graph.comm.size > 1:
        raise InputError(f"batches of one process, but this graph is on {graph.comm.size} ranks")
    share = graph.share_of_edges
    if share.adjacency is None:
        raise InputError(f"{graph.meta.name}: mini-batches need the adjacency")
    tables = {"y": graph.y, **{name: getattr(graph, name) for name in MASKS}, **graph.attributes}
    tables = {name: None if table is None else table.cpu() for name, table in tables.items()}
    x = None if graph.x is None else graph.x.to("cpu")
    read = _of_tables(graph.meta.name, share.adjacency, x, tables, graph.vertex_ids)
    return replace(read, edges=read.edges | share.edge_attributes, numbers_edges=False)


def _of_tables(
    name: str,
    A: CSR,
    x: Tensor | FeatureStore,
    tables: Mapping[str, Tensor | None],
    vertex_ids: Tensor | None,
) -> SampledGraph:
    vertices = {name: table for name, table in tables.items() if table is not None}
    return SampledGraph(
        name=name,
        pattern=A.pattern,
        x=_features(x, vertices),
        vertices=vertices,
        edges={} if A.values is None else {"edge_weight": A.values},
        vertex_ids=vertex_ids,
    )


def _of_pyg(data: Any) -> SampledGraph:
    """A PyG ``Data``: every edge of its list is a nonzero, repeated ones as well."""
    data = with_edge_index(data)
    index = getattr(data, "edge_index", None)
    if index is None:
        raise InputError("this Data has no edge_index, no adj_t; heterogeneous data are not read")
    if not isinstance(index, Tensor):
        got = type(index).__name__
        raise InputError(f"edge_index must be a tensor of integers [2, edges], got {got}")
    n = int(data.num_nodes)
    index = index.detach().cpu()
    if index.dim() != 2 or index.shape[0] != 2 or not is_integer(index):
        raise InputError(f"edge_index must be integers [2, edges], got {described(index)}")
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < n:
        raise InputError(f"edge_index runs from {index.min()} to {index.max()}, of {n} vertices")
    source, target = index.long()
    order = torch.from_numpy(np.lexsort((source.numpy(), target.numpy())))
    indptr = offsets_of(torch.bincount(target, minlength=n))
    vertices, edges, others = _attributes(data, n, len(source))
    in_order = bool((order[1:] > order[:-1]).all())
    return SampledGraph(
        name="data",
        pattern=Pattern.trusted(indptr, source[order].to(index_dtype(n)), (n, n)),
        x=_features(vertices.pop("x", None), vertices),
        vertices=vertices,
        edges=edges,
        others=others,
        edge_ids=None if in_order else order,
        numbered=True,
    )


def _attributes(
    data: Any, n: int, edges: int
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """Attributes of a ``Data`` of each vertex, of each edge, and of neither, as PyG tells them."""
    of_vertices: dict[str, Tensor] = {}
    of_edges: dict[str, Tensor] = {}
    others: dict[str, Any] = {}
    for name, value in data.to_dict().items():
        if value is None or name in _STRUCTURE:
            continue
        is_array = isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
        table = torch.from_numpy(value) if is_array else value
        length = None
        if isinstance(table, Tensor):
            if table.requires_grad:
                raise InputError(
                    f"{name} requires a gradient, batches are copies: give {name}.detach()"
                )
            table = table.cpu()
            length = table.shape[_dimension(name, table)] if table.dim() else None
        if name in _OF_VERTICES and length != n:
            raise InputError(f"{name} must be [{n}, …], a row a vertex, got {described(value)}")
        if name in _OF_EDGES and length != edges:
            raise InputError(f"{name} must be [{edges}, …], a row an edge, got {described(value)}")
        if length == edges and (length != n or "edge" in name):
            of_edges[name] = table
        elif length == n:
            of_vertices[name] = table
        else:
            others[name] = value
            continue
        if table.layout != torch.strided:
            raise InputError(f"{name} is sparse ({table.layout}): give {name}.to_dense()")
    weight = of_edges.get("edge_weight")
    if weight is not None and weight.numel() != edges:
        raise InputError(f"edge_weight must be [{edges}], a number an edge: {described(weight)}")
    return of_vertices, of_edges, others


def entries_of(name: str, table: Tensor, ids: Tensor) -> Tensor:
    """Entries of some vertices or edges in an attribute of a graph, by PyG's rule of names."""
    return table[..., ids] if _dimension(name, table) else table[ids]


def _dimension(name: str, table: Tensor) -> int:
    """The dimension that runs over vertices or edges, as ``Data.__cat_dim__`` says."""
    return -1 if ("index" in name or name == "face") and table.dim() > 1 else 0


def tensor_of(values: Any, right: str) -> Tensor:
    """A user's argument as a tensor in memory; else an InputError that says what would be right."""
    try:
        return torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{right}, got a {type(values).__name__}") from None


def is_integer(tensor: Tensor) -> bool:
    """True if entries are integers; truth values are none."""
    fractions = tensor.is_floating_point() or tensor.is_complex()
    return not fractions and tensor.dtype != torch.bool


def _features(x: Tensor | FeatureStore, vertices: dict[str, Tensor]) -> FeatureStore:
    """A table of features; a tensor that is no table is one more attribute of the vertices."""
    if isinstance(x, Tensor) and x.dim() != 2:
        vertices["x"] = x
        return None
    return MemoryRows(x) if isinstance(x, Tensor) else x


def input_nodes_of(
    graph: Any, input_nodes: Any, *, repeated: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The vertices that seeds are taken of, int64 [inputs], and their ``batch.input_id``."""
    nodes, n = input_nodes, graph.rows
    right = f"a mask must be bool [{n}]"
    if isinstance(nodes, str):
        if nodes not in graph.vertices:
            names = ", ".join(graph.vertices) or "none"
            raise InputError(f"input_nodes {nodes}: {graph.name} has no such mask; it has {names}")
        nodes = graph.vertices[nodes]
        if nodes.dtype != torch.bool:
            raise InputError(f"input_nodes {input_nodes}: {right}, got {described(nodes)}")
    if nodes is None:
        return torch.arange(n), None
    nodes = tensor_of(nodes, "input_nodes must be integers [k] or a mask")
    if nodes.dtype == torch.bool:
        if nodes.shape != (n,):
            raise InputError(f"input_nodes: {right}, got {list(nodes.shape)}")
        nodes = nodes.nonzero()[:, 0]
        return nodes, nodes
    if nodes.dtype == torch.uint8 and nodes.shape == (n,):
        give = "give mask.bool(), or vertices as int64"
        raise InputError(f"input_nodes: uint8 [{n}] may be a mask or vertices: {give}")
    if nodes.dim() != 1 or (not is_integer(nodes) and len(nodes)):
        raise InputError(f"input_nodes must be integers [k], got {nodes.dtype} {list(nodes.shape)}")
    nodes = nodes.to(torch.int64, copy=True)
    low, high = (int(nodes.min()), int(nodes.max())) if len(nodes) else (0, 0)
    if len(nodes) and not 0 <= low <= high < n:
        raise InputError(f"input_nodes run from {low} to {high}, {graph.name} has 0 to {n - 1}")
    if not repeated and len(nodes.unique()) < len(nodes):
        raise InputError("input_nodes: a vertex is there twice")
    return nodes, None
