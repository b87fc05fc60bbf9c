"""Vertices and links for training, validation and testing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data.distribute import RankShare, of_columns, renumbered
from spgnn.data.graph import Graph, labelled, vertex_ids_of
from spgnn.errors import InputError
from spgnn.exchange.needs import request_bytes, swap_rows
from spgnn.exchange.plan import Carried
from spgnn.hashing import uniform
from spgnn.layout import EVERYONE, RowLayout
from spgnn.pattern import Selection
from spgnn.sparse import CSR

TRAIN_SHARE, VAL_SHARE = 0.6, 0.2


def seeded_split(
    vertices: int | Tensor, y: Tensor | None, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Masks that give about 60 % of the labelled vertices to training, 20 % to validation.

    The mask of a vertex is a pure function of (seed, vertex id), so that any rank can make it for
    its own vertices and no split depends on the number of ranks or the partition. `vertices` is
    their number, or the original ids of some, int64 [rows]. Those without a known label are in none
    of the three.

    Returns
    -------
    train_mask, val_mask, test_mask : Tensor bool [rows]
    """
    ids = np.arange(vertices) if isinstance(vertices, int) else vertices.numpy()
    draw = torch.from_numpy(uniform(ids, seed, "split"))
    has_label = torch.ones(len(ids), dtype=torch.bool) if y is None else labelled(y)
    train = draw < TRAIN_SHARE
    val = ~train & (draw < TRAIN_SHARE + VAL_SHARE)
    return train & has_label, val & has_label, ~train & ~val & has_label


def with_split(graph: Graph, seed: int = 0) -> Graph:
    """The graph itself if it has a training mask, otherwise with a seeded split."""
    if graph.train_mask is not None:
        return graph
    train, val, test = seeded_split(vertex_ids_of(graph), graph.y, seed)
    return replace(graph, train_mask=train, val_mask=val, test_mask=test)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Links that end at vertices of this rank.

    Attributes
    ----------
    targets : Tensor int64 [pairs]
        Own rows.
    sources : Tensor int64 [pairs]
        Rows of all ranks, as the layout numbers them.
    target_ids, source_ids : Tensor int64 [pairs]
        Original ids.
    """

    targets: Tensor
    sources: Tensor
    target_ids: Tensor
    source_ids: Tensor

    def drawn(self, vertices: int, count: int, seed: int, purpose: str) -> Tensor:
        """For each pair other sources, which are not its target; original ids [pairs, count].

        A function of (seed, purpose, pair, number): the same at any number of ranks. Some of them
        may be links, as they are in any graph that is not known.
        """
        others = max(vertices - 1, 1)
        targets, sources = self.target_ids.numpy(), self.source_ids.numpy()
        draws = uniform(targets, seed, purpose, count, second=sources)
        ids = torch.from_numpy((draws * others).astype(np.int64))
        return ids + (ids >= self.target_ids[:, None])


def divided(
    targets: Tensor, sources: Tensor, shares: tuple[float, float], seed: int, *, directed: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Nonzeros of each split, and those that stay, bool [nnz]; a hash of (seed, ids of both ends).

    `shares` of the links are for validation and for testing.
    """
    low, high = torch.minimum(targets, sources).numpy(), torch.maximum(targets, sources).numpy()
    draw = torch.from_numpy(uniform(low, seed, "link", second=high))
    loop = targets == sources
    validating = (draw < shares[0]) & ~loop
    testing = (draw < sum(shares)) & ~validating & ~loop
    counts, stays = ~loop, ~(validating | testing)
    if not directed:
        upwards = torch.from_numpy(uniform(low, seed, "direction", second=high)) < 0.5
        counts &= (targets > sources) == upwards
    return (stays & counts, validating & counts, testing & counts), stays


def held_out(
    share: RankShare, shares: tuple[float, float], seed: int, comm: Communicator
) -> tuple[RankShare, list[Pairs]]:
    """Take shares of the links out of a graph, for validation and for testing. Collective."""
    A = share.adjacency
    assert A is not None
    ids, directed = share.vertex_ids, share.meta.directed
    sources, _ = of_columns(ids, A, share.layout, comm)
    left, pairs, stays = hold_out(A, ids, sources, shares, seed, directed=directed)
    labels = None if share.edge_labels is None else share.edge_labels[stays]
    attr = None if share.edge_attr is None else share.edge_attr[stays]
    meta = replace(share.meta, edges=comm.agree(left.nnz, "sum"))
    return replace(share, meta=meta, adjacency=left, edge_labels=labels, edge_attr=attr), pairs


def held_out_of(graph: Graph, shares: tuple[float, float], seed: int) -> tuple[Graph, list[Pairs]]:
    """A whole graph without the links that :func:`held_out` takes out, and the same pairs."""
    A, ids = graph.adjacency, vertex_ids_of(graph)
    sources = ids[A.indices.long()]
    left, pairs, stays = hold_out(A, ids, sources, shares, seed, directed=graph.directed)
    attr = None if graph.edge_attr is None else graph.edge_attr[stays]
    return replace(graph, adjacency=left, edge_attr=attr), pairs


def hold_out(
    A: CSR, ids: Tensor, sources: Tensor, shares: tuple[float, float], seed: int, *, directed: bool
) -> tuple[CSR, list[Pairs], Tensor]:
    """The rest of own rows, the pairs of each split, and whether each nonzero stays."""
    own = torch.arange(A.shape[0]).repeat_interleave(A.row_lengths)
    targets = ids[own]
    splits, stays = divided(targets, sources, shares, seed, directed=directed)
    pairs = [
        Pairs(own[here], A.indices[here].long(), targets[here], sources[here]) for here in splits
    ]
    return renumbered(A, stays, A.indices, A.shape[1]), pairs, stays


class Directory:
    """The row of each vertex, by its original id; every rank keeps an even part. Collective."""

    def __init__(self, vertex_ids: Tensor, layout: RowLayout, comm: Communicator) -> None:
        self._comm, self._parts = comm, RowLayout.even(layout.rows, comm.size)
        first, last = self._parts.range(comm.rank)
        wrong = bool(((vertex_ids < 0) | (vertex_ids >= layout.rows)).any())
        if comm.agree(int(wrong)):
            raise InputError(f"vertex_ids must be a permutation of [0, {layout.rows})")
        ids, order = vertex_ids.sort()
        per_rank = np.bincount(self._parts.owner(ids.numpy()), minlength=comm.size)
        counts = comm.exchange_counts(per_rank.tolist())
        own = torch.stack((ids, order + layout.range(comm.rank)[0]), dim=1)
        received = swap_rows(comm, own, counts)
        self._rows = torch.full((last - first,), -1)
        self._rows[received[:, 0] - first] = received[:, 1]
        if comm.agree(int(bool((self._rows < 0).any()))):
            raise InputError(f"vertex_ids must be a permutation of [0, {layout.rows})")

    def rows(self, ids: Tensor) -> tuple[Tensor, tuple[Carried, Carried]]:
        """Rows of all ranks with these original ids, int64 [ids]. Collective."""
        requests, comm = CSR(Selection(ids, self._parts.rows)), self._comm
        rows, counts = of_columns(self._rows, requests, self._parts, comm)
        size = rows.element_size()
        responses = Carried(EVERYONE, size * counts.send, size * counts.recv)
        return rows, (request_bytes(counts, comm.rank), responses)
