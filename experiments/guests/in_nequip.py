"""Energies and forces of NequIP on ranks, its exchange of ghost atoms replaced by a halo.

torchrun --nproc-per-node 4 experiments/guests/in_nequip.py
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import torch
import torch.distributed as dist
from atoms import Crystal
from compared import compare
from nequip.data import AtomicDataDict
from nequip.model import NequIPGNNModel
from nequip.nn._ghost_exchange_base import NoOpGhostExchangeModule
from nequip.utils.global_state import set_global_state


def exchange(module, data, ghost_included):  # begin of the shim
    if ranks := data.get(AtomicDataDict.LMP_MLIAP_DATA_KEY):
        data[module.field] = ranks.halo(data[module.field][: ranks.nlocal])
    return data


NoOpGhostExchangeModule.forward = exchange  # end of the shim


def main() -> None:
    dist.init_process_group("gloo")
    set_global_state()
    crystal = Crystal.build(cutoff=4.0)
    model = NequIPGNNModel(
        seed=0,
        model_dtype="float64",
        r_max=4.0,
        type_names=["Cu", "Au"],
        num_layers=3,
        l_max=2,
        num_features=8,
        radial_mlp_width=16,
        avg_num_neighbors=18.0,
    )
    alone = model(
        {
            "pos": crystal.positions.clone(),
            "cell": crystal.cell[None],
            "edge_index": crystal.edges.flip(0),  # theirs goes from an atom to its neighbour
            "edge_cell_shift": crystal.shifts,
            "atom_types": crystal.species,
            "batch": torch.zeros(len(crystal.positions), dtype=torch.int64),
            "num_atoms": torch.tensor([len(crystal.positions)]),
        }
    )

    halo, mine = crystal.share(dist.get_rank(), dist.get_world_size())
    own = halo.target_ids
    positions = crystal.positions[own].requires_grad_()
    local = halo.local_edge_index
    energy_alone = model.model.func  # without its own derivatives
    out = energy_alone(
        {
            "edge_vectors": crystal.vectors(halo(positions), local, crystal.shifts[mine]),
            "edge_index": local.flip(0),
            "atom_types": crystal.species[halo.ids],
            AtomicDataDict.LMP_MLIAP_DATA_KEY: SimpleNamespace(halo=halo, nlocal=halo.own),
            AtomicDataDict.NUM_LOCAL_GHOST_NODES_KEY: torch.tensor([halo.own, halo.received]),
        }
    )
    energies = out["atomic_energy"][: halo.own]
    (gradient,) = torch.autograd.grad(energies.sum(), positions)
    compare("energies of atoms", energies, alone["atomic_energy"][own], 1e-14)
    compare("forces", -gradient, alone["forces"][own], 1e-13)
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
