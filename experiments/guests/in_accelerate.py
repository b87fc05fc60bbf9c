"""Train GraphSAGE under Accelerate, which makes the process group and averages gradients.

torchrun --nproc-per-node 4 experiments/guests/in_accelerate.py
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from compared import compare
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GraphSAGE

import spgnn


def trained(accelerator: Accelerator | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of 20 epochs, and the last parameters."""
    data = KarateClub()[0]
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, 16, num_layers=2, out_channels=4).double()
    data.x = data.x.double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if accelerator:
        model, optimizer = accelerator.prepare(model, optimizer)
        graph = spgnn.distribute(data, group=torch.distributed.group.WORLD)  # the shim
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        if accelerator:
            out = model(graph.x, graph.edge_index)
            each = F.cross_entropy(out, graph.y, reduction="none")
            loss = graph.mean(each, graph.train_mask)
            accelerator.backward(loss)
        else:
            out = model(data.x, data.edge_index)
            loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
            loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), torch.cat([p.detach().flatten() for p in model.parameters()])


def main() -> None:
    accelerator = Accelerator(cpu=True)
    (losses, parameters), (losses_alone, parameters_alone) = trained(accelerator), trained(None)
    compare("losses of 20 epochs", losses, losses_alone, 1e-13)
    compare("parameters", parameters, parameters_alone, 1e-11)
    accelerator.end_training()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
