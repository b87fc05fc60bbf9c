"""Learn an energy of atoms and its forces, on one process or many; neighbours change at every step.

python experiments/halo/molecules.py
torchrun --nproc-per-node 4 experiments/halo/molecules.py
mpiexec -n 4 python experiments/halo/molecules.py

Forces are derivatives of the energy, and the loss compares forces: its gradient has second
derivatives, which go through the exchange of positions and of embeddings. Losses are the same on
any number of processes.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

import spgnn
from spgnn.comm import Communicator
from spgnn.partition import morton

CUTOFF = 1.6  # the least distance of atoms is about 1


class Energy(nn.Module):
    """Continuous-filter convolutions (Schütt et al., SchNet, 2017), an energy for each atom."""

    def __init__(self, species: int = 2, width: int = 16, radial: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(species, width)
        self.filters = nn.ModuleList(nn.Linear(radial, width) for _ in range(2))
        self.updates = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.energy = nn.Linear(width, 1)
        self.register_buffer("centres", torch.linspace(0.8, CUTOFF, radial, dtype=torch.float64))

    def forward(self, positions: Tensor, species: Tensor, halo: spgnn.Halo) -> Tensor:
        """Energies of own atoms, [own]."""
        sources, targets = halo.local_edge_index
        lengths = (halo(positions)[sources] - positions[targets]).norm(dim=1, keepdim=True)
        smooth = (1 + torch.cos(torch.pi * lengths / CUTOFF)) / 2
        radial = torch.exp(-10 * (lengths - self.centres) ** 2) * smooth
        x = self.embedding(species)
        for of_edges, update in zip(self.filters, self.updates, strict=True):
            messages = halo(x)[sources] * of_edges(radial)
            x = x + torch.tanh(update(torch.zeros_like(x).index_add(0, targets, messages)))
        energies: Tensor = self.energy(x)[:, 0]
        return energies


def pair_energy(positions: Tensor, species: Tensor, halo: spgnn.Halo) -> Tensor:
    """What is learnt: half of a Morse potential of each pair, [own]."""
    sources, targets = halo.local_edge_index
    lengths = (halo(positions)[sources] - positions[targets]).norm(dim=1)
    depth = 1.0 + 0.5 * (halo(species)[sources] + species[targets])
    pairs = depth * ((1 - torch.exp(1.1 - lengths)) ** 2 - 1) * (1 - lengths / CUTOFF) ** 2 / 2
    return positions.new_zeros(len(positions)).index_add(0, targets, pairs)


def with_forces(energies: Tensor, positions: Tensor, learn: bool) -> tuple[Tensor, Tensor]:
    """Energies of own atoms, and forces: what other ranks' energies pull at them comes back too."""
    (slope,) = torch.autograd.grad(energies.sum(), positions, create_graph=learn)
    return energies, -slope


def neighbours(everyone: np.ndarray, own: np.ndarray) -> Tensor:
    """Pairs (source, target) within the cutoff, whose targets are own atoms."""
    near = cKDTree(everyone).query_ball_point(everyone[own], CUTOFF)
    targets = np.repeat(own, [len(each) for each in near])
    pairs = np.stack((np.concatenate([[], *near]).astype(np.int64), targets))
    return torch.from_numpy(pairs[:, pairs[0] != pairs[1]])


def losses(comm: Communicator, atoms: int = 216, steps: int = 8) -> Iterator[float]:
    """Losses of some steps, as they come. Collective."""
    draw = np.random.default_rng(0)
    side = round(atoms ** (1 / 3))
    lattice = np.stack(np.unravel_index(np.arange(side**3), (side,) * 3), axis=1)
    species = torch.from_numpy(draw.integers(2, size=len(lattice)))
    owner = morton(lattice, comm.size)
    own = np.flatnonzero(owner == comm.rank)
    torch.manual_seed(0)
    model = Energy().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    halo = None
    for _ in range(steps):
        everyone = lattice + 0.1 * draw.standard_normal(lattice.shape)  # as if they had moved
        edges = neighbours(everyone, own)
        if halo is None:
            halo = spgnn.Halo.build(edges, owner, comm)
        else:
            halo.rebuild(edges)
        positions = torch.from_numpy(everyone[own]).requires_grad_()
        given = positions, species[own], halo
        energies, forces = with_forces(pair_energy(*given), positions, learn=False)
        guess, pull = with_forces(model(*given), positions, learn=True)
        error = (guess - energies.detach()) ** 2 + (pull - forces).square().sum(1)
        loss = error.sum() / len(lattice)  # this rank's share
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # shares add up, and so do gradients
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            comm.all_reduce(parameter.grad).wait()
        optimizer.step()
        total = loss.detach().clone()
        comm.all_reduce(total).wait()
        yield float(total)


def main() -> None:
    """Print the losses."""
    comm = spgnn.connect()
    for step, loss in enumerate(losses(comm, atoms=1000, steps=50)):
        if comm.rank == 0 and step % 5 == 0:
            print(f"step {step}: loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
