"""What a model makes of every vertex, exactly, from wherever the features lie."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.minibatch.features import Features
from spgnn.minibatch.source import Source
from spgnn.nn import Stack
from spgnn.nn.block import Block, block_pattern
from spgnn.pattern import Pattern
from spgnn.sampling import relabel
from spgnn.sparse import CSR
from spgnn.store import MemoryRows

ROWS = (
    1 << 16
)  # whose neighbourhoods are worked on at once, where graph or features are not in memory


@torch.no_grad()
def of_all(model: Stack, source: Source) -> Tensor:
    """What a model makes of all vertices of a graph, [n, columns].

    Parameters
    ----------
    model : Stack
        In evaluation mode. Without jumping knowledge, where graph or features are not in memory.
    source : Source
    """
    x = source.x
    if isinstance(x, MemoryRows | CSR) and isinstance(source.pattern, Pattern):
        everybody = torch.arange(source.rows)
        weight = source.edge_weight
        block = Block(
            source.pattern,
            source.ids_of(everybody),
            edge_weight=weight,
            degrees=partial(source.degrees, everybody),
        )
        made: Tensor = model(x.table if isinstance(x, MemoryRows) else x, block)
        return made
    features, H = Features(x), torch.empty(0)
    for number in range(model.num_layers):
        parts = []
        for first in range(0, source.rows, ROWS):
            block, nodes = neighbourhoods(source, first, min(first + ROWS, source.rows))
            taken = kernels.gather_rows(H, nodes) if number else next(features.of([nodes]))
            assert isinstance(taken, Tensor)
            parts.append(model.made_by(number, taken, block))
        H = torch.cat(parts)
    return H


def neighbourhoods(source: Source, first: int, last: int) -> tuple[Block, Tensor]:
    """All in-edges of vertices [first, last), and the vertices at their other ends."""
    targets, pattern = torch.arange(first, last), source.pattern
    begin, end = int(pattern.indptr[first]), int(pattern.indptr[last])
    indptr = pattern.indptr[first : last + 1] - begin
    nodes, indices = relabel(targets, indptr, pattern.indices[begin:end])
    weight = source.edge_weight
    block = Block(
        block_pattern(indptr, indices, len(nodes)),
        source.ids_of(nodes),
        edge_weight=None if weight is None else weight[begin:end],
        degrees=partial(source.degrees, nodes),
    )
    return block, nodes
