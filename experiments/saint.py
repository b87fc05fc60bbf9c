"""GraphSAINT (Zeng et al. 2020): each step trains on a subgraph that random walks meet.

    python experiments/saint.py --dataset FILE [--epochs 12] [--hidden 32] [--json FILE]

One process. Losses are weighted by how often a vertex comes, sums over neighbours by how often an
edge does, both estimated from 50 subgraphs (`systems/saint.py`). An epoch has as many steps as
there are vertices in it; accuracies are those of the whole graph.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from systems.saint import SaintSampler

import spgnn
from spgnn.command import run
from spgnn.data import load_dataset
from spgnn.frontend import masks_of
from spgnn.memory import peak_bytes, resident_bytes

HOPS = 2


def train(options: Any) -> dict[str, Any]:
    """Train GraphSAGE, and report as the other programs do."""
    idle, record = resident_bytes(), load_dataset(options.dataset)
    graph, size = spgnn.distribute(record, partition="block"), record.adjacency.shape[0]
    assert graph.y is not None
    masks = masks_of(graph.share.data, graph.vertex_ids, graph.y, 0)  # as other programs split
    masks = [mask & (graph.y >= 0) for mask in masks]
    sampler = SaintSampler(
        record.adjacency, "walk", options.roots, length=HOPS, layers=HOPS, estimates=50
    )
    train_mask, weights = masks[0], sampler.node_weights
    share = size / int(train_mask.sum())
    model = spgnn.nn.GraphSAGE(graph.num_features, options.hidden, HOPS, graph.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    # Whatever its batch size, a step is a subgraph: so many make an epoch.
    met = options.roots * (HOPS + 1)
    loader = spgnn.NeighborLoader(record, [], batch_size=met, sampler=sampler)
    history, seconds = list[dict[str, float]](), list[float]()
    for epoch in range(options.epochs):
        started = time.perf_counter()
        model.train()
        for batch in loader:
            mask = train_mask[batch.n_id]
            rows = model(batch.x, batch.layers)[mask]
            losses = F.cross_entropy(rows, batch.y[mask], reduction="none")
            optimizer.zero_grad()
            (share * (weights[batch.n_id[mask]] * losses).sum()).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - started)
        right = (spgnn.infer(model, graph).argmax(1) == graph.y).float()
        names = ("train_acc", "val_acc", "test_acc")
        scores = {n: float(right[mask].mean()) for n, mask in zip(names, masks, strict=True)}
        history.append({"epoch": epoch, **scores})
    return {
        "world_size": 1,
        "history": history,
        "best": max(history, key=lambda row: row["val_acc"]),
        "epoch_seconds": {"median": median(seconds)},
        "volume": {"total_bytes": 0},
        "memory": {"max_rank_peak_above_idle_bytes": peak_bytes() - idle},
    }


def main(arguments: list[str] | None = None) -> int:
    """Train; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--roots", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)

    def body() -> None:
        report = train(options)
        print(f"test accuracy {report['best']['test_acc']:.4f}")
        if options.json:
            options.json.write_text(json.dumps(report))

    return run(body)


if __name__ == "__main__":
    sys.exit(main())
