"""Edges of one rank's vertices, one by one, and pairs to be scored: sources are on a halo."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, Mesh
from spgnn.data.adapters import EdgeList, pairs_of_vertices
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.graph.codecs import GraphCodecs
from spgnn.graph.dist_vertices import DistVertices
from spgnn.graph.outputs import marked
from spgnn.graph.parameters import note_loss
from spgnn.graph.tracked import tracked
from spgnn.graph.vertices import collected, dealt
from spgnn.layout import Int64Array, RowLayout, inverse_permutation
from spgnn.pattern import described
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

_ENDS = "edge_index"  # which no attribute is called


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges that end at own vertices, sorted by destination.

    Attributes
    ----------
    index : Tensor int64 [2, edges]
        Sources and destinations.
    attributes : dict of Tensor [edges, …]
        ``edge_weight``, ``edge_attr`` and whatever else the source has of its edges.
    """

    index: Tensor
    attributes: dict[str, Tensor] = field(default_factory=dict)

    @property
    def weights(self) -> Tensor | None:
        """Weights of the edges, float32 or float64 [edges], if there are any."""
        weight = self.attributes.get("edge_weight")
        if weight is None:
            return None
        wide = weight.dtype in (torch.float32, torch.float64)
        return weight.reshape(-1) if wide else weight.reshape(-1).double()

    def on_halo(
        self, halo: Callable[[Tensor], Tensor], own: tuple[int, int], target: int | None = None
    ) -> Edges:
        """The same, from rows of the whole graph to rows of the halo and own rows. Collective.

        `own` are the first own row of sources, and one past the last; `target` the first own row of
        targets, where these are others.
        """
        rows = halo(torch.arange(*own, device=self.index.device))
        order = rows.argsort()
        place = order[torch.searchsorted(rows[order], self.index[0])]
        first = own[0] if target is None else target
        return replace(self, index=torch.stack((place, self.index[1] - first)))

    def changed(self, changes: Int64Array, attributes: dict[str, Tensor]) -> Edges:
        """Without edges that are dropped; new ones come after all others of their destination.

        Parameters
        ----------
        changes : int64 [k, ≥ 3]
            Source, destination, and 1 where an edge is dropped.
        attributes : dict of Tensor [k, …]
        """
        ends, dropped = torch.from_numpy(changes[:, :2].T), torch.from_numpy(changes[:, 2] == 1)
        most = int(torch.cat((self.index, ends), 1).max()) + 1 if len(changes) else 1
        keys, gone = (of[1] * most + of[0] for of in (self.index, ends[:, dropped]))
        stays = ~torch.isin(keys, gone)
        index = torch.cat((self.index[:, stays], ends[:, ~dropped]), 1)
        order = index[1].argsort(stable=True)
        result = {
            name: torch.cat((t[stays], attributes[name][~dropped]))[order]
            for name, t in self.attributes.items()
        }
        return Edges(index[:, order], result)

    def to(self, device: torch.device) -> Edges:
        """The same on a device."""
        moved = {name: t.to(device) for name, t in self.attributes.items()}
        return Edges(self.index.to(device), moved)


def scattered_edges(
    listed: EdgeList | None, vertex_ids: Tensor, layout: RowLayout, comm: Communicator
) -> Edges:
    """Every rank's edges of a list that rank 0 has, in rows of the whole graph. Collective."""
    ids = collected(vertex_ids, layout, comm)
    arrays: dict[str, Tensor] = {}
    counts = np.zeros(comm.size, np.int64)
    if listed is not None and comm.rank == 0:
        position = inverse_permutation(ids.numpy())
        source, target = position[listed.source], position[listed.target]
        order = np.argsort(target, kind="stable")
        counts = np.bincount(layout.owner(target), minlength=comm.size)
        arrays[_ENDS] = torch.from_numpy(np.stack((source, target), axis=1)[order])
        for name, array in listed.attributes.items():
            arrays[name] = array[torch.from_numpy(order)]
    result = dealt(arrays, counts, comm)
    return Edges(result.pop(_ENDS).T.contiguous(), result)


def edges_of_pattern(
    A: DistMatrix,
    edge_attr: Tensor | None,
    vertex_ids: Tensor,
    halo: Callable[[Tensor], Tensor],
    own: tuple[int, int],
) -> Edges:
    """The nonzeros of own rows, those of a row by where their vertices stood in the source."""
    local = A.local_matrix()
    ids = halo(vertex_ids).cpu().numpy()
    columns = local.indices.cpu().numpy()
    rows = np.repeat(np.arange(local.shape[0]), local.row_lengths.cpu().numpy())
    order = np.lexsort((ids[columns], rows))
    index = np.stack((columns[order].astype(np.int64), rows[order]))
    attributes = {}
    if local.values is not None:
        attributes["edge_weight"] = local.values.cpu()[torch.from_numpy(order)]
    if edge_attr is not None:
        numbers = halo(torch.arange(*own, device=vertex_ids.device)).cpu().numpy()
        place = inverse_permutation(np.lexsort((numbers[columns], rows)))
        attributes["edge_attr"] = edge_attr[torch.from_numpy(place[order])]
    return Edges(torch.from_numpy(index), attributes).to(vertex_ids.device)


def matrix_of_sources(sources: Int64Array, layout: RowLayout, comm: Communicator) -> DistMatrix:
    """A matrix whose halo are the rows that this rank needs. Collective.

    Parameters
    ----------
    sources : int64 [any]
        Rows of all ranks.
    """
    columns = torch.from_numpy(np.unique(sources))
    block = CSR.of(torch.tensor([0, len(columns)]), columns, (1, layout.rows))
    # One row a rank: nobody multiplies by it.
    rows = RowLayout(np.arange(comm.size + 1))
    mesh = Mesh.build(comm, Algorithm().axes(comm.size))
    return DistMatrix.build(block, layout, mesh, row_layout=rows)


class Sources(DistVertices):
    """The vertices that some pairs start at: own ones, and a halo of those of other ranks."""

    def __init__(self, vertices: DistVertices, A: DistMatrix, codecs: GraphCodecs) -> None:
        self._layout, self._matrix, self._codecs = vertices.layout, A, codecs
        self.comm, self.vertex_ids = vertices.comm, vertices.vertex_ids
        self.device = vertices.device

    @property
    def layout(self) -> RowLayout:
        """The layout of rows over ranks."""
        return self._layout

    @property
    def A(self) -> DistMatrix:
        """The matrix whose halo holds the sources of other ranks."""
        return self._matrix

    def exact(self) -> AbstractContextManager[None]:
        """Inside, rows arrive as they were sent."""
        return self._codecs.policy.exact()

    def looked_up(self, rows: Tensor) -> Tensor:
        """Rows that scores of pairs come of: their mean loss is over the pairs of all ranks."""
        sources: Tensor = marked(rows, self.comm, note_loss)
        return sources


def checked_pairs(index: Any, labels: Any, vertices: int) -> EdgeList:
    """Pairs that are given, and their labels."""

    def shown(value: Any) -> str:
        return described(value) if hasattr(value, "dtype") else type(value).__name__

    record = {"edge_label_index": index, "edge_label": labels}
    pairs = pairs_of_vertices(record, vertices, vertices)
    if "edge_label_index" not in pairs:
        raise InputError(
            f"edge_label_index must be integers [2, pairs] from 0 to {vertices - 1}, vertices of "
            f"the whole graph, got {shown(index)}"
        )
    if labels is not None and "edge_label" not in pairs:
        count = pairs["edge_label_index"].shape[1]
        raise InputError(
            f"edge_label must be a tensor [{count}, …], one a pair, got {shown(labels)}"
        )
    attributes = {} if labels is None else {"edge_label": pairs["edge_label"]}
    source, target = pairs["edge_label_index"].numpy()
    return EdgeList(source, target, attributes)


def own_pairs(edges: Edges, vertices: DistVertices, codecs: GraphCodecs) -> Edges:
    """Pairs in rows of the whole graph as those of own targets, whose sources fetch a halo."""
    comm, layout = vertices.comm, vertices.layout
    own = layout.range(comm.rank)
    if comm.size == 1:
        return Edges(edges.index - own[0], edges.attributes).to(vertices.device)
    A = matrix_of_sources(edges.index[0].numpy(), layout, comm).to(vertices.device)
    sources = Sources(vertices, A, codecs)
    here = edges.to(vertices.device).on_halo(sources._received, own)
    return Edges(tracked(here.index, sources), here.attributes)
