"""Train an ensemble of GraphSAGE models on a mesh: each row is a member, with a graph of its own.

torchrun --nproc-per-node 4 experiments/guests/on_a_mesh.py [members]

The last layer of each member is sharded by FSDP2 over the ranks of its row; the first one is the
same on all of them.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GraphSAGE

import spgnn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("members", nargs="?", type=int, default=1)
    members = parser.parse_args().members
    dist.init_process_group("gloo")
    shape = (members, dist.get_world_size() // members)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("member", "data"))
    member = mesh.get_local_rank("member")

    data = KarateClub()[0]
    torch.manual_seed(member)
    model = GraphSAGE(data.num_features, 16, num_layers=2, out_channels=int(data.y.max()) + 1)
    graph = spgnn.distribute(data, group=mesh["data"], model=model.convs[0])
    labels = graph.y
    assert labels is not None
    fully_shard(model.convs[1], mesh=mesh["data"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)

    for epoch in range(1, 51):
        out = model(graph.x, graph.edge_index)
        loss = graph.mean(F.cross_entropy(out, labels, reduction="none"), graph.train_mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 10 == 0 and dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}", flush=True)

    # All rows of the mesh cut the graph alike, so a column of it has the same vertices.
    votes = out.detach().softmax(1)
    dist.all_reduce(votes, group=mesh.get_group("member"))
    right = graph.mean((votes.argmax(1) == labels).float())
    if dist.get_rank() == 0:
        print(f"accuracy of {members} together: {right:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
