"""The edges of one rank's vertices, one by one: sources on the halo, destinations own rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data.adapters import EdgeList
from spgnn.graph.vertices import collected, dealt
from spgnn.layout import Int64Array, RowLayout, inverse_permutation
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
