"""Features of edges, in the order in which attention sees the edges."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.nn.propagation import LayerGraph, LayerMatrix, Propagation
from spgnn.spmm import DistMatrix

FILLS = ("add", "sum", "mean", "min", "max", "mul")
_REDUCED = {"add": "sum", "min": "amin", "max": "amax", "mul": "prod"}


@dataclass(eq=False)
class EdgeOrder:
    """Puts features of a graph's edges into the order of a matrix, and makes those of loops.

    Remembers the last graph: to find its edges one by one takes longer than a layer.
    """

    _seen: tuple[Tensor, LayerMatrix, Tensor] | None = field(default=None, repr=False)

    def features(
        self,
        graph: LayerGraph,
        A: LayerMatrix,
        edge_attr: Tensor,
        fill: float | Tensor | str | None,
    ) -> Tensor:
        """Features of the nonzeros of own rows, [nonzeros, f].

        Parameters
        ----------
        graph : what the layer works on
            If it has a ``local_edge_index``, features are those of its edges; else those of the
            nonzeros of ``A.local_pattern``, in their order.
        A : LayerMatrix
        edge_attr : Tensor [edges] or [edges, f]
        fill : number, Tensor [f], or how features of a vertex's other edges are reduced; optional
            Features of self-loops, where the layer adds them; existing ones are replaced.

        Raises
        ------
        InputError
            If there is not one feature vector for each edge, or A has them on several ranks.
        """
        A.attention.check_edges(None, wanted=True)
        attr = edge_attr[:, None] if edge_attr.dim() == 1 else edge_attr
        index = None if isinstance(graph, DistMatrix | Propagation) else _edge_index(graph)
        if index is None:
            A.attention.check_edges(attr)
            return attr
        if attr.shape[0] != index.shape[1]:
            raise InputError(
                f"this rank has {index.shape[1]} edges, there are features of {attr.shape[0]}"
            )
        places = self._places(index, A, loops=fill is not None)
        if not len(attr):  # all of them are loops that are made
            attr = attr.new_zeros(1, attr.shape[1])
        found = attr.index_select(0, places.clamp(min=0))
        if fill is None:
            return found
        loops = places < 0
        rows = _rows(A)
        made = _of_loops(found[~loops], rows[~loops], rows[loops], A.rows, fill)
        return found.masked_scatter(loops[:, None], made.to(found.dtype))

    def _places(self, index: Tensor, A: LayerMatrix, *, loops: bool) -> Tensor:
        """The edge of each nonzero, −1 for self-loops that are made."""
        if self._seen is not None and self._seen[0] is index and self._seen[1] is A:
            return self._seen[2]
        pattern, rows = A.local_pattern, _rows(A)
        columns, width = pattern.indices.long(), pattern.shape[1]
        wanted, given = rows * width + columns, index[1] * width + index[0]
        order = given.argsort(stable=True)
        ranked = given[order]
        at = torch.searchsorted(ranked, wanted).clamp(max=max(len(given) - 1, 0))
        found = ranked[at] == wanted if len(given) else torch.zeros_like(wanted, dtype=torch.bool)
        places = torch.where(found, order[at], -1) if len(given) else torch.full_like(wanted, -1)
        if loops:
            places = places.masked_fill(rows == columns, -1)
        elif not bool(found.all()) or len(given) != len(wanted):
            raise InputError(
                "edge features of a graph with several edges between the same vertices: coalesce "
                "them, or give edge_index to a layer of PyG"
            )
        self._seen = index, A, places
        return places


def _edge_index(graph: object) -> Tensor | None:
    """Ends of a graph's edges as plain numbers, if it has any."""
    index = getattr(graph, "local_edge_index", None)
    return index if isinstance(index, Tensor) else None


def _rows(A: LayerMatrix) -> Tensor:
    pattern = A.local_pattern
    rows = torch.arange(pattern.shape[0], device=pattern.device)
    return rows.repeat_interleave(pattern.row_lengths)


def _of_loops(
    attr: Tensor, rows: Tensor, loops: Tensor, count: int, fill: float | Tensor | str
) -> Tensor:
    """Features of the self-loops of some vertices, made of those of their other edges."""
    if not isinstance(fill, str):
        value = torch.as_tensor(fill, dtype=attr.dtype, device=attr.device)
        return value.expand(len(loops), attr.shape[1])
    how = _REDUCED.get(fill, fill)
    made = attr.new_full((count, attr.shape[1]), 1.0 if fill == "mul" else 0.0)
    places = rows[:, None].expand_as(attr)
    return made.scatter_reduce(0, places, attr, how, include_self=fill == "mul")[loops]
