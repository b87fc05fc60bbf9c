"""A graph of several vertex types on one rank: types with layouts of their own, and relations.

A relation is a rectangular block, rows are own targets and columns are the vertices of its source
type. Under column covers all relations of a source type share one halo, so a row travels once,
whatever the number of relations and layers that look at it. Under other covers each relation has a
plan of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spgnn.attention import EdgeDropout
from spgnn.comm import Communicator, Mesh
from spgnn.data import add_self_loops, classes_of, degree_scales
from spgnn.errors import InputError, suggestion
from spgnn.exchange import Algorithm, Codec
from spgnn.graph import (
    RECIPES,
    Aggregation,
    Block,
    Degrees,
    DistributedGraph,
    DistVertices,
    Edges,
    Graph,
    GraphCodecs,
    LocalEdges,
    Named,
    Normalisation,
    as_rows,
    block_pattern,
    matrix_of_sources,
    times,
    tracked,
)
from spgnn.kernels import transformed
from spgnn.layout import RowLayout
from spgnn.pattern import Pattern
from spgnn.registry import GRAPH_METHODS
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix
from spgnn.torch_internals import on_cpu

EdgeType = tuple[str, str, str]
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class OwnType:
    """One rank's vertices of one type: their layout, ids, and attributes [own rows, …].

    `names` are the source's ids of them, and on rank 0 `names_of_all` those of all vertices.
    """

    layout: RowLayout
    vertex_ids: Tensor
    attributes: dict[str, Tensor]
    shared: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    names: npt.NDArray[Any] | None = None
    names_of_all: npt.NDArray[Any] | None = None


class _Store(Named):
    """Values of one rank's rows, and what is said of all of them, by name and as attributes."""

    attributes: dict[str, Tensor]
    _shared: Mapping[str, Any] = MappingProxyType({})
    _absent: Mapping[str, str] = MappingProxyType({})  # what the source had besides
    _title: str = ""  # of messages

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "attributes":
            raise AttributeError(name)
        for values in (self.attributes, self._shared):
            if name in values:
                return values[name]
        raise _missing(self, name)

    def keys(self) -> list[str]:
        """Names of its attributes, and of what is said of all its rows."""
        return [*self.attributes, *self._shared]

    def _value(self, name: str) -> Any:
        return self.attributes[name] if name in self.attributes else self._shared[name]


def _missing(store: Any, name: str) -> AttributeError:
    """The refusal of a name that a store has not."""
    reason = f"; their attributes: {', '.join(store.keys()) or 'none'}"
    if name in store._absent:
        reason = f": {store._absent[name]} has no row for each vertex or each edge"
    return AttributeError(f"{store._title} no {name!r}{reason}")


class VertexType(_Store, DistVertices):
    """One rank's vertices of one type: ``graph["paper"]``."""

    def __init__(self, name: str, comm: Communicator, own: OwnType, codecs: GraphCodecs) -> None:
        self.name, self.comm, self.device = name, comm, comm.device
        self._title = f"vertices of type {name!r} have"
        self.attributes = _on(self.device, own.attributes)
        self._shared, self._absent = _on(self.device, own.shared), own.absent
        self.vertex_ids = own.vertex_ids.to(self.device)
        self.vertex_names, self.names_of_all = own.names, own.names_of_all
        self._layout, self._codecs = own.layout, codecs
        self._matrix: DistMatrix | None = None
        # Of rows that are looked up by several relations: how they were, and their halo.
        self._halos: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def __repr__(self) -> str:
        where = f"rank {self.comm.rank} of {self.comm.size}"
        return f"VertexType({self.name}: {self.own_rows} of {self.num_nodes} vertices, {where})"

    @property
    def data_name(self) -> str:
        """The name of the type."""
        return self.name

    @property
    def layout(self) -> RowLayout:
        """The layout of this type's rows over ranks."""
        return self._layout

    @property
    def num_nodes(self) -> int:
        """Vertices of this type in the whole graph."""
        return self._layout.rows

    @property
    def num_features(self) -> int:
        """Width of x, 0 without."""
        return width_of(self.attributes.get("x"))

    @property
    def num_classes(self) -> int:
        """Largest class + 1 over all vertices, 0 without labels. Collective."""
        y = self.attributes.get("y")
        return self.comm.agree(0 if y is None else classes_of(y))

    @property
    def A(self) -> DistMatrix:
        """A row that names every vertex whose row this rank needs: what the halo is of."""
        if self._matrix is None:
            raise InputError(
                'halos, edges one by one and edge_index need whole rows of all sources: algo="1d", '
                'cover="column"'
            )
        return self._matrix

    @property
    def _has_halo(self) -> bool:
        return self._matrix is not None

    def exact(self) -> AbstractContextManager[None]:
        """Everything is exact."""
        return self._codecs.policy.exact()

    def halo(self, H_local: Tensor) -> Tensor:
        """Own rows of H, then the rows of others that some relation starts at. Collective."""
        if self.comm.size == 1 and isinstance(H_local, Tensor) and len(H_local) == self.own_rows:
            return H_local
        if (
            not isinstance(H_local, Tensor)
            or transformed()
            or H_local.is_inference()
            # A parameter may be changed where torch does not see it (``p.data``).
            or (H_local.requires_grad and H_local.is_leaf)
        ):
            return super().halo(H_local)
        if not self._is_at_hand(H_local):
            halo = super().halo(H_local)
            self._halos[H_local] = self._state_of(H_local), halo, halo._version
        result: Tensor = self._halos[H_local][1]
        return result

    def _state_of(self, H_local: Tensor) -> tuple[Any, ...]:
        """Key of a halo besides its rows: where a codec is used, a halo is of one epoch."""
        device = H_local.device.type
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        recorded = H_local.requires_grad and torch.is_grad_enabled()
        epoch = self._codecs.policy.epochs_begun if self._is_lossy(H_local) else None
        return H_local._version, recorded, cast, epoch

    def _is_lossy(self, H_local: Tensor) -> bool:
        codecs = self._codecs
        return not codecs.codec.exact and codecs.policy.approximates(as_rows(H_local))

    def _is_at_hand(self, H_local: Tensor) -> bool:
        """True if the halo of these rows was fetched, and neither has changed since."""
        state = self._halos.get(H_local)
        return (
            state is not None
            and state[0] == self._state_of(H_local)
            and state[1]._version == state[2]
        )

    def is_narrower(self, H_local: Tensor, width: int) -> bool:
        """True if so many columns, computed of H, move fewer bytes than H."""
        training = torch.is_grad_enabled()
        if self.comm.size == 1 or self._is_at_hand(H_local):
            return False
        if training and not H_local.requires_grad and not self._is_lossy(H_local):
            return False
        both_ways = training and H_local.requires_grad
        return width * (1 + training) < H_local.shape[1] * (1 + both_ways)


class _OtherType:
    """Sources whose targets are of another type: the numbers of both have nothing in common."""

    bipartite = True

    def __init__(self, sources: VertexType) -> None:
        self.own_rows, self.halo_rows = sources.own_rows, sources.halo_rows
        self.halo, self.halo_sum = sources.halo, sources.halo_sum
        self.looked_up = sources.looked_up


class _Relation(_Store, Graph):
    """The edges of one relation that end at own vertices, as layers take a graph."""

    edge_type_name: EdgeType
    sources: VertexType
    edge_weight: Tensor | None  # [edges] or [edges, 1]
    _sources_now: Tensor | None = None  # the rows that a layer is given, and those of targets
    _targets_now: Tensor | None = None

    def keys(self) -> list[str]:
        """Names of its attributes, and of what is said of all its edges."""
        return ["edge_index", *super().keys()]

    def _value(self, name: str) -> Any:
        return self.edge_index if name == "edge_index" else super()._value(name)

    def __repr__(self) -> str:
        where = f"rank {self.sources.comm.rank} of {self.sources.comm.size}"
        return f"{type(self).__name__}({' '.join(self.edge_type_name)}; {where})"

    @property
    def _title(self) -> str:  # type: ignore[override]
        return f"{self._name} has"

    @property
    def bipartite(self) -> bool:
        """True if its targets are of another type than its sources."""
        return self.edge_type_name[0] != self.edge_type_name[2]

    def between(self, H: Tensor, targets: Tensor) -> Graph:
        """The graph of a layer that is given these rows of sources, and own rows of targets."""
        if not self.bipartite:
            return self
        relation = copy.copy(self)
        relation._sources_now, relation._targets_now = H, targets
        return relation

    def own(self, H: Any) -> Any:
        """Rows of the targets, of the very rows that the layer was given."""
        if not self.bipartite:
            return super().own(H)
        if H is not self._sources_now or self._targets_now is None:
            raise self._needs_one_type()
        return self._targets_now

    def aggregate(self, request: Aggregation) -> Tensor:
        """As any graph; but between two types, no row is its own neighbour."""
        if self.bipartite and request.self_loop is not None:
            raise self._needs_one_type()
        return super().aggregate(request)

    def _needs_one_type(self) -> InputError:
        return InputError(
            f"this layer takes the rows of targets from those of sources, and {self._name} is "
            "between two types, as SAGEConv and GATConv can be"
        )

    def _edge_dropout(self, dropped: EdgeDropout) -> EdgeDropout:
        """Refuse between two types, whose vertex ids have nothing in common."""
        if self.bipartite:
            raise InputError(f"dropout of edges of {self._name}: its two types share no ids")
        return super()._edge_dropout(dropped)

    def _fused(self, *args: Any) -> Tensor | None:
        return None if self.bipartite else super()._fused(*args)

    @property
    def _name(self) -> str:
        return f"relation {self.edge_type_name}"

    def _check(self, kind: Normalisation, *kinds: str) -> None:
        if kind not in kinds:
            raise InputError(
                f'matrix("{kind}"): {self._name} has no self-loops: take "none" or "row"'
            )


class Relation(_Relation, Block):
    """One rank's edges of one relation: ``graph["author", "writes", "paper"]``."""

    def __init__(
        self, name: EdgeType, edges: Edges, sources: VertexType, targets: VertexType, ids: Tensor
    ) -> None:
        lengths = torch.bincount(edges.index[1], minlength=targets.own_rows)
        indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        self.edge_type_name, self.sources = name, sources
        self.comm, self.attributes = sources.comm, edges.attributes
        super().__init__(
            block_pattern(indptr, edges.index[0], sources.halo_rows),
            ids,
            edge_weight=edges.attributes.get("edge_weight"),
            degrees=None if self.bipartite else self._degrees_of_columns,
            attributes=edges.attributes,
        )
        self.local_edge_index = edges.index

    @cached_property
    def edge_index(self) -> Tensor:
        """Edges that know their sources; plain numbers on one process."""
        if self.sources.comm.size == 1:
            return self.local_edge_index
        halo = _OtherType(self.sources) if self.bipartite else self.sources
        return tracked(self.local_edge_index, halo)

    def operand(self, request: Aggregation) -> tuple[Tensor, bool]:
        """As any block; of own rows, those that are multiplied before they travel. Collective."""
        H, W = request.operand, request.weight
        if isinstance(H, Tensor) and W is not None and len(H) != self.columns:
            return self.sources.halo(times(H, W)), True
        return super().operand(request)

    def _fused(self, request: Aggregation, H: Tensor, W: Tensor, R: Tensor) -> Tensor | None:
        return super()._fused(request, H, W, R) if len(H) == self.columns else None

    def matrix(self, normalisation: Normalisation = "none") -> Any:
        """As :meth:`Block.matrix`; between two types "none" and "row"."""
        if self.bipartite:
            self._check(normalisation, "none", "row")
        elif RECIPES.get(normalisation, (0,))[0] and self._single is not self:
            return self._single.matrix(normalisation)
        return super().matrix(normalisation)

    @cached_property
    def _single(self) -> Relation:
        """The same edges, but of several self-loops of a vertex the last, as in PyG. Collective."""
        index = self.local_edge_index
        target, keep = index[1], torch.ones_like(index[1], dtype=torch.bool)
        (at,) = self._is_loop.nonzero(as_tuple=True)
        keep[at[:-1][target[at[:-1]] == target[at[1:]]]] = False
        if not self.sources.comm.agree(int(not keep.all())):
            return self
        edges = Edges(index[:, keep], {k: rows[keep] for k, rows in self.attributes.items()})
        ends = self.sources, self.sources
        return Relation(self.edge_type_name, edges, *ends, self.vertex_ids)

    # Sums are divided in double precision, and cast to that of what is multiplied.

    @cached_property
    def _values(self) -> Tensor | None:
        weight = self.edge_weight
        return None if weight is None else weight.reshape(-1).double()

    @cached_property
    def _drawn(self) -> Tensor:
        return self.pattern.row_lengths.double()

    def _degrees_of_columns(self) -> Degrees:
        """Degrees of the halo's vertices in this relation. Collective."""
        loops = torch.ones_like(self._row_sums)
        loops[self._row_of_each[self._is_loop]] = 0
        own = torch.stack((self._drawn, self._row_sums, loops), 1)
        with self.sources.exact():
            edges, weight, bare = self.sources.halo(own).unbind(1)
        return Degrees(edges.long(), weight.contiguous(), bare.contiguous())


class CoveredRelation(_Relation):
    """One rank's edges of one relation with a plan of its own, of any algorithm."""

    def __init__(
        self,
        name: EdgeType,
        edges: Edges,
        sources: VertexType,
        targets: VertexType,
        algorithm: Algorithm,
        mesh: Mesh,
        number: int,
    ) -> None:
        self.edge_type_name, self.sources = name, sources
        self.comm, self.attributes = sources.comm, edges.attributes
        self._targets, self._algorithm, self._mesh, self._number = targets, algorithm, mesh, number
        self.edge_weight = edges.attributes.get("edge_weight")
        self.index = edges.index.cpu().numpy()
        # In double precision until it is known what is multiplied.
        self._dtype = torch.float32
        self._matrices: dict[str, DistMatrix] = {}

    @property
    def pattern(self) -> Pattern:
        """Refused, as `edge_index`: sources are not at hand."""
        return self.sources.A.local_pattern  # which raises

    edge_index = pattern

    @property
    def local_edges(self) -> LocalEdges:
        """Refused as well."""
        _ = self.pattern
        return super().local_edges

    def matrix(self, normalisation: Normalisation = "none") -> DistMatrix:
        """As of any graph; between two types A or D^-1 A. Collective when it is asked for first."""
        if self.bipartite:
            self._check(normalisation, "none", "row")
        name = f"{self.code} {normalisation} {str(self._dtype).removeprefix('torch.')}"
        if name not in self._matrices:
            ids, (loops, scaling) = self._targets.vertex_ids.cpu(), RECIPES[normalisation]
            block = self._rows(single=loops > 0)
            if loops:
                block = add_self_loops(
                    block, self.sources.layout.range(self.sources.comm.rank)[0], loops
                )
            scales = self.sources.comm.on_every_rank(
                lambda: degree_scales(block, scaling, ids, torch.float64)
            )
            of_rows, of_columns = (None if one is None else one.to(self._dtype) for one in scales)
            built = DistMatrix.build(
                block.to(self._dtype).with_scales(of_rows, None),
                self.sources.layout,
                self._mesh,
                row_layout=self._targets.layout,
                algorithm=self._algorithm,
                column_scale=of_columns,
            )
            A = self._matrices[name] = built.to(self.sources.device)
            place = self._number * len(RECIPES) + list(RECIPES).index(normalisation)
            self.sources._codecs.put(A, name, place, self.sources.vertex_ids)
        return self._matrices[name]

    @property
    def code(self) -> str:
        """Its name in states of codecs."""
        return " ".join(self.edge_type_name).replace(".", "#")

    def coded(self, normalisation: Any, dtype: str) -> DistMatrix:
        """The matrix that multiplies operands of a dtype, by its name. Collective."""
        self._dtype = getattr(torch, dtype)
        return self.matrix(normalisation)

    def _rows(self, *, single: bool) -> CSR:
        """Own rows, an entry an edge; of several self-loops of a vertex the last if `single`."""
        source, target = self.index
        order = np.lexsort((source, target))
        if single:
            first = self.sources.layout.range(self.sources.comm.rank)[0]
            loop = np.flatnonzero(source[order] == target[order] + first)
            order = np.delete(order, loop[:-1][np.diff(target[order][loop]) == 0])
        lengths = np.bincount(target[order], minlength=self._targets.own_rows)
        indptr = torch.from_numpy(np.append(0, lengths.cumsum()))
        shape, weight = (self._targets.own_rows, self.sources.num_nodes), self.edge_weight
        columns, values = torch.from_numpy(source[order]), None
        if weight is not None:
            values = weight.reshape(-1).double().cpu()[torch.from_numpy(order)]
        return CSR.of(indptr, columns, shape, values)

    def aggregate(self, request: Aggregation) -> Tensor:
        """As any graph, with a matrix for operands of this dtype. Collective."""
        if request.reduce not in ("sum", "attention") or request.edge is not None:
            raise InputError(
                f"{self._name}: {request.reduce} needs whole rows: 1D and cover=column"
            )
        double = request.dense.dtype == torch.float64
        self._dtype = torch.float64 if double else torch.float32
        return super().aggregate(request)


class HeteroDistGraph(DistributedGraph):
    """One rank's part of a graph of several vertex types, distributed over all ranks.

    Made by :func:`spgnn.distribute` of a PyG ``HeteroData``. ``graph["paper"]`` is a
    :class:`VertexType`, ``graph["author", "writes", "paper"]`` a :class:`Relation`;
    ``graph.x_dict``, ``graph.edge_index_dict`` and any other ``NAME_dict`` are dictionaries of what
    these have, as in PyG. So ``model(graph.x_dict, graph.edge_index_dict)`` is exact for models of
    PyG, and ``layer(graph.x_dict, graph)`` is how layers of spgnn.nn are called. Losses are
    ``graph["paper"].mean(loss, mask)``.

    Attributes
    ----------
    attributes : dict
        What the source says of the whole graph; ``graph.name`` is ``graph.attributes["name"]``.
    covered : bool
        Whether each relation has a plan of its own, and there is no halo.
    num_edges : int
        Of all relations in the whole graph.
    plan : dict or None
        With ``plan="auto"``: the cover and the partition, bytes of an epoch, and those of others.
    """

    version = 0  # how often it was updated
    plan: dict[str, Any] | None = None
    relation_class = Relation  # of its relations without a plan of their own
    only: str | None = None  # the one type whose rows are read, of a chunk
    _title = "the whole HeteroData has"

    @on_cpu
    def __init__(
        self,
        types: Mapping[str, OwnType],
        relations: Mapping[EdgeType, Edges],
        notes: Mapping[Any, tuple[dict[str, Any], dict[str, str]]],
        comm: Communicator,
        algorithm: Algorithm,
        report: dict[str, Any] | None = None,
        codecs: GraphCodecs | None = None,
    ) -> None:
        self.comm, self.algorithm, self.partition_report = comm, algorithm, report
        self.device = comm.device
        self.mesh = Mesh.build(comm, algorithm.axes(comm.size))
        self._codecs = GraphCodecs(Codec(), comm, 0) if codecs is None else codecs
        self.vertices = {
            name: VertexType(name, comm, own, self._codecs) for name, own in types.items()
        }
        self.attributes, self._absent = _on(self.device, notes[None][0]), notes[None][1]
        self.covered = algorithm != Algorithm()
        edges_here = sum(edges.index.shape[1] for edges in relations.values())
        self.num_edges = comm.agree(edges_here, "sum")
        self.relations: dict[EdgeType, Any] = {}
        self._joint: dict[tuple[EdgeType, ...], tuple[Pattern, Tensor, Tensor]] = {}
        if not self.covered:
            none = [np.zeros(0, np.int64)]
            for number, (name, source) in enumerate(self.vertices.items()):
                starts = [edges.index[0].numpy() for r, edges in relations.items() if r[0] == name]
                built = matrix_of_sources(np.concatenate(starts or none), source.layout, comm)
                source._matrix = built.to(self.device)
                self._codecs.put(source.A, name.replace(".", "#"), number, source.vertex_ids)
        for number, (relation, edges) in enumerate(relations.items()):
            source, target = self.vertices[relation[0]], self.vertices[relation[2]]
            if self.covered:
                first = target.layout.range(comm.rank)[0]
                index = torch.stack((edges.index[0], edges.index[1] - first))
                own = Edges(index, edges.attributes).to(self.device)
                self.relations[relation] = CoveredRelation(
                    relation, own, source, target, algorithm, self.mesh, number
                )
            else:
                ranges = (one.layout.range(comm.rank) for one in (source, target))
                (begin, end), (first, _) = ranges
                own = edges.to(self.device).on_halo(source._received, (begin, end), first)
                ids = source.halo(source.vertex_ids)
                self.relations[relation] = self.relation_class(relation, own, source, target, ids)
            shared, absent = notes[relation]
            self.relations[relation]._shared = _on(self.device, shared)
            self.relations[relation]._absent = absent

    def __repr__(self) -> str:
        own = ", ".join(f"{name}: {one.own_rows}" for name, one in self.vertices.items())
        return f"HeteroDistGraph({own}; rank {self.comm.rank} of {self.comm.size})"

    def _coded_matrix(self, name: str) -> DistMatrix | None:
        relation, *kind = name.rsplit(" ", 2)
        of = {one.code: one for one in self.relations.values() if self.covered}.get(relation)
        return None if of is None else of.coded(*kind)

    @on_cpu
    def update(
        self,
        add_edges: Mapping[EdgeType, Any] | None = None,
        drop_edges: Mapping[EdgeType, Any] | None = None,
        *,
        add_nodes: Mapping[str, Any] | None = None,
        **attributes: Mapping[Any, Any],
    ) -> int:
        """Change edges and rows, and add vertices; halos and plans are made anew. Collective.

        As :meth:`spgnn.DistGraph.update`, but everything is a dictionary by relation or vertex
        type: ``add_edges={("author", "writes", "paper"): index}``, ``add_nodes={"paper": ids}``,
        ``x={"paper": (ids, rows)}``, ``edge_attr={("author", "writes", "paper"): rows}``. An edge
        that is dropped was there once. ``graph["paper"]`` and relations are others afterwards. New
        vertices go to the rank that has the fewest of their type.

        Returns
        -------
        int
            The graph's `version` from now on.

        Raises
        ------
        InputError
            On all ranks, before anything has changed.
        """
        GRAPH_METHODS.need("update_types", "graph.update", "dynamic")
        changes = {"add_edges": add_edges, "drop_edges": drop_edges, "add_nodes": add_nodes}
        updated: int = GRAPH_METHODS["update_types"](self, **changes, attributes=attributes)
        return updated

    def edges_of_all(self) -> dict[EdgeType, Edges]:
        """The edges of each relation that end at own vertices, in rows of all ranks. Collective."""
        result = {}
        for name, one in self.relations.items():
            index = torch.as_tensor(one.index if self.covered else one.local_edge_index)
            source, target = (self.vertices[end].layout.range(self.comm.rank) for end in name[::2])
            if not self.covered:
                numbers = one.sources._received(torch.arange(*source, device=self.device))
                index = torch.stack((numbers[index[0]], index[1]))
            index = torch.stack((index[0], index[1] + target[0]))
            result[name] = Edges(index, one.attributes).to(torch.device("cpu"))
        return result

    def take_changes(
        self,
        rows: Mapping[str, tuple[RowLayout, Tensor, dict[str, Tensor]]],
        relations: Mapping[EdgeType, Edges],
    ) -> None:
        """Become a graph of other edges and vertices: layout, ids and attributes. Collective."""
        stores: dict[Any, Any] = {None: self, **self.relations}
        stores[None]._shared = self.attributes
        notes = {name: (dict(one._shared), dict(one._absent)) for name, one in stores.items()}
        own = {}
        for name, one in self.vertices.items():
            names = one.vertex_names, one.names_of_all
            own[name] = OwnType(*rows[name], dict(one._shared), dict(one._absent), *names)
        again, version = self.partition_report, self.version
        self.__init__(own, relations, notes, self.comm, self.algorithm, again, self._codecs)  # type: ignore[misc]
        self.version = version + 1

    def rows(self, name: str, H_local: Tensor, widths: Sequence[int] = ()) -> Tensor:
        """The rows of a source type that its relations read: their halo, or own ones. Collective.

        Own rows where each relation fetches what it needs: by a plan of its own; or, if all can
        multiply first, to rows of these widths, which are narrower together.
        """
        source: VertexType = self[name]
        if self.covered or (widths and source.is_narrower(H_local, sum(widths))):
            return H_local
        return source.halo(H_local)

    def own(self, name: str, rows: Tensor) -> Tensor:
        """Rows of a type that a layer makes, of those that it is given."""
        return rows

    def joint(self, names: tuple[EdgeType, ...]) -> tuple[Pattern, Tensor, Tensor]:
        """The edges of several relations of one target type, row by row.

        A pattern [own targets, 1] without columns; where each edge stands among those of one
        relation after another, int64 [edges]; and the reverse.
        """
        if names not in self._joint:
            index = torch.cat([self.relation(name).local_edge_index[1] for name in names])
            targets = self.vertices[names[0][2]].own_rows
            order = index.argsort(stable=True)
            place = torch.empty_like(order)
            place[order] = torch.arange(len(order), device=order.device)
            lengths = torch.bincount(index, minlength=targets)
            indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
            columns = torch.zeros(len(order), dtype=torch.int32, device=order.device)
            self._joint[names] = Pattern.trusted(indptr, columns, (targets, 1)), order, place
        return self._joint[names]

    @property
    def node_types(self) -> list[str]:
        """Names of the vertex types."""
        return list(self.vertices)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Relations: source type, name, target type."""
        return list(self.relations)

    @property
    def vertex_names(self) -> dict[str, npt.NDArray[Any]]:
        """Ids of own vertices by type, strings or integers, of types of a directory of tables."""
        named = {name: one.vertex_names for name, one in self.vertices.items()}
        return {name: ids for name, ids in named.items() if ids is not None}

    def metadata(self) -> tuple[list[str], list[EdgeType]]:
        """Both, as ``HeteroData.metadata()``."""
        return self.node_types, self.edge_types

    @property
    def num_nodes(self) -> int:
        """Vertices of all types in the whole graph."""
        return sum(one.num_nodes for one in self.vertices.values())

    @property
    def own_rows(self) -> int:
        """Vertices of all types of this rank."""
        return sum(one.own_rows for one in self.vertices.values())

    @property
    def row_counts(self) -> frozenset[int]:
        """The numbers of rows that tensors of own vertices may have."""
        return frozenset(one.own_rows for one in self.vertices.values())

    def __getitem__(self, key: str | EdgeType) -> Any:
        """A vertex type, or a relation."""
        if isinstance(key, str):
            if key in self.attributes and key not in self.vertices:
                return self.attributes[key]
            return _of(self.vertices, key, "vertex type", key)
        return self.relation(tuple(key))  # type: ignore[arg-type]

    def relation(self, name: EdgeType) -> Any:
        """A relation by its three names; an InputError if there is none."""
        return _of(self.relations, name, "relation", " ".join(map(str, name)))

    def labelled_vertices(self, name: str | None) -> VertexType:
        """The vertex type of a name; without one, the only type that has labels y."""
        if name is not None:
            return _of(self.vertices, name, "vertex type", name)
        labelled = [one for one in self.vertices.values() if "y" in one.attributes]
        if len(labelled) != 1:
            names = ", ".join(one.name for one in labelled) or "none"
            raise InputError(f"vertex types with labels y are {names}: target= names one")
        return labelled[0]

    def model_inputs(self, takes_graph: bool) -> tuple[Any, Any]:
        """Features by type, and the graph or its ``edge_index_dict``."""
        return self.x_dict, self if takes_graph else self.edge_index_dict

    def collect(self, name: str) -> dict[Any, Tensor]:
        """An attribute of all types or relations that have it, as ``HeteroData.collect``.

        Raises
        ------
        AttributeError
            If none has it.
        """
        if name == "edge_index":
            return {key: one.edge_index for key, one in self.relations.items()}
        stores = [*self.vertices.items(), *self.relations.items()]
        values = {key: one[name] for key, one in stores if name in one}
        if name == "vertex_ids" or (name == "num_nodes" and not values):
            values = {key: getattr(one, name) for key, one in self.vertices.items()}
        if not values and name not in ("x", "edge_attr", "edge_weight"):
            raise AttributeError(f"no vertex type and no relation has an attribute {name!r}")
        return values

    def __getattr__(self, name: str) -> Any:
        """``x_dict`` is ``collect("x")``, and so on; what is said of the whole graph."""
        if name.startswith("_"):
            raise AttributeError(f"'HeteroDistGraph' object has no attribute '{name}'")
        attributes = vars(self).get("attributes", {})
        if name in attributes:
            return attributes[name]
        if name.endswith("_dict"):
            return self.collect(name.removesuffix("_dict"))
        raise _missing(self, name)

    def keys(self) -> list[str]:
        """Names of what the whole graph and any type or relation has."""
        stores = [*self.vertices.values(), *self.relations.values()]
        return list(dict.fromkeys([*self.attributes, *(key for one in stores for key in one)]))

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    @property
    def num_node_features(self) -> dict[str, int]:
        """Width of x of each vertex type, 0 without."""
        return {name: one.num_features for name, one in self.vertices.items()}

    num_features = num_node_features


def width_of(rows: Tensor | None) -> int:
    """Columns of rows of features; 0 of none."""
    return 0 if rows is None else 1 if rows.dim() == 1 else int(rows.shape[-1])


def _on(device: torch.device, values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with tensors on a device."""
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()}


def _of(stores: Mapping[Any, Value], key: Any, what: str, shown: str) -> Value:
    if key not in stores:
        names = [one if isinstance(one, str) else " ".join(one) for one in stores]
        there = (", ".join(names) or "none") + suggestion(shown, names)
        raise InputError(f"no {what} {shown!r} in the graph; it has {there}")
    return stores[key]
