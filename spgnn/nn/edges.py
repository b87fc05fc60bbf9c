"""The edges that end at a rank's rows, one by one, for layers that look at each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.nn.propagation import LayerGraph, Propagation, matrix_of
from spgnn.spmm import DistMatrix


@dataclass(frozen=True, eq=False)
class LocalEdges:
    """Edges of one rank: sources are rows of the halo, targets are rows that the layer makes.

    Attributes
    ----------
    halo : callable
        H_local [columns, f] to [columns + received, f]; one exchange. Collective.
    index : Tensor int64 [2, edges]
        Sources and targets.
    """

    halo: Callable[[Tensor], Tensor]
    index: Tensor


def local_edges(graph: LayerGraph) -> LocalEdges:
    """Those of a graph, in the order of its ``edge_index``; of a matrix, row by row.

    Raises
    ------
    InputError
        If rows do not travel whole: a graph must be 1D with column covers.
    """
    if isinstance(graph, DistMatrix | Propagation):
        A = matrix_of(graph, "none")
        pattern = A.local_pattern
        rows = torch.arange(pattern.shape[0], device=pattern.device)
        rows = rows.repeat_interleave(pattern.row_lengths)
        return LocalEdges(A.halo, torch.stack((pattern.indices.long(), rows)))
    halo = getattr(graph, "halo", None)
    # The numbers alone, where edge_index is more than that.
    name = "local_edge_index" if hasattr(graph, "local_edge_index") else "edge_index"
    index = getattr(graph, name, None)
    if halo is None or index is None:
        raise InputError("a layer that looks at each edge needs a graph with halo and edge_index")
    return LocalEdges(halo, index)


def check_edge_rows(layer: str, name: str, given: object, index: Tensor) -> Tensor:
    """What a layer is told of each local edge, one row an edge.

    Raises
    ------
    InputError
    """
    if not isinstance(given, Tensor) or given.shape[:1] != index.shape[1:]:
        found = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise InputError(
            f"{layer}: {name} must be a tensor with one row for each of this rank's "
            f"{index.shape[1]} edges, as edge_index orders them; got {found}"
        )
    return given
