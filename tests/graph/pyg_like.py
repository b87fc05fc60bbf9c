"""Small graphs as PyG has them, and their matrices by its definitions, dense."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

N = 40


def multigraph(*, weighted: bool, repeated: bool, attr: bool = True) -> Any:
    """Directed, with self-loops, an isolated vertex, and edges in no order at all."""
    draw = torch.Generator().manual_seed(3)
    pairs = torch.randint(0, N - 1, (2, 170), generator=draw)
    pairs = torch.unique(torch.cat((pairs, torch.arange(4).repeat(2, 1)), dim=1), dim=1)
    if repeated:
        pairs = torch.cat((pairs, pairs[:, :20], pairs[:, 5:9], torch.arange(3).repeat(2, 1)), 1)
    pairs = pairs[:, torch.randperm(pairs.shape[1], generator=draw)]
    edges = pairs.shape[1]
    return SimpleNamespace(
        edge_index=pairs,
        edge_weight=torch.rand(edges, generator=draw) + 0.1 if weighted else None,
        edge_attr=torch.randn(edges, 2, generator=draw) if attr else None,
        train_mask=torch.rand(N, generator=draw) < 0.5,
        num_nodes=N,
    )


def dense_of(data: Any, kind: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """A matrix [N, N] by PyG's own words: row = destination."""
    source, target = data.edge_index
    weight = data.edge_weight
    weight = torch.ones(len(source), dtype=dtype) if weight is None else weight.to(dtype)
    if kind in ("sym", "loops"):
        # add_remaining_self_loops: one loop for each vertex, the last of its own if it has any.
        loop = source == target
        own = torch.ones(N, dtype=dtype)
        own[source[loop]] = weight[loop]
        source = torch.cat((source[~loop], torch.arange(N)))
        target = torch.cat((target[~loop], torch.arange(N)))
        weight = torch.cat((weight[~loop], own))
    A = torch.zeros(N, N, dtype=dtype).index_put((target, source), weight, accumulate=True)
    degree = A.sum(1)
    if kind == "sym":
        scale = torch.where(degree > 0, degree.rsqrt(), 0)
        return scale[:, None] * A * scale
    return A / degree.clamp(min=1e-30)[:, None] if kind == "row" else A
