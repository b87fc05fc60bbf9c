"""Energies and forces of MACE on ranks, its exchange for LAMMPS replaced by a halo.

torchrun --nproc-per-node 4 experiments/guests/in_mace.py
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.distributed as dist
from atoms import Crystal
from compared import compare
from mace import modules
from mace.modules import blocks  # before e3nn: it sets how that is read

from e3nn import o3  # isort: skip


class Exchange:  # begin of the shim
    apply = staticmethod(lambda rows, halo: halo(rows[: halo.own]))


blocks.LAMMPS_MP = Exchange  # end of the shim


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    crystal = Crystal.build(cutoff=4.0)
    block = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    model = modules.ScaleShiftMACE(
        r_max=4.0,
        num_bessel=6,
        num_polynomial_cutoff=5,
        max_ell=2,
        interaction_cls=block,
        interaction_cls_first=block,
        num_interactions=2,
        num_elements=2,
        hidden_irreps=o3.Irreps("8x0e + 8x1o"),
        MLP_irreps=o3.Irreps("8x0e"),
        gate=torch.nn.functional.silu,
        atomic_energies=np.array([-1.0, -2.0]),
        avg_num_neighbors=18,
        atomic_numbers=[29, 79],
        correlation=2,
        radial_type="bessel",
        atomic_inter_scale=1.0,
        atomic_inter_shift=0.0,
    )
    one_hot = torch.nn.functional.one_hot(crystal.species, 2).double()
    n = len(crystal.positions)
    everything = {
        "positions": crystal.positions.clone(),
        "cell": crystal.cell,
        "shifts": -crystal.shifts @ crystal.cell,  # its vectors go along the edge
        "unit_shifts": -crystal.shifts,
        "edge_index": crystal.edges,
        "node_attrs": one_hot,
        "batch": torch.zeros(n, dtype=torch.int64),
        "ptr": torch.tensor([0, n]),
    }
    alone = model(everything, compute_force=True)

    halo, mine = crystal.share(dist.get_rank(), dist.get_world_size())
    own = halo.target_ids
    positions = crystal.positions[own].requires_grad_()
    local = halo.local_edge_index
    out = model(
        {
            "vectors": -crystal.vectors(halo(positions), local, crystal.shifts[mine]),
            "node_attrs": one_hot[halo.ids],
            "edge_index": local,
            "batch": torch.zeros(halo.own, dtype=torch.int64),
            "lammps_class": halo,
            "natoms": (halo.own, halo.received),
        },
        compute_force=False,
        lammps_mliap=True,
    )
    energies = out["node_energy"]
    (gradient,) = torch.autograd.grad(energies.sum(), positions)
    compare("energies of atoms", energies, alone["node_energy"][own], 1e-14)
    compare("forces", -gradient, alone["forces"][own], 1e-13)
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
