"""A graph in training: rows for each layer of a model, and the whole graph for evaluation.

Training needs fewer rows than evaluation: the receptive field of the labelled vertices. It may need
other ones too: those of a recomputed halo, or of the subgraph of the training vertices alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data.structure import slice_rows, stack_rows
from spgnn.exchange import Plan, build, layered, swap_rows
from spgnn.exchange.layer_plans import Layered
from spgnn.exchange.needs import swap_counts
from spgnn.graph.distgraph import DistGraph
from spgnn.graph.features import Features, Propagated
from spgnn.graph.protocol import LayerGraph, Matrices, Normalisation
from spgnn.sparse import CSR, take_rows
from spgnn.spmm import DistMatrix

COLUMNS_AT_ONCE = 32  # of features, when those of the recomputed halo are fetched


@dataclass(frozen=True, eq=False)
class TrainingGraph:
    """A graph, and what the layers of a model work on in an epoch of training on it."""

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
        X = self.X
        if isinstance(X, CSR):
            first = int(X.indptr[X.shape[0] - self.halo_rows])
            return sum(t[first:].nbytes for t in (X.indices, X.values) if t is not None)
        tensors = [X.AX_local, X.X_local] if isinstance(X, Propagated) else [X]
        return sum(self.halo_rows * X.shape[1] * X.element_size() for X in tensors if X is not None)


def layer_plans(
    graph: DistGraph,
    normalisation: Normalisation,
    *,
    layers: int,
    labelled: Tensor | None,
    recompute_halo: bool,
    propagated: bool,
) -> Layered | None:
    """Plans for layers that do with less than the whole matrix, or with more. Collective."""
    plain = graph.comm.size == 1 or graph.algorithm.named.layers is None
    if labelled is None and not recompute_halo and plain:
        return None
    rows = graph.normalised_rows(normalisation)
    scheme = layered(
        graph.algorithm,
        rows.block,
        graph.layout,
        graph.comm.rank,
        layers=layers,
        labelled=None if labelled is None else labelled.nonzero()[:, 0],
        recompute_halo=recompute_halo,
        propagated=propagated,
        column_scale=rows.column_scale,
        edge_labels=rows.edge_labels,
    )
    return build(scheme, graph.mesh)


def training_on(
    graph: DistGraph, A: DistMatrix, X: Features, plans: Layered | None
) -> TrainingGraph:
    """Training on a graph, as plans for its layers ask for it. Collective."""
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
    halo = plans.first[len(first) :]  # others' vertices, rising
    halo_ids = ids[:0] if fetch is None else _fetched(ids, fetch, comm)

    def is_own(vertices: Tensor) -> Tensor:
        return (vertices >= begin) & (vertices < begin + own)

    def ids_of(vertices: Tensor) -> Tensor:
        inner = is_own(vertices)
        own_ids = ids[(vertices[inner] - begin).to(device)]
        if inner.all():
            return own_ids
        return torch.cat((own_ids, halo_ids[torch.searchsorted(halo, vertices[~inner]).to(device)]))

    layers = list[LayerGraph]()  # all matrices share their buffers: one product runs at a time
    for number, layer in enumerate(plans.layers):
        if layer is not None:
            matrix = A.another(layer.plan.to(device).ready())
            places, outputs = layer.row_columns, layer.columns
            if places is not None:
                places, outputs = places.to(device), outputs[places]
            # Norms count own rows, which come first.
            counted = int(is_own(outputs).sum())
            layers.append(LayerGraph(matrix, ids_of(layer.columns), places, counted))
        elif number or not propagated:
            layers.append(LayerGraph(A, ids))
        else:
            mine = ids_of(plans.first)
            # Norms ask for all ranks where there is no matrix to ask.
            layers.append(LayerGraph(None, mine, own_rows=len(mine) - halo_rows, comm=comm))
    chosen = _each(partial(_rows_of, rows=first), X)
    if fetch is not None:
        chosen = _each(partial(_with_halo, fetch=fetch, comm=comm), chosen, X)
        if len(first) == own:
            # Rows that share their memory with all of them.
            first_rows = slice(0, own)
            X = _each(
                lambda t: slice_rows(t, first_rows) if isinstance(t, CSR) else t[first_rows], chosen
            )
    rows = plans.rows.to(device)
    return TrainingGraph(graph, A, X, graph, layers, chosen, rows, first, halo_rows)


def _each(function: Callable[..., Any], X: Features, *others: Features) -> Any:
    """A function of dense or sparse features; of propagated ones, of A·X and of X."""
    if not isinstance(X, Propagated):
        return function(X, *others)
    others_AX = [other.AX_local for other in others if isinstance(other, Propagated)]
    others_X = [other.X_local for other in others if isinstance(other, Propagated)]
    X_local = None if X.X_local is None else function(X.X_local, *others_X)
    return Propagated(function(X.AX_local, *others_AX), X_local)


def _rows_of(X: Tensor | CSR, rows: Tensor) -> Tensor | CSR:
    """Some rows, rising; X itself if these are all."""
    if len(rows) == X.shape[0]:
        return X
    return take_rows(X, rows) if isinstance(X, CSR) else X[rows]


def _with_halo(
    chosen: Tensor | CSR, source: Tensor | CSR, fetch: Plan, comm: Communicator
) -> Tensor | CSR:
    """Rows of this rank, then those of its recomputed halo or clones. Collective."""
    if isinstance(chosen, CSR):
        assert isinstance(source, CSR)
        return stack_rows([chosen, _fetched_sparse(source, fetch, comm)])
    assert isinstance(source, Tensor)
    whole = chosen.new_empty(len(chosen) + fetch.volume.receive, chosen.shape[1])
    whole[: len(chosen)] = chosen
    for first in range(0, chosen.shape[1], COLUMNS_AT_ONCE):
        piece = slice(first, first + COLUMNS_AT_ONCE)
        whole[len(chosen) :, piece] = _fetched(source[:, piece], fetch, comm)
    return whole


def _fetched_sparse(X: CSR, fetch: Plan, comm: Communicator) -> CSR:
    """Sparse rows of others [received, features]. Collective."""
    (hop,) = fetch.hops
    sent, counts = take_rows(X, hop.send.indices.long().to(X.indices.device)), hop.counts
    ends = np.cumsum(np.append(0, counts.send))
    per_peer = np.diff(sent.indptr.cpu().numpy()[ends])
    (entries,) = swap_counts(comm, per_peer)
    lengths = swap_rows(comm, sent.row_lengths.contiguous(), counts)
    indices = swap_rows(comm, sent.indices.contiguous(), entries)
    values = None if sent.values is None else swap_rows(comm, sent.values, entries)
    indptr = torch.cat((lengths.new_zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    return CSR.of(indptr, indices, (len(lengths), X.shape[1]), values)


def _fetched(rows: Tensor, fetch: Plan, comm: Communicator) -> Tensor:
    """The recomputed halo's rows, of a tensor of own rows [own rows, …]. Collective."""
    (hop,) = fetch.hops
    send = hop.send.indices.to(rows.device)
    return swap_rows(comm, rows[send].contiguous(), hop.counts)
