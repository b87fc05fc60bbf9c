"""Frames of Python that a layer runs through: few enough to be followed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import spgnn
from spgnn.graph import Aggregation
from spgnn.testing import run_ranks
from tests.graph.pyg_like import N, multigraph

OURS = str(Path(spgnn.__file__).parent)
AGGREGATE, FILES, FORWARD = 86, 14, 251


def frames(call: Callable[[], object]) -> list[str]:
    """The file of each function of ours that is called."""
    files = []

    def watch(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            files.append(frame.f_code.co_filename)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def counted(rank: int) -> tuple[int, int, int]:
    """Frames and files of one aggregation, and frames of a model of two layers. Collective."""
    data = multigraph(weighted=False, repeated=False, attr=False)
    data.x = torch.ones(N, 16)
    graph = spgnn.distribute(data)
    model = spgnn.nn.GCN(16, 16, 2, 3)
    request = Aggregation(graph.x.clone().requires_grad_(), torch.ones(16, 16), normalisation="sym")
    for _ in range(70):  # the first products of a matrix are compared over the ranks
        model(graph.x, graph)
        graph.aggregate(request)
    one, whole = (
        frames(call) for call in (lambda: graph.aggregate(request), lambda: model(graph.x, graph))
    )
    return len(one), len(set(one)), len(whole)


@pytest.mark.parametrize("backend", ["auto", "gloo"])
def test_a_layer_runs_through_few_frames(backend):
    for aggregate, files, forward in run_ranks(counted, 2, backend=backend):
        assert aggregate <= AGGREGATE
        assert files <= FILES
        assert forward <= FORWARD
