"""Train GraphSAGE with PyTorch Geometric, on one process or many.

python experiments/pyg/on_ranks.py [Cora | CiteSeer | PubMed]
torchrun --nproc-per-node 4 experiments/pyg/on_ranks.py
mpiexec -n 4 python experiments/pyg/on_ranks.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.datasets import KarateClub, Planetoid
from torch_geometric.nn import GraphSAGE

import spgnn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", help="of a set of Planetoid; else KarateClub")
    name = parser.parse_args().name
    data = Planetoid("data", name)[0] if name else KarateClub()[0]
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, 16, num_layers=2, out_channels=int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = spgnn.distribute(data, model=model)

    for epoch in range(1, 51):
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 10 == 0 and data.comm.rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
