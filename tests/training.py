"""Oracle 3: the loss history of a plain dense GCN in one process, and runs that must equal it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F

from spgnn.comm import Communicator
from spgnn.kernels.reference import dropout_mask
from spgnn.nn.dropout import DropoutKeys
from spgnn.train import NodeClassification, TrainConfig, Trainer, prepare
from spgnn.train import report as reporting

EPOCHS = 6
TOLERANCE = 1e-4


def write_dataset(path: Path, *, sparse: bool = False, seed: int = 0) -> Path:
    """A small directed graph with everything that is awkward: loops, a hub, missing labels."""
    rng = np.random.default_rng(seed)
    n, features, classes = 61, 23, 4
    pattern = rng.random((n, n)) < 0.06
    pattern[7] = True
    pattern[:, 11] = True
    pattern[13] = pattern[:, 13] = False
    A = sp.csr_array(pattern)
    x = (rng.random((n, features)) < 0.3).astype(np.float32)
    y = rng.integers(-1, classes, n)
    y[0] = classes - 1
    role = rng.integers(0, 3, n)
    arrays = {
        "indptr": A.indptr.astype(np.int64),
        "indices": A.indices.astype(np.int32),
        "shape": np.array(A.shape),
        "directed": np.array(True),
        "y": y,
        "train_mask": role == 0,
        "val_mask": role == 1,
        "test_mask": role == 2,
    }
    if sparse:
        X = sp.csr_array(x)
        arrays |= {"x_indptr": X.indptr.astype(np.int64), "x_indices": X.indices.astype(np.int32)}
        arrays |= {"x_data": X.data, "x_shape": np.array(X.shape)}
    else:
        arrays["x"] = x
    np.savez(path, **arrays)
    return path


def reference_history(path: Path, config: TrainConfig) -> list[float]:
    """Losses of a GCN with dense float64 matrices and nothing of the engine but its seeds."""
    flags = SimpleNamespace(**config.flat())
    with np.load(path) as file:
        data = dict(file)
    n = int(data["shape"][0])
    ones = np.ones(len(data["indices"]))
    A = sp.csr_array((ones, data["indices"], data["indptr"]), shape=(n, n)).toarray()
    np.fill_diagonal(A, 1)
    degree = A.sum(axis=1)
    A_hat = torch.from_numpy(A / np.sqrt(degree[:, None] * degree[None, :]))
    if "x" in data:
        X = torch.from_numpy(data["x"]).double()
    else:
        triple = (data["x_data"], data["x_indices"], data["x_indptr"])
        X = torch.from_numpy(sp.csr_array(triple, shape=tuple(data["x_shape"])).toarray()).double()
    X = X / X.sum(dim=1, keepdim=True).clamp(min=1)
    y = torch.from_numpy(data["y"])
    chosen = torch.from_numpy(data["train_mask"]) & (y >= 0)
    widths = [X.shape[1], *[flags.hidden] * (flags.layers - 1), int(y.max()) + 1]
    generator = torch.Generator().manual_seed(flags.seed)
    weights, biases = [], []
    for f_in, f_out in pairwise(widths):
        bound = (6 / (f_in + f_out)) ** 0.5
        W = torch.empty(f_in, f_out).uniform_(-bound, bound, generator=generator)
        weights.append(W.double().requires_grad_())
        biases.append(torch.zeros(f_out, dtype=torch.float64, requires_grad=True))
    groups = [
        {"params": [weights[0], biases[0]], "weight_decay": flags.weight_decay},
        {"params": weights[1:] + biases[1:], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.Adam(groups, lr=flags.lr)
    losses = []
    for epoch in range(flags.epochs):
        H = X
        for layer, (W, b) in enumerate(zip(weights, biases, strict=True)):
            H = torch.relu(H) if layer else H
            key = DropoutKeys(torch.arange(n), flags.seed, epoch).key(layer)
            kept = dropout_mask(torch.arange(n), H.shape[1], key, flags.dropout)
            if layer or flags.input_dropout:
                H = H * kept / (1 - flags.dropout)
            H = A_hat @ H @ W + b
        loss = F.cross_entropy(H[chosen], y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def run(config: TrainConfig, comm: Communicator) -> tuple[list[float], dict[str, object]]:
    """Train on the ranks of `comm`; the losses and the report. Collective."""
    task = NodeClassification(config, prepare(config, comm), comm)
    trainer = Trainer(task, config.training, comm)
    trainer.run()
    report = reporting.assemble(config, trainer, 0)
    return [record["loss"] for record in report["history"]], report


def variants(path: Path, ranks: int, epochs: int = EPOCHS) -> list[TrainConfig]:
    """Runs that must all have the same history (apart from dropout)."""
    base = TrainConfig.of(
        dataset=path, epochs=epochs, eval_every=3, hidden=8, partition="random", seed=3
    )
    # What depends on the storage of features in even places, so that every second has it too.
    found = [
        base,
        base.but(partition="block"),
        base.but(order="paper"),
        base.but(cover="minimum"),
        base.but(dropout=0.5),
        base.but(cover="row"),
        base.but(layers=1),
        base.but(exchange="oblivious"),
        base.but(dropout=0.5, cover="minimum", overlap=False),
        base.but(ghosts=1, reach=False),
        base.but(ghosts=1, cover="minimum"),
        base.but(ghosts=1, dropout=0.5, input_dropout=False, layers=2),
        base.but(reach=False),
    ]
    for c in (2, 4):
        if ranks % c == 0:
            grid = base.but(algo="1.5d", c=c)
            found += [grid, grid.but(order="paper"), grid.but(cover="minimum")]
            found += [grid.but(dropout=0.5), grid.but(exchange="oblivious")]
            found += [grid.but(ghosts=1), grid.but(reach=False)]
    return found


def check_history(comm: Communicator, path: Path, every: int = 1, epochs: int = EPOCHS) -> None:
    """Each `every`-th variant equals the dense reference and moves the bytes it planned."""
    expected: dict[tuple[float, int, bool], list[float]] = {}
    for config in variants(path, comm.size, epochs)[::every]:
        kind = (config.model.dropout, config.model.layers, config.model.input_dropout)
        if kind not in expected:
            expected[kind] = reference_history(path, config)
        losses, report = run(config, comm)
        np.testing.assert_allclose(losses, expected[kind], rtol=TOLERANCE, err_msg=str(config))
        assert report["volume"] == report["planned_volume"], config
