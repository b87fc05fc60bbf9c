"""A periodic crystal of two elements, for programs that learn energies and forces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from matscipy.neighbours import neighbour_list
from torch import Tensor

from spgnn import Halo
from spgnn.partition import morton


@dataclass
class Crystal:
    """Atoms and their neighbours: an edge goes from a neighbour to the atom that sees it."""

    atoms: Atoms
    positions: Tensor  # [n, 3]
    species: Tensor  # [n], 0 or 1
    edges: Tensor  # [2, e]
    shifts: Tensor  # [e, 3], whole cells between the ends of an edge

    @classmethod
    def build(cls, cutoff: float) -> Crystal:
        """256 atoms of copper and gold, shaken."""
        atoms = bulk("Cu", cubic=True) * (4, 4, 4)
        numbers = np.random.default_rng(0).choice([29, 79], len(atoms))
        atoms.set_atomic_numbers(numbers)
        atoms.rattle(0.1, seed=0)
        ends, starts, shifts = neighbour_list("ijS", atoms, cutoff)
        return cls(
            atoms,
            torch.from_numpy(atoms.positions.copy()),
            torch.from_numpy(numbers == 79).long(),
            torch.from_numpy(np.stack((starts, ends))).long(),
            torch.from_numpy(shifts).double(),
        )

    @property
    def cell(self) -> Tensor:
        """Its three edges, [3, 3]."""
        return torch.from_numpy(self.atoms.cell.array)

    def vectors(self, positions: Tensor, edges: Tensor, shifts: Tensor) -> Tensor:
        """From the atom that sees to the neighbour, [e, 3]."""
        return positions[edges[0]] - positions[edges[1]] + shifts @ self.cell

    def share(self, rank: int, ranks: int) -> tuple[Halo, Tensor]:
        """The halo of this rank's atoms, by Morton order, and which edges are its own."""
        owner = torch.from_numpy(morton(self.positions.numpy(), ranks))
        mine = owner[self.edges[1]] == rank
        return Halo.build(self.edges[:, mine], owner), mine
