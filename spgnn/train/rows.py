"""Rows of a training epoch: all own ones, or the receptive field, and a recomputed halo.

Evaluation always looks at all own rows, with the whole matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.exchange import Layered, Plan, build, layered, swap_rows
from spgnn.graph.features import Features, Propagated
from spgnn.graph.protocol import LayerGraph, Matrices
from spgnn.sparse import CSR, take_rows
from spgnn.spmm import DistMatrix

COLUMNS_AT_ONCE = 32  # of features, when those of the recomputed halo are fetched


@dataclass(frozen=True, eq=False)
class Inputs:
    """Own vertices whose features the first layer takes.

    Attributes
    ----------
    vertex_ids : Tensor int64 [rows]
        Original ids.
    y : Tensor [rows] or [rows, columns]
    mask : Tensor bool [rows]
        Training vertices.
    """

    vertex_ids: Tensor
    y: Tensor
    mask: Tensor


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Inputs of the model in training.

    Attributes
    ----------
    graph : DistMatrix, or a LayerGraph for each layer
    X : Tensor or CSR [columns of the first layer, features], or Propagated
    y : Tensor [rows of the last layer] or [rows of the last layer, columns]
    mask : Tensor bool [rows of the last layer]
        Training vertices.
    vertex_ids : Tensor int64 [columns of the graph, where it is one matrix]
        Original ids, by which features are dropped.
    row_ids : Tensor int64 [rows of the last layer]
        Original ids.
    inputs : Inputs
    ghosts : int
        Vertices of other ranks whose first hidden rows this one makes.
    """

    graph: Matrices
    X: Features
    y: Tensor
    mask: Tensor
    vertex_ids: Tensor
    row_ids: Tensor
    inputs: Inputs
    ghosts: int = 0

    @property
    def ghost_bytes(self) -> int:
        """Memory of the recomputed halo's features."""
        if not isinstance(self.X, Propagated):
            return 0
        kept = [X for X in (self.X.AX_local, self.X.X_local) if X is not None]
        return sum(self.ghosts * X.shape[1] * X.element_size() for X in kept)


def layer_plans(
    config: TrainConfig,
    block: CSR,
    A: DistMatrix,
    *,
    column_scale: Tensor | None,
    edge_labels: Tensor | None,
    wanted: Tensor,
    propagated: bool,
) -> Layered | None:
    """The plans of the layers, or nothing if all work on the whole matrix. Collective.

    Parameters
    ----------
    config : TrainConfig
    block : CSR [own rows, n]
        What A was built of.
    A : DistMatrix
        The whole matrix.
    column_scale : Tensor [own rows], optional
    edge_labels : Tensor [nnz], optional
    wanted : Tensor int64
        Own rows that the loss looks at.
    propagated : bool
        Whether the first layer is given A·X.
    """
    how = config.algorithm
    # A norm over all vertices needs all of them.
    reach = how.prune and not config.model.takes_all_rows
    if not how.recompute_halo and not reach:
        return None
    scheme = layered(
        how.distribution,
        block,
        A.layout,
        A.mesh.rank,
        layers=config.model.layers,
        wanted=wanted if reach else None,
        ghosts=how.recompute_halo,
        propagated=propagated,
        column_scale=column_scale,
        edge_labels=edge_labels,
    )
    return build(scheme, A.mesh)


def training_rows(
    plans: Layered | None,
    A: DistMatrix,
    X: Features,
    *,
    vertex_ids: Tensor,
    y: Tensor,
    mask: Tensor,
) -> tuple[TrainingRows, Features]:
    """Rows of training, and the features of own rows, whose memory they may share. Collective.

    Parameters
    ----------
    plans : Layered or None
    A : DistMatrix
        The whole matrix, for layers without a plan of their own.
    X : Tensor or CSR [own rows, features], or Propagated
        What evaluation is given; on the matrix's device, as everything here.
    vertex_ids, y, mask : Tensor [own rows]
        Original ids, classes, and whether this is a training vertex.
    """
    own, begin = A.own_rows, A.layout.range(A.mesh.rank)[0]
    propagated = isinstance(X, Propagated)
    if plans is None or _is_whole(plans, propagated):
        inputs = Inputs(vertex_ids, y, mask)
        return TrainingRows(A, X, y, mask, vertex_ids, vertex_ids, inputs), X
    comm, device = A.mesh.everyone, y.device
    ghosts = 0 if plans.ghosts is None else plans.ghosts.volume.receive
    first = (plans.first[: len(plans.first) - ghosts] - begin).to(device)
    rows = plans.rows.to(device)
    ghost_ids = vertex_ids[:0] if plans.ghosts is None else _fetched(vertex_ids, plans.ghosts, comm)

    def ids_of(vertices: Tensor) -> Tensor:
        inner = (vertices >= begin) & (vertices < begin + own)
        own_ids = vertex_ids[(vertices[inner] - begin).to(device)]
        return own_ids if inner.all() else torch.cat((own_ids, ghost_ids))

    graph = _layer_graphs(plans, A, vertex_ids, ids_of, propagated)
    X_train = _rows_of(X, first)
    if plans.ghosts is not None:
        assert isinstance(X, Propagated)
        assert isinstance(X_train, Propagated)
        X_train = _with_ghosts(X_train, X, plans.ghosts, comm)
        if len(first) == own:
            X = Propagated(X_train.AX_local[:own], _first_rows(X_train.X_local, own))
    ids, inputs = vertex_ids, Inputs(vertex_ids[first], y[first], mask[first])
    return TrainingRows(graph, X_train, y[rows], mask[rows], ids, ids[rows], inputs, ghosts), X


def _is_whole(plans: Layered, propagated: bool) -> bool:
    """True if all layers work on the whole matrix, which all ranks agree on.

    A single layer on propagated features multiplies nothing, and may still leave rows out.
    """
    alone = propagated and len(plans.layers) == 1
    return not alone and all(layer is None for layer in plans.layers)


def _layer_graphs(
    plans: Layered,
    A: DistMatrix,
    vertex_ids: Tensor,
    ids_of: Callable[[Tensor], Tensor],
    propagated: bool,
) -> list[LayerGraph]:
    """One for each layer; all matrices share their buffers, since one product runs at a time."""
    found, device = list[LayerGraph](), vertex_ids.device
    for number, layer in enumerate(plans.layers):
        if layer is not None:
            matrix = A.another(layer.plan.to(device).ready())
            targets = None if layer.targets is None else layer.targets.to(device)
            found.append(LayerGraph(matrix, ids_of(layer.columns), targets))
        elif number or not propagated:
            found.append(LayerGraph(A, vertex_ids))
        else:
            ids = ids_of(plans.first)
            ghosts = 0 if plans.ghosts is None else plans.ghosts.volume.receive
            # Norms count own rows, and ask for all ranks where there is no matrix to ask.
            comm = A.mesh.everyone
            found.append(LayerGraph(None, ids, own_rows=len(ids) - ghosts, comm=comm))
    return found


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


def _with_ghosts(inner: Propagated, X: Propagated, fetch: Plan, comm: Communicator) -> Propagated:
    """Rows of this rank, then those of its recomputed halo."""

    def joined(own: Tensor | None, source: Tensor | None) -> Tensor | None:
        if own is None or source is None:
            return None
        rows = len(own) + fetch.volume.receive
        whole = own.new_empty(rows, own.shape[1])
        whole[: len(own)] = own
        for first in range(0, own.shape[1], COLUMNS_AT_ONCE):
            chunk = slice(first, first + COLUMNS_AT_ONCE)
            whole[len(own) :, chunk] = _fetched(source[:, chunk], fetch, comm)
        return whole

    AX_local = joined(inner.AX_local, X.AX_local)
    assert AX_local is not None
    return Propagated(AX_local, joined(inner.X_local, X.X_local))


def _fetched(rows: Tensor, fetch: Plan, comm: Communicator) -> Tensor:
    """The recomputed halo's rows, of a tensor of own rows [own rows, …]. Collective."""
    (hop,) = fetch.hops
    send = hop.send.indices.to(rows.device)
    return swap_rows(comm, rows[send].contiguous(), hop.counts)


def _first_rows(X: Tensor | None, count: int) -> Tensor | None:
    return None if X is None else X[:count]
