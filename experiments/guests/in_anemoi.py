"""The graph transformer of Anemoi on ranks, its halo exchange replaced by ours.

torchrun --nproc-per-node 4 experiments/guests/in_anemoi.py

Anemoi cuts nodes by their numbers. In Morton order the busiest rank receives fewer rows.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.distributed as dist
from anemoi.models.distributed.balanced_partition import get_balanced_partition_sizes
from anemoi.models.distributed.shapes import GraphShardInfo
from anemoi.models.layers import block
from anemoi.models.layers.processor import GraphTransformerProcessor
from anemoi.utils.config import DotDict
from compared import compare
from scipy.spatial import cKDTree

from spgnn import Halo, RowLayout
from spgnn.partition import morton


def graph(in_order: bool) -> torch.Tensor:
    """Edges between near points of the unit square, both ways, by their targets."""
    points = np.random.default_rng(0).random((1200, 2))
    if in_order:
        points = points[np.argsort(morton(points, len(points)), kind="stable")]
    pairs = cKDTree(points).query_pairs(0.04, output_type="ndarray").T
    edges = torch.from_numpy(np.concatenate((pairs, pairs[::-1]), axis=1)).long()
    return edges[:, edges[1].argsort(stable=True)]


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = GraphTransformerProcessor(
        num_layers=4,
        num_channels=16,
        num_chunks=1,
        num_heads=4,
        mlp_hidden_ratio=2,
        edge_dim=3,
        layer_kernels=DotDict(),
        graph_attention_backend="pyg",
    ).double()
    its_own = block.halo_exchange

    def gradients(out: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(out.square().sum(), model.parameters())]
        )

    for in_order in (False, True):
        edges = graph(in_order)
        x = torch.randn(1200, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        attributes = x[edges[0], :3] - x[edges[1], :3]
        everything = GraphShardInfo(nodes=None, edges=None)
        block.halo_exchange = its_own
        alone = model(x, 1, everything, attributes, edges)
        gradients_alone = gradients(alone)

        sizes = get_balanced_partition_sizes(len(x), ranks)
        layout = RowLayout(np.cumsum([0, *sizes]))
        first, last = layout.range(rank)
        mine = (edges[1] >= first) & (edges[1] < last)
        halo = Halo.build(edges[:, mine], layout, dist.group.WORLD)
        block.halo_exchange = lambda x, info, group, halo=halo: halo(x)  # the shim
        shards = GraphShardInfo(nodes=sizes, edges=None)
        out = model(x[first:last], 1, shards, attributes, edges, dist.group.WORLD)
        of_parameters = gradients(out)
        dist.all_reduce(of_parameters)
        order = "Morton order" if in_order else "order of numbers"
        compare(f"output, {order}", out, alone[first:last], 1e-13)
        compare(f"gradients, {order}", of_parameters, gradients_alone, 1e-12)
        rows = torch.tensor(halo.received)
        dist.all_reduce(rows, dist.ReduceOp.MAX)
        if rank == 0:
            print(f"rows that the busiest rank receives, {order}: {rows}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
