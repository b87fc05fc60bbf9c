"""A search by Optuna whose trials train on all ranks: rank 0 draws, every rank trains.

torchrun --nproc-per-node 4 experiments/guests/with_optuna.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import optuna
import torch
import torch.distributed as dist
import torch.nn.functional as F
from compared import compare
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GraphSAGE

import spgnn

TRIALS = 6


def loss_of(data: Any, graph: Any, width: int, rate: float) -> float:
    """The loss over all vertices after 10 epochs; on ranks if there is a graph."""
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, width, num_layers=2, out_channels=4).double()
    if graph is not None:
        graph.synchronise(model)
        data = graph
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def study(
    value: Callable[[int, float], float], share: Callable[[list[Any]], None]
) -> list[list[float]]:
    """Widths, rates and losses of the trials."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    searched = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=3))
    rows = []
    for _ in range(TRIALS):
        trial = searched.ask()
        drawn = [
            trial.suggest_int("width", 4, 32),
            trial.suggest_float("rate", 1e-3, 0.1, log=True),
        ]
        share(drawn)  # the shim: what rank 0 drew
        loss = value(*drawn)
        searched.tell(trial, loss)
        rows.append([*drawn, loss])
    return rows


def main() -> None:
    dist.init_process_group("gloo")
    data = KarateClub()[0]
    data.x = data.x.double()
    graph = spgnn.distribute(data, group=dist.group.WORLD)
    rows = study(lambda *drawn: loss_of(data, graph, *drawn), dist.broadcast_object_list)
    alone = study(lambda *drawn: loss_of(data, None, *drawn), lambda drawn: None)
    compare(
        "widths, rates and losses of 6 trials",
        *(torch.tensor(t, dtype=torch.float64) for t in (rows, alone)),
        1e-12,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
