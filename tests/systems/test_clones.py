"""A vertex cut with clones: exact on every row of every clone, and what it moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from systems import clones
from systems.clones import cloned

from spgnn import Axes, DistMatrix, Mesh
from spgnn.comm import Communicator, connect
from spgnn.config import TrainConfig
from spgnn.exchange import build, build_all
from spgnn.testing import run_ranks
from spgnn.train import train
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.training import write_dataset

F = 3


class Case:
    """A cut of a random matrix with scales, as every rank knows it."""

    def __init__(self, n: int, density: float, ranks: int, seed: int, *, weighted: bool) -> None:
        rng = np.random.default_rng(seed)
        self.pattern = random_matrix(n, density, seed, weighted=weighted)
        self.layout = uneven_layout(n, ranks, seed=seed)
        self.labels = rng.integers(0, ranks, self.pattern.nnz)
        self.row_scale, self.column_scale = rng.uniform(1, 2, (2, n))
        self.wanted = rng.random(n) < 0.2
        self.X, self.G = rng.standard_normal((2, n, F))
        self.A = self.row_scale[:, None] * self.pattern.toarray() * self.column_scale

    def scheme(self, rank: int, **options):
        first, last = self.layout.range(rank)
        begin, end = self.pattern.indptr[[first, last]]
        if options.pop("prune"):
            options["labelled"] = torch.from_numpy(np.flatnonzero(self.wanted[first:last]))
        scales = (
            torch.from_numpy(s[first:last].copy()) for s in (self.row_scale, self.column_scale)
        )
        row_scale, column_scale = scales
        return cloned(
            block_row(self.pattern, first, last).with_scales(row_scale, None),
            self.layout,
            rank,
            column_scale=column_scale,
            edge_labels=torch.from_numpy(self.labels[begin:end]),
            **options,
        )

    def parts(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each part, bool [n]: vertices of whose rows it has nonzeros off the diagonal, and
        those of whose columns it has."""
        rows = np.repeat(np.arange(len(self.A)), np.diff(self.pattern.indptr))
        columns, found = self.pattern.indices, []
        for rank in range(self.layout.parts):
            here = (self.labels == rank) & (rows != columns)
            ends = np.zeros((2, len(self.A)), bool)
            ends[0, rows[here]] = ends[1, columns[here]] = True
            found.append((ends[0], ends[1]))
        return found


def check(comm: Communicator, case: Case, **options) -> None:
    """Products of all layers, forward and adjoint, on every rank against the dense matrix."""
    mesh, A = Mesh.build(comm, Axes.grid(comm.size)), case.A
    plans = build(case.scheme(comm.rank, **options), mesh)
    lowest = int(options.get("propagated", False))
    dense = A @ case.X if lowest else case.X
    given_rows = torch.from_numpy(dense[plans.first.numpy()]).requires_grad_()
    H = given_rows
    for layer in plans.layers[lowest:]:
        M = DistMatrix(layer.plan.ready(), case.layout, mesh)
        assert M.columns == len(H) == len(layer.columns)
        H, dense = M @ H, A @ dense
        made = layer.columns if layer.row_columns is None else layer.columns[layer.row_columns]
        np.testing.assert_allclose(H.detach().numpy(), dense[made.numpy()], rtol=1e-9, atol=1e-9)
    rows = plans.rows.numpy() + case.layout.range(comm.rank)[0]
    np.testing.assert_array_equal(made.numpy(), rows)
    kept = torch.zeros(len(A), F, dtype=torch.float64)
    kept[rows] = torch.from_numpy(case.G[rows])
    if len(plans.layers) > lowest:
        H.backward(torch.from_numpy(case.G[rows]))
    comm.all_reduce(kept).wait()
    expected = kept.numpy()
    for _ in plans.layers[lowest:]:
        expected = A.T @ expected
    # Gradients of a vertex's clones add up to its gradient.
    summed = torch.zeros(len(A), F, dtype=torch.float64)
    summed.index_add_(0, plans.first, given_rows.grad)
    comm.all_reduce(summed).wait()
    np.testing.assert_allclose(summed.numpy(), expected, rtol=1e-9, atol=1e-9)


def check_all(rank: int, examples: int) -> None:
    comm = connect()

    @settings(max_examples=examples, derandomize=True, database=None, deadline=None)
    @given(
        n=st.integers(1, 40),
        density=st.sampled_from([0.0, 0.02, 0.1, 0.5]),
        seed=st.integers(0, 99),
        weighted=st.booleans(),
        prune=st.booleans(),
        propagated=st.booleans(),
        worthwhile=st.sampled_from([-1.0, 0.1]),
    )
    def examples_of(n, density, seed, weighted, prune, propagated, worthwhile):
        clones.WORTHWHILE = worthwhile
        case = Case(n, density, comm.size, seed, weighted=weighted)
        check(comm, case, layers=3, prune=prune, propagated=propagated)

    examples_of()


SLOW = [pytest.param(ranks, 60, marks=pytest.mark.slow) for ranks in (3, 8)]


@pytest.mark.parametrize(("ranks", "examples"), [(2, 20), (4, 10), *SLOW])
def test_every_clone_has_the_exact_rows(ranks, examples):
    run_ranks(check_all, ranks, examples)


def test_bytes_are_those_of_the_formula():
    """Of a vertex with c clones, 2 (c − 1) rows a product, and c − 1 in the last layer."""
    case = Case(60, 0.1, 4, 3, weighted=False)
    # Both directions of an edge lie in one part, and each vertex in its owner's.
    pattern = (case.pattern + case.pattern.T).tocsr()
    pattern.setdiag(1)
    pattern.sort_indices()
    case.pattern, case.A = pattern, pattern.toarray()
    rows, columns = pattern.nonzero()
    key = np.minimum(rows, columns) * 60 + np.maximum(rows, columns)
    owner = case.layout.owner(np.arange(60))
    case.labels = np.where(key % 3 == 0, key // 3 % 4, owner[np.minimum(rows, columns)])
    clones = np.zeros((4, 60), bool)
    for rank, (makes, holds) in enumerate(case.parts()):
        assert (makes == holds).all()
        clones[rank] = makes & (owner != rank)
    schemes = [case.scheme(rank, layers=3, prune=False) for rank in range(4)]
    plans = build_all(schemes, Axes.grid(4))
    sent = [sum(one.layers[k].plan.volume.send for one in plans) for k in range(3)]
    owned_alone = sum(  # owners whose part has none of a vertex's edges: their clones' sums
        int(clones[:, v].sum() == 1 and not case.parts()[owner[v]][0][v]) for v in range(60)
    )
    assert sent == [2 * clones.sum() - owned_alone] * 2 + [clones.sum()]


def trainings(path: str, *, sparse: bool) -> list[TrainConfig]:
    """Everything that counts vertices, or reads rows of its own."""
    options = {"epochs": 2, "hidden": 8, "dtype": "float64", "dropout": 0.3, "seed": 1}
    base = TrainConfig.of(dataset=path, algo="vertex-cut", partition="random", **options)
    if sparse:
        return [base.but(norm="graph"), base.but(model="sage", input_dropout=False)]
    return [
        base.but(norm="batch"),
        base.but(norm="pair", order="paper"),
        base.but(model="sage", jk="cat", residual=True, input_dropout=False),
        base.but(model="gin", norm="batch"),
        base.but(model="sage", inductive=True),
        base.but(task="links"),
        base.but(layers=1, input_dropout=False),
    ]


def compare(rank: int, path: str, sparse: bool) -> None:
    comm = connect()
    for config in trainings(path, sparse=sparse):
        exact, found = (train(config.but(clones=clones), comm) for clones in (False, True))
        losses = [[epoch["loss"] for epoch in one["history"]] for one in (exact, found)]
        np.testing.assert_allclose(*losses, rtol=1e-9, err_msg=str(config))
        assert found["volume"] == found["planned_volume"]
        assert found["volume"]["total_bytes"] <= exact["volume"]["total_bytes"], config


@pytest.mark.parametrize("sparse", [False, True])
def test_training_is_that_without_clones(tmp_path, sparse):
    path = str(write_dataset(tmp_path / "graph.npz", sparse=sparse))
    run_ranks(compare, 3, path, sparse)
