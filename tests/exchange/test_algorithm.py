"""Schemes by name: how ranks are arranged, and two of them in one model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn import Axes, DistMatrix, InputError, Mesh
from spgnn.comm import connect
from spgnn.exchange import Algorithm
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.products import moved

# algo, c, ranks: block rows × replicas × shares of the columns.
SHAPES = [
    ("1d", 1, 6, (6, 1, 1)),
    ("1.5d", 3, 6, (2, 3, 1)),
    ("feature", 1, 6, (6, 1, 1)),
    ("feature", 3, 6, (2, 1, 3)),
    ("feature", 6, 6, (1, 1, 6)),
    ("2d", 1, 16, (4, 4, 1)),
    ("2d", 1, 12, (4, 3, 1)),
    ("2d", 1, 7, (7, 1, 1)),
    ("2d", 6, 12, (2, 6, 1)),
    ("3d", 1, 8, (2, 2, 2)),
    ("3d", 1, 12, (3, 2, 2)),
    ("3d", 1, 16, (4, 2, 2)),
    ("3d", 1, 64, (4, 4, 4)),
    ("3d", 1, 4096, (16, 16, 16)),
    ("3d", 1, 7, (7, 1, 1)),
    ("3d", 4, 16, (2, 2, 4)),
    ("3d", 2, 2, (1, 1, 2)),
]


@pytest.mark.parametrize(("algo", "c", "ranks", "shape"), SHAPES)
def test_how_ranks_are_arranged(algo, c, ranks, shape):
    algorithm = Algorithm(algo, c)
    algorithm.check(ranks)
    named = dict.fromkeys(("row", "replica", "feature"), 1)
    axes = algorithm.axes(ranks)
    named |= dict(zip(axes.names, axes.sizes, strict=True))
    assert tuple(named.values()) == shape
    assert algorithm.parts(ranks) == shape[0]


@pytest.mark.parametrize("algo", ["1.5d", "feature", "2d", "3d"])
def test_copies_must_divide_the_ranks(algo):
    with pytest.raises(InputError, match=r"^--c 4 must divide the number of ranks, which is 6$"):
        Algorithm(algo, 4).check(6)


N = 43
# The first multiplies by shares of the columns; nothing else is known of the second.
PAIRS = [
    (Algorithm("feature", 4), Algorithm("1d")),
    (Algorithm("feature", 2, cover="minimum"), Algorithm("1.5d", 2)),
    (Algorithm("3d", exchange="oblivious"), Algorithm("feature", 8)),
]


def check_pair(rank: int, wide: Algorithm, narrow: Algorithm) -> None:
    """Two layers on one layout, the first wide and the second narrow, each with its own scheme."""
    comm = connect()
    A, layout = random_matrix(N, 0.1, 5, weighted=True), uneven_layout(N, comm.size, seed=2)
    own = slice(*layout.range(rank))
    first, second = (
        DistMatrix.build(
            block_row(A, own.start, own.stop),
            layout,
            Mesh.build(comm, algorithm.axes(comm.size)),
            algorithm=algorithm,
        )
        for algorithm in (wide, narrow)
    )
    rng = np.random.default_rng(0)
    X, W = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((N, 21), (21, 3)))
    X.requires_grad_()
    X_local = X.detach()[own].clone().requires_grad_()
    D = torch.from_numpy(A.toarray())
    expected = D @ torch.tanh(D @ X @ W)
    (dX,) = torch.autograd.grad(expected.square().sum(), X)

    before = comm.ledger.copy()
    Z_local = second @ torch.tanh((first @ X_local) @ W)
    (dX_local,) = torch.autograd.grad(Z_local.square().sum(), X_local)
    counted = moved(comm.ledger.since(before))
    torch.testing.assert_close(Z_local, expected[own])
    torch.testing.assert_close(dX_local, dX[own])
    planned = np.zeros(2, np.int64)
    for matrix, width in ((first, 21), (second, 3)):
        for adjoint in (False, True):
            traffic = matrix.plan.traffic(width, torch.float64, adjoint=adjoint).values()
            planned += np.sum([(t.sent_bytes, t.received_bytes) for t in traffic], axis=0)
    assert counted == tuple(planned)


@pytest.mark.parametrize(("wide", "narrow"), PAIRS)
def test_layers_of_different_schemes_on_one_layout(wide, narrow):
    run_ranks(check_pair, 8, wide, narrow)


def test_a_mesh_of_another_arrangement_is_refused():
    def refused(rank: int) -> str:
        comm = connect()
        block = block_row(random_matrix(4, 0.5, 0, weighted=False), 2 * rank, 2 * rank + 2)
        layout = uneven_layout(4, 1, 0).split(2)
        with pytest.raises(InputError) as error:
            DistMatrix.build(block, layout, Mesh.grid(comm), algorithm=Algorithm("feature", 2))
        return str(error.value)

    for said in run_ranks(refused, 2):
        assert "needs a mesh of" in said
        assert str(Axes.grid(2, 1, 2)) in said
