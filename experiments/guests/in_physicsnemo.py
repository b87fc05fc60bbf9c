"""MeshGraphNet of PhysicsNeMo on ranks: the source rows of its edge blocks come from a halo.

torchrun --nproc-per-node 4 experiments/guests/in_physicsnemo.py
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.distributed as dist
from compared import compare
from physicsnemo.models.meshgraphnet import MeshGraphNet
from physicsnemo.nn.module.gnn_layers.mesh_edge_block import MeshEdgeBlock
from scipy.spatial import cKDTree
from torch_geometric.data import Data

from spgnn import Halo
from spgnn.partition import morton


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    points = np.random.default_rng(0).random((600, 2))
    pairs = cKDTree(points).query_pairs(0.07, output_type="ndarray").T
    edges = torch.from_numpy(np.concatenate((pairs, pairs[::-1]), axis=1)).long()
    at = torch.from_numpy(points)
    way = at[edges[0]] - at[edges[1]]
    fields = torch.randn(len(points), 4, dtype=torch.float64)
    small = {
        "hidden_dim_processor": 16,
        "hidden_dim_node_encoder": 16,
        "hidden_dim_edge_encoder": 16,
    }
    model = MeshGraphNet(4, 2, 3, processor_size=4, hidden_dim_node_decoder=16, **small).double()

    def gradients(loss: torch.Tensor) -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])

    alone = model(fields, way, Data(edge_index=edges, num_nodes=len(points)))
    gradients_alone = gradients(alone.square().sum())

    owner = torch.from_numpy(morton(points, dist.get_world_size()))
    mine = owner[edges[1]] == dist.get_rank()
    halo = Halo.build(edges[:, mine], owner, dist.group.WORLD)
    for block in model.modules():  # begin of the shim
        if isinstance(block, MeshEdgeBlock):
            block.register_forward_pre_hook(lambda _, x: (x[0], (halo(x[1]), x[1]), x[2]))
            block.register_forward_hook(lambda _, x, out: (out[0], out[1][1]))  # end of the shim
    own = halo.target_ids
    graph = Data(edge_index=halo.local_edge_index, num_nodes=halo.own)
    out = model(fields[own], way[mine], graph)
    of_parameters = gradients(out.square().sum())
    dist.all_reduce(of_parameters)
    compare("output", out, alone[own], 1e-13)
    compare("gradients of parameters", of_parameters, gradients_alone, 1e-12)
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
