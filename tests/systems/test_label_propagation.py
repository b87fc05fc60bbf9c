"""Labels as features: the history of one dense process, whatever the ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from systems.label_propagation import LabelPropagation

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.hashing import uniform
from spgnn.nn.convolution import glorot_
from spgnn.progress import Stopwatch
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.report import assemble
from tests.training import (
    EPOCHS,
    TOLERANCE,
    dense_layer,
    dense_matrix,
    descend,
    initial_parameters,
    read,
    write_dataset,
)

SEED, RATE = 3, 0.6


def reference(path: Path) -> tuple[list[float], float]:
    """Losses, and the validation loss after the last epoch."""
    data = read(path)
    X, y, training = data.X, data.y, data.train_mask
    A_hat, several = dense_matrix(data.A, "gcn", "auto"), y.dim() == 2
    classes = y.shape[1] if several else int(y.max()) + 1
    Y = (y == 1).double() if several else F.one_hot(y.clamp(min=0), classes) * (y >= 0)[:, None]
    layers = initial_parameters("gcn", [X.shape[1], 8, classes], SEED)
    E = torch.empty(classes, X.shape[1])
    glorot_(E, torch.Generator().manual_seed(SEED))
    E = E.double().requires_grad_()

    def loss_of(shown: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        H = X + (Y.double() * shown[:, None]) @ E
        H = torch.relu(dense_layer("gcn", A_hat, H, *layers[0]))
        Z = dense_layer("gcn", A_hat, H, *layers[1])[asked]
        known = y[asked] >= 0
        if not several:
            return F.cross_entropy(Z[known], y[asked][known])
        return F.binary_cross_entropy_with_logits(Z[known], y[asked].double()[known])

    def of_epoch(epoch: int) -> torch.Tensor:
        draws = uniform(np.arange(data.n), SEED, f"labels shown in epoch {epoch}")
        drawn = torch.from_numpy(draws < RATE)
        return loss_of(training & drawn, training & ~drawn)

    losses = descend(layers, of_epoch, E)
    with torch.no_grad():
        return losses, float(loss_of(training, data.val_mask))


def runs(rank: int, path: Path) -> list[tuple[list[float], float, dict]]:
    comm, found = connect(), []
    base = TrainConfig.of(
        dataset=path,
        layers=2,
        hidden=8,
        epochs=EPOCHS,
        seed=SEED,
        partition="random",
        label_propagation=RATE,
    )
    configs = [base, base.but(cover="minimum", prune=False), base.but(order="paper")]
    if comm.size == 4:
        configs = [base, base.but(algo="1.5d", c=2), base.but(algo="vertex-cut")]
    for config in configs:
        task = LabelPropagation(config, training_graph(config, comm))
        trainer = Trainer(task, options=config.training)
        trainer.run()
        losses = [record["loss"] for record in trainer.history]
        report = assemble(config, trainer, 0, Stopwatch())
        found.append((losses, trainer.history[-1]["val_loss"], report))
    return found


@pytest.mark.parametrize(("ranks", "kind"), [(1, "x"), (4, "x"), (3, "s"), (3, "y")])
def test_history_is_that_of_a_dense_model(tmp_path, ranks, kind):
    """Of dense features, of sparse ones, and of several labels a vertex."""
    instead = {}
    if kind == "y":
        instead["y"] = np.random.default_rng(2).integers(-1, 2, (61, 3)).astype(np.int8)
    path = write_dataset(tmp_path / "graph.npz", sparse=kind == "s", **instead)
    dense = write_dataset(tmp_path / "dense.npz", **instead)
    expected, val_loss = reference(dense)
    for losses, found, report in run_ranks(runs, ranks, path)[0]:
        np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)
        assert found == pytest.approx(val_loss, rel=TOLERANCE)
        assert report["volume"] == report["planned_volume"]
