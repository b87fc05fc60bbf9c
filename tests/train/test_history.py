"""The loss history does not depend on ranks, algorithm, partition, cover, order or storage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import spgnn
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data.npz import write_npz
from spgnn.testing import run_ranks
from tests.training import (
    EPOCHS,
    attending,
    check_history,
    other_models,
    reference_history,
    replicated,
    run,
    variants,
    write_dataset,
)

ALL, EVEN, ODD = slice(None), slice(0, None, 2), slice(1, None, 2)


def test_a_rank_whose_rows_are_all_needed_and_one_whose_are_not(tmp_path):
    """Both send the same of what a layer with two products, as wide as its input, multiplies."""
    n = 40
    ring = sp.coo_array((np.ones(n), (np.arange(n), np.roll(np.arange(n), 1))), (n, n)).tocsr()
    A, train = (ring + ring.T).tocsr(), np.arange(n) < n // 2 + 2
    rng = np.random.default_rng(0)
    arrays = {"x": rng.random((n, 8), np.float32), "y": rng.integers(0, 3, n)}
    masks = {"train_mask": train, "val_mask": ~train, "test_mask": ~train}
    graph = spgnn.data.from_scipy(A, **arrays, **masks)
    write_npz(graph, tmp_path / "ring.npz")
    (tmp_path / "halves").write_text("\n".join(str(int(i >= n // 2)) for i in range(n)))
    path = str(tmp_path / "ring.npz")
    config = TrainConfig.of(dataset=path, model="sage", hidden=16, epochs=3, dropout=0.0)
    apart = config.but(partition=str(tmp_path / "halves"))
    (alone,) = run_ranks(lambda rank: run(config, connect())[0], 1)
    losses, _ = run_ranks(lambda rank: run(apart, connect())[0], 2)
    assert losses == pytest.approx(alone, rel=1e-5)


# On three or four ranks each of the runs once, those that depend on how features are stored when
# sparse; the first 15 of `variants` are of 1D.
@pytest.mark.parametrize(
    ("listed", "ranks", "chosen", "sparse"),
    [
        (variants, 1, ALL, False),
        (variants, 3, EVEN, True),
        (variants, 4, ODD, False),
        (variants, 4, slice(16, None, 2), True),
        pytest.param(variants, 6, slice(3, None, 11), False, marks=pytest.mark.slow),
        (other_models, 1, ALL, True),
        (other_models, 4, ODD, False),
        (other_models, 4, EVEN, True),
        (attending, 1, EVEN, True),
        (attending, 3, EVEN, False),
        (attending, 4, slice(1, None, 5), True),
        pytest.param(attending, 8, ALL, True, marks=pytest.mark.slow),
    ],
)
def test_history_is_that_of_a_dense_model(tmp_path, listed, ranks, chosen, sparse):
    path = write_dataset(tmp_path / "graph.npz", sparse=sparse)
    epochs = 4 if listed is attending else EPOCHS
    run_ranks(lambda rank: check_history(connect(), path, chosen, epochs, listed), ranks)


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [(8, slice(2)), *(pytest.param(ranks, ALL, marks=pytest.mark.slow) for ranks in (8, 16, 32))],
)
def test_history_of_replicated_block_rows(tmp_path, ranks, chosen):
    def listed(path: Path, ranks: int, epochs: int) -> list[TrainConfig]:
        base = variants(path, 1, epochs)[0]
        return [one for c in (2, 4) if ranks % c**2 == 0 for one in replicated(base, c)]

    path = write_dataset(tmp_path / "graph.npz")
    run_ranks(lambda rank: check_history(connect(), path, chosen, 4, listed), ranks)


def with_recomputed_halo(rank: int, path: Path, c: int) -> tuple[list[float], dict]:
    algo = "1d" if c == 1 else "1.5d"
    config = TrainConfig.of(
        dataset=path,
        layers=2,
        hidden=8,
        epochs=4,
        recompute_halo=True,
        algo=algo,
        c=c,
        partition="random",
    )
    return run(config, connect())


@pytest.mark.parametrize("sparse", [False, True])
def test_two_layers_with_a_recomputed_halo_move_no_row(tmp_path, sparse):
    path = write_dataset(tmp_path / "graph.npz", sparse=sparse)
    losses, report = run_ranks(with_recomputed_halo, 4, path, 1)[0]
    expected = reference_history(path, TrainConfig.of(layers=2, hidden=8, epochs=4))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert report["volume"]["total_bytes"] == report["planned_volume"]["total_bytes"] == 0
    with np.load(path) as file:
        vertices, features = int(file["shape"][0]), 23
    assert 0 < report["recomputed_halo"]["total_rows"] < 3 * vertices
    assert (
        report["recomputed_halo"]["total_bytes"]
        == report["recomputed_halo"]["total_rows"] * features * 4
    )
    # In 1.5D as well: the halo takes the place of the whole exchange, partial sums included.
    (_, report), *_ = run_ranks(with_recomputed_halo, 4, path, 2)
    assert report["volume"]["total_bytes"] == 0


def test_work_is_that_of_the_rows_that_are_reached(tmp_path):
    """The training vertices are a third; the last layer multiplies their rows alone."""
    path = write_dataset(tmp_path / "graph.npz")
    config = TrainConfig.of(dataset=path, layers=2, hidden=8, epochs=1)
    (_, report), *_ = run_ranks(lambda rank: run(config, connect()), 1)
    with np.load(path) as file:
        A = sp.csr_array(
            (np.ones(len(file["indices"])), file["indices"], file["indptr"]), file["shape"]
        )
        wanted = file["train_mask"] & (file["y"] >= 0)
    A = (A + sp.eye_array(len(wanted))).tocsr()
    assert report["work"] == {
        "whole_nonzeros": A.nnz,
        "layer_nonzeros": [None, int(np.diff(A.indptr)[wanted].sum())],
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "step", "sparse"),
    [*((ranks, 1, sparse) for ranks in (1, 3, 4, 6, 16) for sparse in (False, True)), (64, 8, 0)],
)
def test_every_history(tmp_path, ranks, step, sparse):
    path, chosen = write_dataset(tmp_path / "graph.npz", sparse=sparse), slice(0, None, step)
    run_ranks(lambda rank: check_history(connect(), path, chosen), ranks)
