"""Several graphs as one: side by side, without edges between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.data.graph import MASKS, Graph
from spgnn.data.structure import stack_rows
from spgnn.errors import InputError
from spgnn.pattern import index_dtype
from spgnn.sparse import CSR

BETWEEN = "+"  # the names of several data sets


def disjoint_union(graphs: Sequence[Graph], split: Sequence[int] | None = None) -> Graph:
    """One graph whose adjacency has those of several along its diagonal.

    Parameters
    ----------
    graphs : sequence of Graph
        All with features and labels of the same kind and width, or none with any. Where some have
        a mask, vertices of those that have not are not in it. Weights that are missing are 1.
    split : three int, optional
        So many graphs are for training, as many next for validation, the last for testing, in
        place of their masks.

    Raises
    ------
    InputError
        Naming the graph that does not fit the first.
    """
    if not graphs:
        raise InputError("a union of no graphs")
    first = graphs[0]
    for graph in graphs[1:]:
        for what, of in (("x", _kind_of_features), ("y", _kind_of_labels)):
            if of(graph) != of(first):
                raise InputError(
                    f"{graph.name} has {what} {of(graph)}, but {first.name} {of(first)}; "
                    "graphs that are joined must agree"
                )
    data: dict[str, Any] = {"x": None, "y": None}
    if first.x is not None:
        data["x"] = _stacked([graph.x for graph in graphs])
    if first.y is not None:
        data["y"] = torch.cat([graph.y for graph in graphs if graph.y is not None])
    data |= _masks_of(graphs) if split is None else masks_by_graph(graphs, split)
    name = BETWEEN.join(graph.name for graph in graphs)
    if len(graphs) > 3:
        name = f"{first.name}{BETWEEN}{len(graphs) - 1} others"
    return Graph(name, _diagonal(graphs), any(graph.directed for graph in graphs), **data)


def masks_by_graph(graphs: Sequence[Graph], split: Sequence[int]) -> dict[str, Tensor]:
    """Masks of the vertices of the first, the next and the last graphs.

    Raises
    ------
    InputError
        If these are more or fewer graphs than there are.
    """
    if len(split) != len(MASKS) or sum(split) != len(graphs) or min(split) < 0:
        shown = ",".join(map(str, split))
        raise InputError(
            f"--graph-split {shown}: must be three numbers of graphs that add up to {len(graphs)}"
        )
    sizes = torch.tensor([graph.vertices for graph in graphs])
    part = torch.arange(len(MASKS)).repeat_interleave(torch.tensor(list(split)))
    of_vertex = part.repeat_interleave(sizes)
    return {name: of_vertex == number for number, name in enumerate(MASKS)}


def _masks_of(graphs: Sequence[Graph]) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = {}
    for name in MASKS:
        given = [(graph, getattr(graph, name)) for graph in graphs]
        shapes = {tuple(mask.shape[1:]) for _, mask in given if mask is not None}
        if len(shapes) > 1:
            raise InputError(f"{name}: graphs that are joined must have equally many splits")
        found[name] = None
        if shapes:
            (width,) = shapes
            none = [torch.zeros((graph.vertices, *width), dtype=torch.bool) for graph in graphs]
            found[name] = torch.cat(
                [
                    other if mask is None else mask
                    for (_, mask), other in zip(given, none, strict=True)
                ]
            )
    return found


def _diagonal(graphs: Sequence[Graph]) -> CSR:
    sizes = np.array([graph.vertices for graph in graphs])
    n, begins = int(sizes.sum()), np.cumsum(sizes) - sizes
    weighted = any(graph.weighted for graph in graphs)
    blocks = []
    for graph, begin in zip(graphs, begins.tolist(), strict=True):
        A = graph.adjacency
        values = A.values
        if weighted and values is None:
            values = torch.ones(A.nnz)
        indices = (A.indices.long() + begin).to(index_dtype(n))
        blocks.append(CSR.of(A.indptr, indices, (A.shape[0], n), values))
    return stack_rows(blocks)


def _stacked(features: Sequence[Tensor | CSR | None]) -> Tensor | CSR:
    sparse = [x for x in features if isinstance(x, CSR)]
    return (
        stack_rows(sparse) if sparse else torch.cat([x for x in features if isinstance(x, Tensor)])
    )


def _kind_of_features(graph: Graph) -> str:
    if graph.x is None:
        return "of no kind"
    return f"{'sparse' if isinstance(graph.x, CSR) else 'dense'} of width {graph.features}"


def _kind_of_labels(graph: Graph) -> str:
    if graph.y is None:
        return "of no kind"
    return f"{graph.y.dtype} of width {graph.y.shape[1] if graph.y.dim() == 2 else 1}"
