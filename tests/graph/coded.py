"""A problem for tests of codecs, and the codecs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import spgnn
from spgnn.graph.distgraph import DistGraph
from tests.graph.pyg_like import N, multigraph

WIDTH, CLASSES = 6, 3
CODECS: dict[str, dict[str, Any]] = {
    "bits": {"bits": 8},
    "schedule": {"bits": ((0, 2), (2, 32), (3, 16))},
    "feedback": {"bits": 4, "feedback": True},
    "delay": {"delay": 1, "bits": 8, "exact_means": False},
    "bins": {"delay": 2, "bins": 2, "smoothing": 0.5},
    "centred": {"delay": 1},
    "never": {"delay": None},
    "fresh": {"fresh": 0.05},
    "sampling": {"sampling": 0.5},
}


def problem() -> Any:
    data = multigraph(weighted=False, repeated=False, attr=False)
    draw = torch.Generator().manual_seed(5)
    data.x = torch.randn(N, WIDTH, generator=draw)
    data.y = torch.randint(0, CLASSES, (N,), generator=draw)
    return data


def graph_on(codec: Any, model: nn.Module | None = None, **way: Any) -> DistGraph:
    # Whole rows without a codec, too, so that sums have the same order, and bits can be compared.
    return spgnn.distribute(problem(), codec=codec, model=model, **{"cover": "column"} | way)
