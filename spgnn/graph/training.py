"""A graph in training: rows for each layer of a model, and the whole graph for evaluation.

Training needs fewer rows than evaluation: the receptive field of the labelled vertices. It may need
other ones too: those of a recomputed halo, or of the subgraph of the training vertices alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from spgnn.comm import (
    Communicator,
)
from spgnn.exchange import Plan, build, layered, swap_rows
from spgnn.exchange.layers import Layered
from spgnn.graph.distgraph import DistGraph
from spgnn.graph.features import Features, Propagated
from spgnn.graph.protocol import LayerGraph, Matrices, Normalisation
from spgnn.sparse import CSR, take_rows
from spgnn.spmm import DistMatrix

COLUMNS_AT_ONCE = 32  # of features, when those of the recomputed halo are fetched


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """A graph, and what the layers of a model work on in an epoch of training on it.

    Attributes
    ----------
    whole : DistGraph
        What is evaluated, with labels and masks.
    A : DistMatrix
        Its matrix, as the model normalises it.
    features : Tensor or CSR [own rows, features], or Propagated
        Its features, as the first layer takes them. May share memory with X.
    graph : DistGraph
        What is trained on: the same, or the subgraph of the training vertices.
    layers : DistMatrix, or a LayerGraph for each layer
    X : Tensor or CSR [columns of the first layer, features], or Propagated
    rows : Tensor int64 or slice
        Rows of `graph` that the last layer makes.
    first : Tensor int64 or slice
        Rows of `graph` whose features the first layer takes; those of a recomputed halo follow.
    halo_rows : int
        Vertices of other ranks whose first hidden rows this one makes.
    with_edges : sequence of LayerGraph, optional
        Of `whole`, where layers take features of edges.
    """

    whole: DistGraph
    A: DistMatrix
    features: Features
    graph: DistGraph
    layers: Matrices
    X: Features
    rows: Tensor | slice = field(default_factory=lambda: slice(None))
    first: Tensor | slice = field(default_factory=lambda: slice(None))
    halo_rows: int = 0
    with_edges: Sequence[LayerGraph] | None = None

    @property
    def evaluated(self) -> Matrices:
        """The graphs of a model's layers in evaluation."""
        return self.A if self.with_edges is None else self.with_edges

    @cached_property
    def y(self) -> Tensor:
        """Labels of the rows that the last layer makes, [rows] or [rows, columns]."""
        assert self.graph.y is not None
        return self.graph.y[self.rows]

    @cached_property
    def mask(self) -> Tensor:
        """Training vertices among them, bool [rows]."""
        assert self.graph.train_mask is not None
        return self.graph.train_mask[self.rows]

    @property
    def halo_bytes(self) -> int:
        """Memory of the recomputed halo's features."""
        if not isinstance(self.X, Propagated):
            return 0
        kept = [X for X in (self.X.AX_local, self.X.X_local) if X is not None]
        return sum(self.halo_rows * X.shape[1] * X.element_size() for X in kept)


def layer_plans(
    graph: DistGraph,
    normalisation: Normalisation,
    *,
    layers: int,
    wanted: Tensor | None,
    recompute_halo: bool,
    propagated: bool,
) -> Layered | None:
    """Plans for layers that do with less than the whole matrix, or with more. Collective.

    ``None`` if all layers work on the whole matrix. `wanted`, bool [own rows], are the vertices
    that the loss looks at (``None``: layers make all rows); `propagated`: the first layer is given
    A·X.
    """
    if wanted is None and not recompute_halo:
        return None
    rows = graph.normalised_rows(normalisation)
    scheme = layered(
        graph.algorithm,
        rows.block,
        graph.layout,
        graph.comm.rank,
        layers=layers,
        wanted=None if wanted is None else wanted.nonzero()[:, 0],
        recompute_halo=recompute_halo,
        propagated=propagated,
        column_scale=rows.column_scale,
        edge_labels=rows.edge_labels,
    )
    return build(scheme, graph.mesh)


def training_on(
    graph: DistGraph, A: DistMatrix, X: Features, plans: Layered | None
) -> TrainingGraph:
    """Training on a graph, as plans for its layers ask for it. Collective.

    Layers without a plan of their own work on A. X are the graph's features as the first layer
    takes them, on the matrix's device.
    """
    ids = graph.vertex_ids
    own, begin = A.own_rows, graph.layout.range(graph.comm.rank)[0]
    propagated = isinstance(X, Propagated)
    # A single layer on propagated features multiplies nothing, and may still leave rows out.
    alone = propagated and plans is not None and len(plans.layers) == 1
    if plans is None or (not alone and all(layer is None for layer in plans.layers)):
        return TrainingGraph(graph, A, X, graph, A, X)
    comm, device, fetch = A.mesh.everyone, ids.device, plans.halo
    halo_rows = 0 if fetch is None else fetch.volume.receive
    first = (plans.first[: len(plans.first) - halo_rows] - begin).to(device)
    halo_ids = ids[:0] if fetch is None else _fetched(ids, fetch, comm)

    def ids_of(vertices: Tensor) -> Tensor:
        inner = (vertices >= begin) & (vertices < begin + own)
        own_ids = ids[(vertices[inner] - begin).to(device)]
        return own_ids if inner.all() else torch.cat((own_ids, halo_ids))

    layers = list[LayerGraph]()  # all matrices share their buffers: one product runs at a time
    for number, layer in enumerate(plans.layers):
        if layer is not None:
            matrix = A.another(layer.plan.to(device).ready())
            targets = None if layer.targets is None else layer.targets.to(device)
            layers.append(LayerGraph(matrix, ids_of(layer.columns), targets))
        elif number or not propagated:
            layers.append(LayerGraph(A, ids))
        else:
            mine = ids_of(plans.first)
            # Norms count own rows, and ask for all ranks where there is no matrix to ask.
            layers.append(LayerGraph(None, mine, own_rows=len(mine) - halo_rows, comm=comm))
    chosen = _rows_of(X, first)
    if fetch is not None:
        assert isinstance(X, Propagated)
        assert isinstance(chosen, Propagated)
        AX_local = _with_halo(chosen.AX_local, X.AX_local, fetch, comm)
        X_local = None
        if chosen.X_local is not None and X.X_local is not None:
            X_local = _with_halo(chosen.X_local, X.X_local, fetch, comm)
        chosen = Propagated(AX_local, X_local)
        if len(first) == own:
            X = Propagated(AX_local[:own], None if X_local is None else X_local[:own])
    rows = plans.rows.to(device)
    return TrainingGraph(graph, A, X, graph, layers, chosen, rows, first, halo_rows)


def _rows_of(X: Features, rows: Tensor) -> Features:
    """Some rows, rising; X itself if these are all."""
    match X:
        case Propagated():
            if len(rows) == len(X.AX_local):
                return X
            return Propagated(X.AX_local[rows], None if X.X_local is None else X.X_local[rows])
        case CSR():
            return X if len(rows) == X.shape[0] else take_rows(X, rows)
        case Tensor():
            return X if len(rows) == len(X) else X[rows]


def _with_halo(chosen: Tensor, source: Tensor, fetch: Plan, comm: Communicator) -> Tensor:
    """Rows of this rank, then those of its recomputed halo. Collective."""
    whole = chosen.new_empty(len(chosen) + fetch.volume.receive, chosen.shape[1])
    whole[: len(chosen)] = chosen
    for first in range(0, chosen.shape[1], COLUMNS_AT_ONCE):
        piece = slice(first, first + COLUMNS_AT_ONCE)
        whole[len(chosen) :, piece] = _fetched(source[:, piece], fetch, comm)
    return whole


def _fetched(rows: Tensor, fetch: Plan, comm: Communicator) -> Tensor:
    """The recomputed halo's rows, of a tensor of own rows [own rows, …]. Collective."""
    (hop,) = fetch.hops
    send = hop.send.indices.to(rows.device)
    return swap_rows(comm, rows[send].contiguous(), hop.counts)
