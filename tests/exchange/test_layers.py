"""Plans of each layer: exact on the rows that are reached, ghosts need no exchange."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import DistMatrix, Mesh
from spgnn.comm import Communicator, connect
from spgnn.exchange import Algorithm, build, build_all, layered
from spgnn.exchange import layer_plans as module
from spgnn.exchange.layer_plans import Layered
from spgnn.layout import RowLayout
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout

N = 41
WAYS = [
    Algorithm(),
    Algorithm(cover="minimum"),
    Algorithm(exchange="oblivious"),
    Algorithm("1.5d", 2, cover="row"),
    Algorithm("1.5d", 2),
    Algorithm("feature", 2, cover="minimum"),
    Algorithm("3d", 2),
    Algorithm(relays=True),
    Algorithm("1.5d", 2, cover="minimum", relays=True),
]


def matrix(weighted: bool) -> np.ndarray:
    """Sparse enough that three steps from a few vertices do not reach all."""
    A = random_matrix(N, 0.03, 5, weighted=weighted).toarray().astype(np.float64)
    A[N // 2, :] = A[:, N // 3] = 0
    return A


def column_scale() -> np.ndarray:
    return np.linspace(1, 2, N)


def scheme(algorithm: Algorithm, layout: RowLayout, rank: int, weighted: bool, **options):
    """One rank's part of the matrix, with scales of rows and columns."""
    own = slice(*layout.range(rank))
    A = sp.csr_array(matrix(weighted))
    block = block_row(A if weighted else A.astype(bool), own.start, own.stop)
    row_scale = torch.linspace(2, 3, N, dtype=torch.float64)[own].clone()
    wanted = options.pop("labelled", None)
    if wanted is not None:
        wanted = torch.from_numpy(np.flatnonzero(wanted[own]))
    return layered(
        algorithm,
        block.with_scales(row_scale, None),
        layout,
        rank,
        labelled=wanted,
        column_scale=torch.from_numpy(column_scale()[own].copy()),
        **options,
    )


def whole(weighted: bool) -> np.ndarray:
    return np.linspace(2, 3, N)[:, None] * matrix(weighted) * column_scale()


def labelled(seed: int, share: float) -> np.ndarray:
    return np.random.default_rng(seed).random(N) < share


def reached(A: np.ndarray, wanted: np.ndarray, layers: int) -> list[np.ndarray]:
    """Rows of each layer, the first first, by the definition."""
    sets = [wanted]
    for _ in range(layers):
        sets.append(sets[-1] | (A[sets[-1]] != 0).any(axis=0))
    return sets[::-1]


def check(comm: Communicator, algorithm: Algorithm, weighted: bool, options: dict) -> None:
    """Three products, each on its own rows, forward and adjoint, against the dense matrix."""
    layout = uneven_layout(N, comm.size, seed=2)
    mesh = Mesh.build(comm, algorithm.axes(comm.size))
    plans = build(scheme(algorithm, layout, comm.rank, weighted, **options), mesh)
    A = whole(weighted)
    X = np.random.default_rng(1).standard_normal((N, 3))
    propagated = options.get("propagated", False)
    H = torch.from_numpy((A @ X if propagated else X)[plans.first.numpy()]).requires_grad_()
    given = H
    dense = A @ X if propagated else X
    for layer in plans.layers[int(propagated) :]:
        assert layer is not None
        M = DistMatrix(layer.plan, layout, mesh)
        assert M.columns == H.shape[0] == len(layer.columns)
        H, dense = M @ H, A @ dense
        if layer.row_columns is not None:
            assert len(layer.row_columns) == H.shape[0]
    rows = plans.rows.numpy() + layout.range(comm.rank)[0]
    np.testing.assert_allclose(H.detach().numpy(), dense[rows], rtol=1e-10, atol=1e-10)
    G = np.random.default_rng(2).standard_normal((N, 3))
    all_rows = np.flatnonzero(options.get("labelled", np.ones(N, bool)))
    H.backward(torch.from_numpy(G[rows]))
    zeroed = np.zeros_like(G)
    zeroed[all_rows] = G[all_rows]
    for _ in plans.layers[1 if propagated else 0 :]:
        zeroed = A.T @ zeroed
    # Gradients of a vertex and of its ghosts add up to the gradient.
    summed = torch.zeros(N, 3, dtype=torch.float64)
    summed.index_add_(0, plans.first, given.grad)
    comm.all_reduce(summed).wait()
    np.testing.assert_allclose(summed.numpy(), zeroed, rtol=1e-9, atol=1e-9)


OPTIONS = [
    {"layers": 3, "labelled": labelled(0, 0.05)},
    {"layers": 3, "labelled": labelled(1, 0.05), "propagated": True},
    {"layers": 3, "propagated": True, "recompute_halo": True},
    {"layers": 3, "labelled": labelled(3, 0.05), "propagated": True, "recompute_halo": True},
    {"layers": 2, "labelled": labelled(4, 0.02), "propagated": True, "recompute_halo": True},
]


def check_all(rank: int) -> None:
    module.WORTHWHILE = -1.0  # every layer has a plan of its own
    comm = connect()
    for algorithm in WAYS:
        if comm.size % algorithm.c:
            continue
        for number, options in enumerate(OPTIONS):
            check(comm, algorithm, number % 2 == 0, dict(options))


@pytest.mark.parametrize(
    "ranks", [1, 4, *(pytest.param(p, marks=pytest.mark.slow) for p in (3, 6))]
)
def test_layers_are_exact_on_the_rows_they_make(ranks):
    run_ranks(check_all, ranks)


def offline(algorithm: Algorithm, ranks: int, weighted: bool, options: dict) -> list[Layered]:
    layout = uneven_layout(N, ranks, seed=2)
    schemes = [scheme(algorithm, layout, rank, weighted, **options) for rank in range(ranks)]
    return build_all(schemes, algorithm.axes(ranks))


@pytest.mark.parametrize("algorithm", [*WAYS[:2], *WAYS[3:]], ids=str)
def test_rows_are_those_that_are_reached(algorithm, monkeypatch):
    """By the definition: a layer needs the columns of the rows that the next one makes."""
    monkeypatch.setattr(module, "WORTHWHILE", -1.0)
    wanted = labelled(0, 0.05)
    sets = reached(whole(True), wanted, 3)
    plans = offline(algorithm, 4, True, {"layers": 3, "labelled": wanted})
    columns = [np.concatenate([plan.layers[k].columns for plan in plans]) for k in range(3)]
    for found, expected in zip(columns, sets[:3], strict=True):
        np.testing.assert_array_equal(found, np.flatnonzero(expected))
    assert len(columns[0]) < N
    layout = uneven_layout(N, 4, seed=2)
    rows = [plan.rows + layout.range(rank)[0] for rank, plan in enumerate(plans)]
    np.testing.assert_array_equal(np.concatenate(rows), np.flatnonzero(wanted))


def test_ghosts_are_the_remote_columns_and_nothing_moves():
    A = whole(True)
    layout = uneven_layout(N, 4, seed=2)
    plans = offline(
        Algorithm("1.5d", 2), 4, True, {"layers": 2, "propagated": True, "recompute_halo": True}
    )
    for rank, plan in enumerate(plans):
        first, last = layout.range(rank)
        layer = plan.layers[1]
        assert layer.plan.hops == ()
        needed = np.flatnonzero((A[first:last] != 0).any(axis=0))
        ghosts = needed[(needed < first) | (needed >= last)]
        np.testing.assert_array_equal(np.sort(layer.columns[last - first :]), ghosts)
        np.testing.assert_array_equal(plan.first, layer.columns)
        assert plan.halo.shape == (last - first, last - first)
        assert plan.halo.volume.receive == len(ghosts)


def test_what_saves_little_has_no_plan_of_its_own():
    wanted = np.ones(N, bool)
    wanted[3] = False
    for plan in offline(Algorithm(), 3, False, {"layers": 3, "labelled": wanted}):
        assert plan.layers == (None, None, None)
    (alone,) = offline(
        Algorithm(), 1, False, {"layers": 2, "propagated": True, "recompute_halo": True}
    )
    assert alone.layers == (None, None)
    assert alone.halo is None
