"""Metrics of torchmetrics over own vertices, which it adds up over ranks.

torchrun --nproc-per-node 4 experiments/guests/in_torchmetrics.py
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from compared import compare
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GraphSAGE
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

import spgnn


def main() -> None:
    dist.init_process_group("gloo")
    data = KarateClub()[0]
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, 16, num_layers=2, out_channels=4).double().eval()
    data.x = data.x.double()
    graph = spgnn.distribute(data, group=dist.group.WORLD, model=model)

    def metrics(alone: bool) -> MetricCollection:
        classes = (
            MulticlassAccuracy,
            MulticlassF1Score,
            MulticlassAUROC,
            MulticlassConfusionMatrix,
        )
        how = {"distributed_available_fn": lambda: False} if alone else {}
        return MetricCollection([each(num_classes=4, **how) for each in classes])

    on_ranks, alone = metrics(alone=False), metrics(alone=True)
    with torch.no_grad():
        on_ranks.update(model(graph.x, graph.edge_index), graph.y)
        alone.update(model(data.x, data.edge_index), data.y)
    expected = alone.compute()
    for name, value in on_ranks.compute().items():
        # The same counts; an area is summed in float32 over scores in another order.
        within = 1e-6 if "AUROC" in name else 0.0
        compare(name, value.double(), expected[name].double(), within)
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
