"""A graph on one process that batches are drawn from: structure, and tables of its entries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.data.adapters import with_edge_index
from spgnn.data.graph import MASKS, Graph
from spgnn.errors import InputError
from spgnn.frontend.sources import kind_of, opener
from spgnn.graph.block import Degrees
from spgnn.graph.distgraph import DistGraph
from spgnn.loader.disk_pattern import DiskPattern
from spgnn.loader.rows import MemoryRows, Rows
from spgnn.pattern import Pattern, described, index_dtype
from spgnn.sparse import CSR

FeatureStore = Rows | CSR | None
_PIECE = 1 << 16  # rows that are looked at together
_OF_VERTICES = ("x", "y", *MASKS)
_OF_EDGES = ("edge_weight", "edge_attr", "edge_type")
_STRUCTURE = ("edge_index", "adj", "adj_t", "num_nodes")


@dataclass(frozen=True, eq=False, kw_only=True)
class Record:
    """Tables that a batch can look up of its graph.

    Attributes
    ----------
    vertices : dict of Tensor [n, …]
        Of each vertex: y, masks; dtype and shape are the caller's (`entries_of`).
    edges : dict of Tensor [edges, …]
        Of each edge, in the order of the graph as it was given.
    others : dict
        Values of a PyG ``Data`` that belong to no vertex and no edge.
    edge_ids : Tensor int64 [nnz], optional
        Which of the edges, in that order, each nonzero is; ``None``: they are in order.
    vertex_ids : Tensor int64 [n], optional
        Original ids; ``None``: the numbers themselves.
    known_degrees : Degrees, optional
        In the whole graph, of all vertices.
    """

    vertices: dict[str, Tensor]
    edges: dict[str, Tensor]
    others: dict[str, Any] = field(default_factory=dict)
    edge_ids: Tensor | None = None
    vertex_ids: Tensor | None = None
    known_degrees: Degrees | None = None

    def ids_of(self, nodes: Tensor) -> Tensor:
        """Original ids of some vertices."""
        return nodes if self.vertex_ids is None else self.vertex_ids[nodes]

    def degrees(self, nodes: Tensor) -> Degrees:
        """Of some vertices in the whole graph."""
        assert self.known_degrees is not None
        return self.known_degrees.of(nodes)

    def excerpt(self, nodes: Tensor, edges: Tensor, *, degrees: bool) -> Record:
        """The same of some vertices and edges alone, which are numbered from 0 in it."""
        return Record(
            vertices={name: entries_of(name, t, nodes) for name, t in self.vertices.items()},
            edges={name: entries_of(name, t, edges) for name, t in self.edges.items()},
            others=self.others,
            vertex_ids=self.ids_of(nodes),
            known_degrees=self.degrees(nodes) if degrees else None,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Record):
    """A graph that batches are drawn from.

    Attributes
    ----------
    name : str
    pattern : Pattern or DiskPattern [n, n]
        Row i lists whom vertex i aggregates from, columns rising.
    x : Rows, CSR or None
        Features of the vertices.
    numbered : bool
        Whether batches number their edges by default: the graph came as a list of them.
    """

    name: str
    pattern: Pattern | DiskPattern
    x: FeatureStore
    numbered: bool = False

    @property
    def structure(self) -> Pattern:
        """The pattern, for what needs it in memory; an InputError if it lies on a disk."""
        if isinstance(self.pattern, DiskPattern):
            raise InputError(f"{self.name}: its structure lies on a disk; this needs it in memory")
        return self.pattern

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
        return self._all_degrees.of(nodes)

    @cached_property
    def _all_degrees(self) -> Degrees:
        edges = self.pattern.row_lengths
        weight, loops = edges.float(), torch.zeros(0, dtype=torch.int64)
        if self.edge_weight is not None:
            rows = torch.arange(self.rows).repeat_interleave(edges)
            weight = torch.zeros(self.rows).index_add_(0, rows, self.edge_weight)
        ends = self.pattern.indptr
        for first in range(0, self.rows, _PIECE):
            last = min(first + _PIECE, self.rows)
            rows = torch.arange(first, last).repeat_interleave(edges[first:last])
            columns = self.pattern.indices[int(ends[first]) : int(ends[last])]
            loops = torch.cat((loops, rows[columns == rows]))
        bare = None
        if len(loops):
            bare = torch.ones(self.rows)
            bare[loops] = 0
        return Degrees(edges, weight, bare)


def source_of(
    data: Any,
    store: Rows | None = None,
    data_dir: str | None = None,
    structure: DiskPattern | None = None,
) -> Source:
    """Read a loader's data.

    Parameters
    ----------
    data
        A PyG ``Data``, a `spgnn.data.Graph`, a `DistGraph` of one rank, a `Source`, a SciPy matrix
        or a pair of one and features, or the name or path of a data set.
    store : Rows [n, f], optional
        Features, instead of the data's own.
    data_dir : str, optional
        Where named sets are looked for.
    structure : DiskPattern [n, n], optional
        The pattern, instead of the data's own.

    Raises
    ------
    InputError
        If it is none of these, or they do not fit.
    """
    source = _read(data, data_dir)
    if structure is not None:
        if not isinstance(structure, DiskPattern):
            raise InputError(f"structure must be a DiskPattern, got {type(structure).__name__}")
        source = on_disk(source, structure)
    if store is not None:
        if not isinstance(store, Rows):
            raise InputError(f"store must be Rows, got {type(store).__name__}")
        if store.rows != source.rows:
            raise InputError(f"store has {store.rows} rows, the graph {source.rows} vertices")
        source = replace(source, x=store)
    return source


def on_disk(source: Source, structure: DiskPattern) -> Source:
    """The same graph with its pattern on a disk; edges may be no more than a pattern."""
    theirs = len(source.pattern.indptr) - 1, int(source.pattern.indptr[-1])
    if structure.shape != source.pattern.shape or structure.nnz != theirs[1]:
        raise InputError(
            f"structure has {structure.shape[0]} rows of {structure.nnz} entries, "
            f"{source.name} {theirs[0]} of {theirs[1]}"
        )
    if source.edges:
        known = ", ".join(source.edges)
        raise InputError(f"{source.name}: edges on a disk have no {known}")
    return replace(source, pattern=structure)


def _read(data: Any, data_dir: str | None) -> Source:
    if isinstance(data, Source):
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
    opened = opener(data, beside, "graph", data_dir)()
    known = dict(opened.attributes)
    source = source_of_graph(opened.source.graph(), known.pop("x", None))
    return replace(source, vertices=source.vertices | known)


def source_of_graph(graph: Graph, x: Tensor | FeatureStore = None) -> Source:
    """Of our own record, with its own features or others."""
    A = graph.adjacency
    tables = {name: getattr(graph, name) for name in ("y", *MASKS)}
    vertices = {name: table for name, table in tables.items() if table is not None}
    return Source(
        name=graph.name,
        pattern=A.pattern,
        x=_features(graph.x if x is None else x, vertices),
        vertices=vertices,
        edges={} if A.values is None else {"edge_weight": A.values},
        vertex_ids=graph.vertex_ids,
    )


def _of_dist_graph(graph: DistGraph) -> Source:
    if graph.comm.size > 1:
        raise InputError(
            f"this draws from a graph on one process, and this one is on {graph.comm.size} ranks"
        )
    A = graph.A.local_matrix().to("cpu")
    tables = {"y": graph.y, **{name: getattr(graph, name) for name in MASKS}, **graph.attributes}
    vertices = {name: table.cpu() for name, table in tables.items() if table is not None}
    others = ", ".join(sorted(set(graph.edge_attributes) - {"edge_weight"}))
    if others:
        raise InputError(
            f"edges of this DistGraph have {others}: give NeighborLoader the Data itself"
        )
    return Source(
        name=graph.meta.name,
        pattern=A.pattern,
        x=_features(None if graph.x is None else graph.x.to("cpu"), vertices),
        vertices=vertices,
        edges={} if A.values is None else {"edge_weight": A.values},
        vertex_ids=graph.vertex_ids,
    )


def _of_pyg(data: Any) -> Source:
    """Of a PyG ``Data``: every edge of its list is a nonzero, repeated ones as well."""
    data = with_edge_index(data)
    index = getattr(data, "edge_index", None)
    if index is None:
        raise InputError(
            "this Data has no edge_index and no adj_t; heterogeneous data are not read"
        )
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
    indptr = torch.zeros(n + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(target, minlength=n), 0, out=indptr[1:])
    vertices, edges, others = _attributes(data, n, len(source))
    in_order = bool((order[1:] > order[:-1]).all())
    return Source(
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
                    f"{name} requires a gradient, which batches, being copies, cannot lead to it: "
                    f"give {name}.detach()"
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
        raise InputError(
            f"edge_weight must be [{edges}], a number an edge, got {described(weight)}"
        )
    return of_vertices, of_edges, others


def entries_of(name: str, table: Tensor, ids: Tensor) -> Tensor:
    """Entries of some vertices or edges in an attribute of a graph, by PyG's rule of names."""
    return table[..., ids] if _dimension(name, table) else table[ids]


def _dimension(name: str, table: Tensor) -> int:
    """The dimension that runs over vertices or edges, as ``Data.__cat_dim__`` says."""
    return -1 if ("index" in name or name == "face") and table.dim() > 1 else 0


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
    source: Source, input_nodes: Any, *, repeated: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The vertices that seeds are taken of, int64 [inputs], and their ``batch.input_id``.

    Those of a mask are called by their vertices; others (``None``) by their places in the list.
    `repeated`: one may be there twice.
    """
    nodes = input_nodes
    if isinstance(nodes, str):
        if nodes not in source.vertices:
            known = ", ".join(source.vertices) or "none"
            raise InputError(f"input_nodes {nodes}: {source.name} has no such mask; it has {known}")
        nodes = source.vertices[nodes]
        if nodes.dtype != torch.bool:
            raise InputError(
                f"input_nodes {input_nodes}: a mask must be bool [{source.rows}], "
                f"got {described(nodes)}"
            )
    if nodes is None:
        return torch.arange(source.rows), None
    try:
        nodes = torch.as_tensor(nodes).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        got = type(nodes).__name__
        raise InputError(f"input_nodes must be integers [k] or a mask, got a {got}") from None
    if nodes.dtype == torch.bool:
        if nodes.shape != (source.rows,):
            raise InputError(
                f"input_nodes: a mask must be bool [{source.rows}], got {list(nodes.shape)}"
            )
        nodes = nodes.nonzero()[:, 0]
        return nodes, nodes
    if nodes.dtype == torch.uint8 and nodes.shape == (source.rows,):
        raise InputError(
            f"input_nodes: uint8 [{source.rows}] may be a mask or vertices: "
            "give mask.bool(), or vertices as int64"
        )
    if nodes.dim() != 1 or (not is_integer(nodes) and len(nodes)):
        raise InputError(f"input_nodes must be integers [k], got {nodes.dtype} {list(nodes.shape)}")
    nodes = nodes.to(torch.int64, copy=True)
    if len(nodes) and not 0 <= int(nodes.min()) <= int(nodes.max()) < source.rows:
        raise InputError(
            f"input_nodes run from {int(nodes.min())} to {int(nodes.max())}, "
            f"{source.name} has vertices 0 to {source.rows - 1}"
        )
    if not repeated and len(nodes.unique()) < len(nodes):
        raise InputError("input_nodes: a vertex is there twice")
    return nodes, None
