"""Energy and forces of fairchem's UMA on ranks, its all-to-all replaced by a halo.

torchrun --nproc-per-node 4 experiments/guests/in_fairchem.py
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import torch
import torch.distributed as dist
from atoms import Crystal
from compared import compare
from fairchem.core.common import gp_utils
from fairchem.core.datasets.atomic_data import AtomicData
from fairchem.core.models.uma import escn_md, escn_md_block

from spgnn import Halo


def context(edge_index, rank_assignments, **_):  # begin of the shim
    halo = Halo.build(edge_index, rank_assignments, gp_utils.get_gp_group())
    return SimpleNamespace(halo=halo, edge_index_local=halo.local_edge_index)


def exchange_by_halo() -> None:
    escn_md.build_gp_context = context
    escn_md_block.all_to_all_collect = lambda x, at: at.halo(x)[at.halo.own :]  # end of the shim


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    atoms = Crystal.build(cutoff=4.0).atoms
    backbone = escn_md.eSCNMDBackbone(
        sphere_channels=8,
        hidden_channels=8,
        edge_channels=8,
        num_distance_basis=8,
        num_layers=2,
        cutoff=4.0,
        max_neighbors=100,
        otf_graph=True,
        direct_forces=False,
        use_dataset_embedding=False,
    ).eval()
    head = escn_md.MLP_EFS_Head(backbone, wrap_property=False).eval()

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        data = AtomicData.from_ase(atoms, task_name="omat", target_dtype=torch.float64)
        data["pos"].requires_grad_()
        out = head(data, backbone(data))
        return out["energy"], out["forces"]

    energy, forces = run()
    ranks = dist.get_world_size()
    gp_utils.setup_gp({"gp_gpus": ranks, "distributed_backend": "gloo"})
    how = {"mode": "all_to_all", "partition": "spatial"}
    gp_utils.set_gp_config(gp_utils.GraphParallelConfig(group_size=ranks, **how))
    theirs = run()
    exchange_by_halo()
    ours = run()
    compare("energy", ours[0], energy, 1e-14)
    compare("forces", ours[1], forces, 1e-12)
    compare("forces, by its own exchange", theirs[1], forces, 1e-12)
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
