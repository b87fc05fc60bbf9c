"""Training in other precisions: what is sent and kept, and how far the losses go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.vertices import NodeClassification
from tests.training import reference_history, run, variants, write_dataset

WAYS = (
    {},
    {"dropout": 0.5, "cover": "minimum"},
    {"recompute_halo": True, "layers": 2},
    {"order": "auto", "algo": "vertex-cut"},
)


def check(rank: int, path: Path, model: str, ways: slice) -> None:
    """Losses near those of float32, half of its bytes, and as planned. Collective."""
    comm = connect()
    base = variants(path, comm.size, epochs=4)[0].but(model=model)
    for options in WAYS[ways]:
        config = base.but(**options)
        exact, wide = run(config, comm)
        losses, narrow = run(config.but(dtype="bfloat16"), comm)
        np.testing.assert_allclose(losses, exact, rtol=0.03, err_msg=str(options))
        assert losses != exact
        assert narrow["volume"] == narrow["planned_volume"], options
        assert 2 * narrow["volume"]["total_bytes"] == wide["volume"]["total_bytes"], options


@pytest.mark.parametrize(
    ("model", "sparse", "ways"),
    [
        ("gcn", False, slice(None)),
        ("gcn", True, slice(0, 2)),
        ("sage", False, slice(1, 3)),
        ("gin", True, slice(2, 4)),
    ],
)
def test_half_of_the_bytes(tmp_path, model, sparse, ways):
    path = write_dataset(tmp_path / "graph.npz", sparse=sparse)
    run_ranks(check, 3, path, model, ways)


def losses_of(rank: int, config: TrainConfig) -> list[float]:
    return run(config, connect())[0]


@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_double_precision_is_the_dense_reference(tmp_path, model):
    """But for scalings and features, which were rounded to float32 when they were read."""
    path = write_dataset(tmp_path / "graph.npz")
    config = TrainConfig.of(
        dataset=path, epochs=5, hidden=8, model=model, dropout=0.3, dtype="float64"
    )
    found = run_ranks(losses_of, 2, config)[0]
    np.testing.assert_allclose(found, reference_history(path, config), rtol=1e-6)


def kept(rank: int, path: Path, precision: str) -> tuple[set[torch.dtype], torch.dtype]:
    """Of parameters and moments; of the features."""
    config = TrainConfig.of(dataset=path, epochs=1, dtype=precision)
    comm = connect()
    task = NodeClassification(config, training_graph(config, comm))
    trainer = Trainer(task, options=config.training)
    trainer.run()
    state = [t for s in trainer.optimizer.state.values() for k, t in s.items() if k != "step"]
    weights = {t.dtype for t in (*task.model.parameters(), *state)}
    return weights, task.data.X.AX_local.dtype


@pytest.mark.parametrize(
    ("precision", "weights"), [("bfloat16", torch.float32), ("float64", torch.float64)]
)
def test_weights_are_never_rounded_to_sixteen_bits(tmp_path, precision, weights):
    path = write_dataset(tmp_path / "graph.npz")
    assert run_ranks(kept, 1, path, precision) == [({weights}, getattr(torch, precision))]
