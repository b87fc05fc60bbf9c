"""One pass over a graph: gradients, norms' moments, extremes, progress."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import kernels
from spgnn.addons.outofcore.blocks import Blocks
from spgnn.addons.outofcore.chunked_model import (
    ChunkedModel,
    ChunkRows,
    MomentGradients,
    VertexMoments,
)
from spgnn.addons.outofcore.matrix import ChunkMatrix
from spgnn.addons.outofcore.tables import Table, panels_of
from spgnn.comm import connect
from spgnn.errors import InputError
from spgnn.graph.moments import moments
from spgnn.kernels.extremes import add_to_extremes_
from spgnn.nn import GraphSAGE
from spgnn.nn.norm import BatchNorm, GraphNorm, LayerNorm, PairNorm
from spgnn.sparse import CSR
from tests.addons.outofcore.runs import task_of


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_gradients_are_scaled_and_added(layers):
    """The last layer's, of the forward pass, are scaled as all others; none come by themselves."""
    task = task_of(layers=layers, chunks=3, dropout=0.2)
    task.loss(0)
    assert all(p.grad is None for p in task.model.parameters())
    task.loss(0).backward()
    once = [p.grad.clone() for p in task.model.parameters()]
    assert all(bool(g.any()) for g in once)
    (2 * task.loss(0)).backward()
    for expected, p in zip(once, task.model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, 3 * expected)
    task.model.zero_grad()
    task.loss(0).backward()
    assert all(map(torch.equal, once, (p.grad for p in task.model.parameters())))


def test_rows_are_freed_without_the_garbage_collector():
    """A cycle keeps the rows of every chunk, and their graph, until it is looked for."""
    task = task_of(model="sage", norm="batch", chunks=5)
    gc.collect()
    gc.disable()
    try:
        task.loss(0).backward()
        assert not any(type(one) is ChunkRows for one in gc.get_objects())
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("model", "forward", "backward"),
    [
        ({}, 3, 2),  # three layers; backward the last one's gradients are there
        # Two norms in the first two layers, one in the last, whose backward begins at once.
        ({"norm": "batch", "model": "gin"}, 3 + 3 + 2 + 1, 3 + 3),
    ],
)
def test_progress_inside_an_epoch(model, forward, backward):
    task, ticks = task_of(**model, chunks=5), []
    task.progress = lambda what, done, total: ticks.append((done, total))
    task.loss(0).backward()
    assert ticks == [(n + 1, 5 * total) for total in (forward, backward) for n in range(5 * total)]


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "norm",
    [BatchNorm(3), GraphNorm(3), LayerNorm(3), PairNorm(2.0), PairNorm(scale_individually=True)],
    ids=lambda norm: type(norm).__name__,
)
def test_norms_of_chunks_are_those_of_all_rows(norm, dtype, offset):
    """Far from zero, too, where squares minus a square would leave nothing."""
    norm, solo = norm.to(dtype), connect("gloo")
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(50, 3, generator=generator, dtype=torch.float64) + offset).to(dtype)
    G = torch.randn(50, 3, generator=generator, dtype=torch.float64).to(dtype)
    whole = x.clone().double().requires_grad_()
    pairs = isinstance(norm, PairNorm)
    reference = PairNorm(norm.scale, norm.scale_individually) if pairs else type(norm)(3)
    expected = reference.double()(whole, solo)
    expected.backward(G.double())
    chunks = [slice(0, 1), slice(1, 1), slice(1, 30), slice(30, 50)]
    known, of_moments = VertexMoments(), MomentGradients()
    for chunk in chunks:
        known.add(x[chunk])
    known.over_ranks(solo)
    right = moments(x.double(), None, None)
    torch.testing.assert_close(known.mean, right.centre + right.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(known.variance, right.variance, rtol=1e-6, atol=0.0)
    nobody = torch.empty(0, dtype=torch.int64)
    for chunk in chunks:
        on = ChunkRows(nobody, groups=[[known]], leaf=0)
        made = norm(x[chunk].requires_grad_(), on)
        torch.testing.assert_close(made.double(), expected[chunk], rtol=1e-4, atol=2e-5)
        of_moments.add(made, G[chunk], on.leaves)
    of_moments.over_ranks(solo, [known])
    for chunk in chunks:
        rows = x[chunk].clone().requires_grad_()
        norm(rows, ChunkRows(nobody, groups=[[known]])).backward(G[chunk])
        torch.testing.assert_close(rows.grad.double(), whole.grad[chunk], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("reduce", ["max", "min", "std"])
def test_gradients_of_reductions_are_those_of_memory(reduce):
    """With many equal neighbours, rows without any, and a few columns at a time."""
    model = ChunkedModel(GraphSAGE(3, 4, 2, aggr=reduce))
    assert [request.reduce for request in model.requests] == [reduce, reduce]
    assert not model.multiplies
    rng = np.random.default_rng(5)
    A = CSR(CSR.from_scipy(sp.random_array((40, 40), density=0.1, rng=rng, format="csr")).pattern)
    bounds = (0, 0, 13, 40)
    H = torch.from_numpy(rng.integers(-2, 3, (40, 5)).astype(np.float64)).requires_grad_()
    G = torch.from_numpy(rng.normal(size=(40, 5)))
    expected = kernels.spmm(A, H, reduce=reduce)
    expected.backward(G)
    matrix = ChunkMatrix(Blocks.of(A, bounds), bounds)

    operand, dZ = (Table(bounds, 5, torch.float64) for _ in range(2))
    operand.panel(0, 5).copy_(H.detach())
    dZ.panel(0, 5).copy_(G)
    for panel in (2, 5):
        operand.panels, request = panels_of(5, panel), model.requests[1]
        products = [Z.clone() for _, Z in matrix.products(operand, request)]
        assert torch.equal(torch.cat(products), expected)
        adjoints = matrix.adjoints(dZ, Table, request, operand)
        torch.testing.assert_close(torch.cat([dO.clone() for _, dO in adjoints]), H.grad)


def test_where_gradients_may_not_be_added():
    G, arg = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int32)
    for wrong in (torch.zeros(4, 2), torch.zeros(4, 6)[:, :3], torch.zeros(4, 3).double()):
        with pytest.raises(InputError, match=r"dX must be torch.float32 \[cols, 3\]"):
            add_to_extremes_(wrong, G, arg)
