"""DistGraph: what one rank holds of a graph, and what it takes to work on the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data.distribute import RankShare, induced
from spgnn.data.graph import MASKS
from spgnn.data.source import GraphMeta
from spgnn.data.splits import Pairs
from spgnn.errors import InputError
from spgnn.exchange import Algorithm, Codec
from spgnn.graph.codecs import GraphCodecs
from spgnn.graph.dist_vertices import DistVertices, Named
from spgnn.graph.distributed import DistributedGraph
from spgnn.graph.edges import Edges, checked_pairs, edges_of_pattern, own_pairs, scattered_edges
from spgnn.graph.matrices import GraphMatrices, NormalisedRows, edges_of_rows, with_each_edge
from spgnn.graph.protocol import Graph, LocalEdges, Normalisation
from spgnn.graph.tracked import tracked
from spgnn.layout import Int64Array, RowLayout
from spgnn.registry import GRAPH_METHODS
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix
from spgnn.torch_internals import on_cpu

FloatsOrIntegers = TypeVar("FloatsOrIntegers", Tensor, Tensor | CSR)


class DistGraph(Named, DistributedGraph, DistVertices, Graph):
    """One rank's vertices of a graph that is distributed over all ranks.

    Made by :func:`spgnn.distribute`. Row i of everything here is the vertex that stood at
    ``vertex_ids[i]`` in the source.

    Attributes
    ----------
    x : Tensor [own rows, …] of the dtype it was given in, or CSR, or None
    y : Tensor [own rows, …] of the dtype it was given in, or None
    train_mask, val_mask, test_mask : Tensor bool [own rows] or [own rows, splits], or None
    vertex_ids : Tensor int64 [own rows]
        Where these vertices stood in the source.
    attributes : dict of Tensor [own rows, …]
        Whatever else the source has a row of for each vertex; ``graph.pos`` is
        ``graph.attributes["pos"]``, unless a graph has something else of that name.
    version : int
        How often it was updated.
    """

    @on_cpu
    def __init__(
        self,
        share: RankShare,
        comm: Communicator,
        algorithm: Algorithm,
        *,
        products: Algorithm | None = None,
        report: dict[str, Any] | None = None,
        plan: dict[str, Any] | None = None,
        edges: Edges | None = None,
        attributes: dict[str, Tensor] | None = None,
        shared: dict[str, Any] | None = None,
        pairs: dict[str, Edges] | None = None,
        left_out: dict[str, str] | None = None,
        repeated: bool = False,
        codecs: GraphCodecs | None = None,
        links: Sequence[Pairs] = (),
        path: str | None = None,
    ) -> None:
        self.links = links
        self._share = share
        # The edges one by one, in rows of the whole graph, where the adjacency is not all.
        self.given_edges = edges
        self.comm: Communicator = comm
        self.algorithm, self._products = algorithm, products
        self._codecs = GraphCodecs(Codec(), comm, 0) if codecs is None else codecs
        self._matrices = GraphMatrices(
            share,
            comm,
            algorithm,
            products,
            repeated=edges if repeated else None,
            codecs=self._codecs,
        )
        self.mesh = self._matrices.mesh
        self.partition_report = report
        self.plan = plan
        data = share.data
        self.x: Tensor | CSR | None = data.x
        self.y: Tensor | None = data.y
        self.attributes = dict(attributes or {})
        self._shared, self._left_out = shared or {}, left_out or {}
        self._pairs, self._pairs_here = pairs or {}, dict[str, Edges]()
        self.vertex_ids: Tensor = share.vertex_ids
        self.train_mask, self.val_mask = data.train_mask, data.val_mask
        self.test_mask = data.test_mask
        self.version = 0
        self._path = path
        self._adjacency: Callable[[], CSR] | None = None  # where it has changed
        self.device = torch.device("cpu")
        # Of floating features and weights, if one is asked for.
        self._dtype: torch.dtype | None = None
        self.to(comm.device)

    def __repr__(self) -> str:
        where = f"rank {self.comm.rank} of {self.comm.size}"
        return f"DistGraph({self.meta.name}: {self.own_rows} of {self.num_nodes} vertices, {where})"

    def __getattr__(self, name: str) -> Any:
        """Attributes of vertices, of edges (collective when first used) and of the whole graph."""
        if "_pairs_here" in self.__dict__:  # and so is all that is looked at
            for values in (self.attributes, self._shared):
                if name in values:
                    return values[name]
            if self.given_edges is not None and name in self.given_edges.attributes:
                return self.edge_attributes[name]
            for pairs, one in self._pairs.items():
                if name == pairs or name in one.attributes:
                    own = self._own_pairs(pairs)
                    return own.index if name == pairs else own.attributes[name]
            if name in self._left_out:
                raise AttributeError(
                    f"{name} of the source, {self._left_out[name]}, is not on ranks: it has no row "
                    "for each vertex or each edge"
                )
        raise AttributeError(f"'DistGraph' object has no attribute '{name}'")

    @cached_property
    def vertex_names(self) -> npt.NDArray[np.str_] | None:
        """Ids of own vertices, where the source's are strings. Collective when first used."""
        names: npt.NDArray[np.str_] | None
        names = GRAPH_METHODS.need("vertex_names", "graph.vertex_names", "io")(self, self._path)
        return names

    def keys(self) -> list[str]:
        """Names of what the data says of vertices, edges and the whole graph."""
        fixed = [key for key in ("x", "y", *MASKS) if getattr(self, key) is not None]
        if self.given_edges is None:
            of_edges = ["edge_weight"] * self.meta.weighted
            of_edges += ["edge_attr"] * (self._share.edge_attr is not None)
        else:
            of_edges = list(self.given_edges.attributes)
        pairs = [key for name, one in self._pairs.items() for key in (name, *one.attributes)]
        every = (*fixed, "edge_index", *of_edges, *self.attributes, *self._shared, *pairs)
        return list(dict.fromkeys(every))

    def _value(self, name: str) -> Any:
        for values in (self.attributes, self._shared):
            if name in values:
                return values[name]
        edges = {} if self.given_edges is None else self.given_edges.attributes
        if name in edges and name != "edge_weight":  # which has the graph's dtype
            return self.edge_attributes[name]
        return getattr(self, name)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self()

    def __len__(self) -> int:
        return len(self.keys())

    @on_cpu
    def _own_pairs(self, name: str) -> Edges:
        """Pairs of own targets. Collective when first used."""
        if name not in self._pairs_here:
            self._pairs_here[name] = own_pairs(self._pairs[name], self, self._codecs)
        return self._pairs_here[name]

    @on_cpu
    def pairs(self, edge_label_index: Any = None, edge_label: Any = None) -> Any:
        """Own share of some pairs of vertices, to be scored by their embeddings. Collective.

        ``src, dst = graph.pairs(index)`` and ``(z[src] * z[dst]).sum(-1)`` are scores of the pairs
        whose target this rank has, of own rows z of embeddings: rows of sources are fetched where
        they are looked up, and their gradients go back. A mean loss of torch.nn.functional of what
        comes of these rows is over the pairs of all ranks (as of the outputs of a model that was
        given to the graph); `all_gather` has all scores. ``graph.edge_label_index`` and
        ``graph.edge_label`` are the share of those that a ``Data`` has.

        Parameters
        ----------
        edge_label_index : integers [2, k]
            Sources and targets, vertices of the whole graph. Rank 0's count; others may pass the
            same, or nothing.
        edge_label : Tensor [k, …], optional

        Returns
        -------
        index : Tensor int64 [2, own pairs]
            Of each target in the order that was given.
        edge_label : Tensor [own pairs, …]
            If labels are given.

        Raises
        ------
        InputError
            On all ranks, if there is no such vertex, or not a label for each pair.
        """
        listed = self.comm.on_rank_zero(
            lambda: checked_pairs(edge_label_index, edge_label, self.num_nodes)
        )
        edges = scattered_edges(listed, self.vertex_ids, self.layout, self.comm)
        own = own_pairs(edges, self, self._codecs)
        labels = own.attributes.get("edge_label")
        return own.index if labels is None else (own.index, labels)

    @property
    def data_name(self) -> str:
        """The name of the data."""
        return self.meta.name

    def model_inputs(self, takes_graph: bool) -> tuple[Any, Any]:
        """Features, and the graph or its ``edge_index``."""
        return self.x, self if takes_graph else self.edge_index

    def labelled_vertices(self, name: str | None) -> DistGraph:
        """The graph itself, which has one vertex type."""
        if name is not None:
            raise InputError(f"target={name!r} is for graphs of several vertex types")
        return self

    def _coded_matrix(self, name: str) -> DistMatrix:
        return self._matrices.coded(name)

    @property
    def num_node_features(self) -> int:
        """Width of x, as PyG calls it."""
        return self.num_features

    @property
    def num_edge_features(self) -> int:
        """Width of edge_attr, 0 without. Collective when first used."""
        attr = self.edge_attr
        return 0 if attr is None else 1 if attr.dim() == 1 else int(attr.shape[-1])

    def is_directed(self) -> bool:
        """True if some edge has no reverse of the same weight."""
        return self.meta.directed

    def is_undirected(self) -> bool:
        """True if every edge has its reverse."""
        return not self.meta.directed

    @property
    def meta(self) -> GraphMeta:
        """Sizes of the whole graph."""
        return self._share.meta

    @property
    def share(self) -> RankShare:
        """The rank's share of the data, in memory of the CPU."""
        self._settle()
        return self._share

    @property
    def share_of_edges(self) -> RankShare:
        """The share with a nonzero for each edge, repeated ones too, and what is known of them."""
        share, edges = self.share, self.given_edges
        if edges is None:
            attributes = {} if share.edge_attr is None else {"edge_attr": share.edge_attr}
            return replace(share, edge_attributes=attributes)
        if self.has_repeated_edges and share.adjacency is not None:
            share = with_each_edge(share, edges, self.layout.range(self.comm.rank)[0])
        edges = edges.to(torch.device("cpu"))
        order = torch.from_numpy(np.lexsort(edges.index.numpy()))
        return replace(share, edge_attributes={n: t[order] for n, t in edges.attributes.items()})

    @property
    def layout(self) -> RowLayout:
        """The layout of rows over ranks."""
        return self._share.layout

    @property
    def num_nodes(self) -> int:
        """Vertices of the whole graph."""
        return self.meta.vertices

    @property
    def num_edges(self) -> int:
        """Edges of the whole graph, repeated ones as well; an undirected edge counts twice."""
        return self.meta.edges

    @property
    def has_repeated_edges(self) -> bool:
        """True if it was made of a graph with several edges between the same two vertices."""
        return self._matrices.repeated is not None

    @property
    def num_features(self) -> int:
        """Width of x, 0 without."""
        return self.meta.features

    @property
    def num_classes(self) -> int:
        """Largest class + 1 over the whole graph, 0 without labels."""
        return self.meta.classes

    @on_cpu
    def matrix(self, normalisation: Normalisation = "none") -> DistMatrix:
        """The adjacency as a distributed matrix; ``A @ H`` is differentiable. Collective.

        It is built when it is first asked for, and kept.

        Parameters
        ----------
        normalisation : {"sym", "row", "none", "loops", "plain", "improved", "mean"}
            D^-1/2 (A + I) D^-1/2; D^-1 A, the mean of the neighbours; A; A + I; D^-1/2 A D^-1/2;
            the first with A + 2 I; D^-1 (A + I). Row = destination.

        Raises
        ------
        InputError
            If ranks ask for different ones, or there is no such thing.
        """
        self._settle()
        return self._matrix("get", normalisation)

    def _matrix(self, method: str, kind: Normalisation) -> DistMatrix:
        if torch.compiler.is_compiling():
            self._matrices.build_untraced(method, kind)
        return getattr(self._matrices, method)(kind)  # type: ignore[no-any-return]

    @on_cpu
    def halo_matrix(self, normalisation: Normalisation = "none") -> DistMatrix:
        """The same for halos: rows travel whole, by 1D where the scheme's do not. Collective."""
        self._settle()
        return self._matrix("with_halo", normalisation)

    @on_cpu
    def attention_matrix(self, normalisation: Normalisation = "none") -> DistMatrix:
        """The same for attention, of the scheme if that knows attention. Collective."""
        self._settle()
        return self._matrix("attended", normalisation)

    @on_cpu
    def normalised_rows(self, normalisation: Normalisation) -> NormalisedRows:
        """Own rows of the adjacency, normalised: what a matrix is built from. Collective."""
        self._settle()
        return self._matrices.rows(normalisation)

    @on_cpu
    def subgraph(self, keep: Tensor) -> DistGraph:
        """The vertices of a mask, bool [own rows], where they are, and edges between. Collective.

        Without features.
        """
        self._settle()
        share = replace(self._share, data=replace(self._share.data, x=None))
        some, repeated = induced(share, keep.cpu(), self.comm), self._matrices.repeated
        edges = None
        if repeated is not None:
            share = with_each_edge(share, repeated, self.layout.range(self.comm.rank)[0])
            each = induced(share, keep.cpu(), self.comm)
            some, edges = replace(some, meta=each.meta), edges_of_rows(each, self.comm.rank)
        return self.of_share(some, edges, repeated=repeated is not None)

    def of_share(
        self,
        share: RankShare,
        edges: Edges | None,
        rows: Mapping[str, Any] = MappingProxyType({}),
        comm: Communicator | None = None,
        *,
        repeated: bool = False,
    ) -> DistGraph:
        """A graph like this of another share, with x and attributes of its vertices. Collective."""
        some = DistGraph(
            share,
            comm or self.comm,
            Algorithm() if comm else self.algorithm,
            products=None if comm else self._products,
            edges=edges,
            attributes={name: rows[name] for name in self.attributes if name in rows},
            shared=dict(self._shared),
            repeated=repeated,
        )
        some.x = rows.get("x")
        if self._dtype is not None:
            some.to(self._dtype)
        return some.to(self.device)

    @on_cpu
    def list_edges(self) -> None:
        """List edges one by one where features of them stand beside the adjacency. Collective."""
        if self._share.edge_attr is not None:
            edges, own = self._edges.to(torch.device("cpu")), self.layout.range(self.comm.rank)
            numbers = self._received(torch.arange(*own, device=self.device)).cpu()
            index = torch.stack((numbers[edges.index[0]], edges.index[1] + own[0]))
            self.given_edges = replace(edges, index=index)
            self._share = replace(self._share, edge_attr=None)

    @on_cpu
    def update(
        self,
        add_edges: Any = None,
        drop_edges: Any = None,
        *,
        add_nodes: Any = None,
        **attributes: Any,
    ) -> int:
        """Change edges and rows, in time proportional to the change, and add vertices. Collective.

        Vertices are called by their ids in the source. Each rank gives any changes, or none; they
        go to the owners of their vertices. Of an undirected edge, give both directions. If any
        change is refused, nothing changes on any rank.

        A matrix that was asked for before stays what it was, and so do gradients through it;
        `matrix`, `halo` and `edge_index` are of the new graph, and made anew when they are next
        asked for. Rows of vertices are overwritten; autograd refuses to go on with a step that
        needs the old ones.

        Parameters
        ----------
        add_edges, drop_edges : integers [2, edges], optional
            Sources and targets.
        add_nodes : integers [k], optional
            New vertices, whose ids go on from the largest one: those of all ranks together have
            each once. A copy of each rank's rows makes room for them. Their owners are those of
            most of their neighbours, as long as no rank gets 5 % more than its share.
        attributes
            Of vertices, ``x``, ``y``, a mask or whatever else the graph has a row of for each:
            (integers [k], Tensor [k, …]), vertices and their new rows, of the dtype and width of
            the graph's. New vertices need a row of each; only masks are False without.
            Of edges, ``edge_weight``, ``edge_attr`` and so on: [added edges, …].

        Returns
        -------
        int
            The graph's `version` from now on.

        Raises
        ------
        InputError
            On all ranks, if there is no such vertex, an edge that is added is there already, one
            that is dropped is not, something is given twice, or a row of a new vertex is missing;
            if the graph has a codec, repeated edges or a vertex cut, or let go of its adjacency;
            if there are new vertices and the others have names.
        """
        GRAPH_METHODS.need("update", "graph.update", "dynamic")
        updated: int = GRAPH_METHODS["update"](self, add_edges, drop_edges, add_nodes, attributes)
        return updated

    def take_changes(
        self,
        share: RankShare,
        edges: Edges | None,
        adjacency: Callable[[], CSR],
        renumbered: Callable[[Int64Array], Int64Array],
    ) -> None:
        """Take over a new share, edges one by one, the adjacency when it is needed, new rows."""
        if share.layout is not self._share.layout:
            self.vertex_ids = share.vertex_ids.to(self.device)
            self._pairs_here, pairs = {}, self._pairs
            rows = {n: torch.from_numpy(renumbered(e.index.numpy())) for n, e in pairs.items()}
            self._pairs = {name: replace(pairs[name], index=at) for name, at in rows.items()}
        self._share, self.given_edges, self._adjacency = share, edges, adjacency
        for name in ("edge_index", "_edges", "local_edges"):
            self.__dict__.pop(name, None)
        self.version += 1

    def _settle(self) -> None:
        """Bring the adjacency up to date, for matrices of its own."""
        if self._adjacency is not None:
            self._share = replace(self._share, adjacency=self._adjacency())
            self._matrices = self._matrices.of(self._share)
            self._adjacency = None

    @on_cpu
    def release(self) -> None:
        """Let go of the adjacency, once the matrices that are needed are built: it is in them."""
        self._settle()
        self._share = replace(self._share, adjacency=None)
        self._matrices.release()

    @property
    def _has_halo(self) -> bool:
        return self._adjacency is None and "none" in self._matrices

    @property
    def A(self) -> DistMatrix:
        """The adjacency as it is, ``matrix("none")``. Collective when first used."""
        return self.matrix("none")

    @cached_property
    def edge_index(self) -> Tensor:
        """Edges that end at own vertices, int64 [2, local edges]. Collective when first used.

        Row 0 are sources, which number rows of ``halo(H)``; row 1 destinations, which number own
        rows. Sorted by destination; for each of them in the order of the ``Data``, if that is
        sorted by destination or says more of its edges, and else in that of their sources.

        It knows what its numbers are. Rows of own vertices at the sources, ``H[row]``, are those of
        ``halo(H)[row]``, which is fetched there and then; sums at the sources go to their owners.
        So ``model(graph.x, graph.edge_index)`` is exact for whatever looks at a graph in this way
        alone: convolutions of one x, those of several hops, degrees and normalisations. An
        operation that would mean something else on ranks is refused. `local_edge_index` has the
        numbers alone, and on one process these are all there is to know.
        """
        if self.comm.size == 1:
            return self.local_edge_index
        # A copy goes on with the matrices of now: after an update, this is of the graph before.
        return tracked(self.local_edge_index, copy(self))

    @property
    def local_edge_index(self) -> Tensor:
        """The numbers of `edge_index`, as a tensor that knows nothing of ranks."""
        return self._edges.index

    @cached_property
    def _edges(self) -> Edges:
        if self.given_edges is not None:
            edges = self.given_edges.to(self.device)
            return edges.on_halo(self._received, self.layout.range(self.comm.rank))
        own = self.layout.range(self.comm.rank)
        attr = self._share.edge_attr
        return edges_of_pattern(self.halo_matrix(), attr, self.vertex_ids, self._received, own)

    @property
    def edge_attributes(self) -> dict[str, Tensor]:
        """All that is known of these edges by name, [local edges, …] each."""
        return self._edges.attributes

    @property
    def edge_weight(self) -> Tensor | None:
        """Weights of these edges, if it has any, of the dtype and shape they were given in."""
        weight = self.edge_attributes.get("edge_weight")
        return None if weight is None else _cast(weight, self._dtype)

    @property
    def edge_attr(self) -> Tensor | None:
        """Features of these edges, [local edges, …], if the source had any."""
        return self.edge_attributes.get("edge_attr")

    @property
    def edge_type(self) -> Tensor | None:
        """Types of these edges, integers [local edges], if the source had any."""
        return self.edge_attributes.get("edge_type")

    @cached_property
    def local_edges(self) -> LocalEdges:
        """The same edges, and the halo that their sources are rows of. Collective."""
        here, index, weight = copy(self), self.local_edge_index, self.edge_weight
        state = self.edge_attributes | ({} if weight is None else {"edge_weight": weight})
        return LocalEdges(here.halo_matrix, lambda: index, state, here.halo)

    def to(self, target: torch.device | torch.dtype | str) -> DistGraph:
        """Move everything to a device, or to a floating dtype, in place; returns the graph.

        In float64 are then features and weights, and what matrices take: for ``model.double()``.
        """
        self.__dict__.pop("local_edges", None)
        if isinstance(target, torch.dtype):
            if target not in (torch.float32, torch.float64):
                raise InputError(
                    f"a graph is float32 or float64, got {target}; under torch.autocast it sends "
                    "halves"
                )
            self.x = None if self.x is None else _cast(self.x, target)
            self._dtype = target
            self._matrices.to(target)
            return self
        self.device = device = torch.device(target)
        for name in ("x", "y", *MASKS, "vertex_ids"):
            tensor = getattr(self, name)
            setattr(self, name, None if tensor is None else tensor.to(device))
        self.attributes = {name: tensor.to(device) for name, tensor in self.attributes.items()}
        tensors = {name: t for name, t in self._shared.items() if isinstance(t, Tensor)}
        self._shared |= {name: t.to(device) for name, t in tensors.items()}
        self.__dict__.pop("edge_index", None)
        self._pairs_here = {}
        if "_edges" in self.__dict__:
            self.__dict__["_edges"] = self._edges.to(device)
        self._matrices.to(device)
        return self


def _cast(values: FloatsOrIntegers, dtype: torch.dtype | None) -> FloatsOrIntegers:
    """Floating numbers in a dtype, if there is one; integers as they are."""
    integers = isinstance(values, Tensor) and not values.is_floating_point()
    return values if dtype is None or integers else values.to(dtype)
