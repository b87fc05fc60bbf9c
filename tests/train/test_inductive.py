"""Training on the subgraph of the training vertices, evaluation on the whole graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.testing import run_ranks
from tests.training import EPOCHS, TOLERANCE, reference_history, run, write_dataset


def subgraph(path: Path) -> Path:
    """What is left of a data set if only its training vertices are."""
    with np.load(path) as file:
        data = dict(file)
    kept = data["train_mask"]
    ones = np.ones(len(data["indices"]))
    A = sp.csr_array((ones, data["indices"], data["indptr"]), shape=tuple(data["shape"]))
    A = A[kept][:, kept].tocsr()
    rows = {name: data[name][kept] for name in ("x", "y", "train_mask")}
    arrays = {"indptr": A.indptr, "indices": A.indices, "shape": np.array(A.shape)}
    np.savez(path.parent / "subgraph.npz", directed=np.array(True), **arrays, **rows)
    return path.parent / "subgraph.npz"


def configured(path: Path, ranks: int) -> list[TrainConfig]:
    base = TrainConfig.of(
        dataset=path, epochs=EPOCHS, hidden=8, layers=3, partition="random", inductive=True
    )
    if ranks == 1:
        return [base, base.but(model="sage")]
    if ranks == 3:
        found = [base, base.but(cover="minimum", recompute_halo=True), base.but(model="gat")]
        return [*found, base.but(algo="vertex-cut")]
    found = [base.but(prune=False, order="paper"), base.but(algo="1.5d", c=2)]
    return [*found, base.but(algo="feature", c=2), base.but(algo="3d", c=2)]


def runs(rank: int, path: Path) -> list[tuple[list[float], dict]]:
    comm = connect()
    return [run(config, comm) for config in configured(path, comm.size)]


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_history_is_that_of_the_subgraph_alone(tmp_path, ranks):
    path = write_dataset(tmp_path / "graph.npz")
    alone = subgraph(path)
    for config, (losses, report) in zip(
        configured(path, ranks), run_ranks(runs, ranks, path)[0], strict=True
    ):
        expected = reference_history(alone, config)
        np.testing.assert_allclose(losses, expected, rtol=TOLERANCE, err_msg=str(config))
        assert report["volume"] == report["planned_volume"]


def scored(rank: int, path: Path, inductive: bool) -> list[dict]:
    config = TrainConfig.of(dataset=path, epochs=1, lr=0, layers=2, inductive=inductive)
    return run(config, connect())[1]["history"]


def test_evaluation_is_that_of_the_whole_graph(tmp_path):
    """Weights that stay as they are have the same scores, whatever they were trained on."""
    path = write_dataset(tmp_path / "graph.npz")
    (whole,), (one,) = run_ranks(scored, 1, path, False)[0], run_ranks(scored, 1, path, True)[0]
    (three,) = run_ranks(scored, 3, path, True)[0]
    assert one["loss"] != whole["loss"]
    for record in (one, three):
        for name in ("val_loss", "train_acc", "val_acc", "test_acc"):
            assert record[name] == pytest.approx(whole[name], rel=1e-5)


def dropped(rank: int, path: Path, **flags) -> list[float]:
    config = TrainConfig.of(
        dataset=path, epochs=4, layers=2, dropout=0.5, inductive=True, partition="random", **flags
    )
    return run(config, connect())[0]


@pytest.mark.parametrize("sparse", [False, True])
def test_dropout_goes_by_original_ids(tmp_path, sparse):
    path = write_dataset(tmp_path / "graph.npz", sparse=sparse)
    one = run_ranks(dropped, 1, path)[0]
    three = run_ranks(lambda rank: dropped(rank, path, prune=False), 3)[0]
    np.testing.assert_allclose(one, three, rtol=TOLERANCE)
