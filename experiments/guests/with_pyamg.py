"""Multigrid of PyAMG whose levels are distributed matrices, alone and before conjugate gradients.

torchrun --nproc-per-node 4 experiments/guests/with_pyamg.py

PyAMG coarsens the matrix; smoothing, restriction and prolongation run on ranks. Each rank has its
rows of every level, and the coarsest level whole.
"""

from __future__ import annotations

import argparse

import numpy as np
import pyamg
import scipy.sparse as sp
import torch
import torch.distributed as dist
from compared import compare
from torch import Tensor

from spgnn import Halo, RowLayout

OMEGA = 0.6


class Level:  # begin of the shim
    """A matrix by rows, between two layouts."""

    def __init__(self, matrix: sp.csr_matrix, rows: RowLayout, columns: RowLayout) -> None:
        first, last = rows.range(dist.get_rank())
        mine = sp.csr_array(matrix)[first:last].tocoo()
        edges = torch.from_numpy(np.stack((mine.col, mine.row + first)).astype(np.int64))
        halo = Halo.build(edges, columns, dist.group.WORLD, target_owner=rows)
        self.matrix = halo.matrix(torch.from_numpy(mine.data))

    def __call__(self, x: Tensor) -> Tensor:
        return self.matrix @ x  # end of the shim


class Cycle:
    """V-cycles with one Jacobi step before and after each coarse correction."""

    def __init__(self, hierarchy: pyamg.multilevel.MultilevelSolver) -> None:
        self.layouts = [
            RowLayout.even(at.A.shape[0], dist.get_world_size()) for at in hierarchy.levels
        ]
        self.levels = []
        for at, fine, coarse in zip(hierarchy.levels, self.layouts, self.layouts[1:], strict=False):
            inverse = 1 / torch.from_numpy(at.A.diagonal()[slice(*fine.range(dist.get_rank()))])
            parts = Level(at.A, fine, fine), Level(at.R, coarse, fine), Level(at.P, fine, coarse)
            self.levels.append((*parts, OMEGA * inverse[:, None]))
        self.coarsest = torch.from_numpy(np.linalg.pinv(hierarchy.levels[-1].A.toarray()))

    def __call__(self, b: Tensor, depth: int = 0) -> Tensor:
        """From zero, the next guess at a solution for own rows of ``b``."""
        if depth == len(self.levels):
            layout = self.layouts[-1]
            mine, everyone = slice(*layout.range(dist.get_rank())), b.new_zeros(layout.rows, 1)
            everyone[mine] = b
            dist.all_reduce(everyone)
            return self.coarsest[mine] @ everyone
        A, restrict, prolong, jacobi = self.levels[depth]
        x = jacobi * b
        x = x + prolong(self(restrict(b - A(x)), depth + 1))
        return x + jacobi * (b - A(x))


def dot(x: Tensor, y: Tensor) -> Tensor:
    total = (x * y).sum()
    dist.all_reduce(total)
    return total


def main() -> None:
    dist.init_process_group("gloo")
    A = pyamg.gallery.poisson((40, 40), format="csr")
    jacobi = ("jacobi", {"omega": OMEGA, "withrho": False})
    np.random.seed(0)  # noqa: NPY002 - which PyAMG draws from
    hierarchy = pyamg.smoothed_aggregation_solver(A, presmoother=jacobi, postsmoother=jacobi)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    cycle = Cycle(hierarchy)
    own = slice(*cycle.layouts[0].range(dist.get_rank()))
    of_ranks = torch.from_numpy(b[own])[:, None]
    multiply = cycle.levels[0][0]

    x, residuals = torch.zeros_like(of_ranks), []
    for _ in range(10):
        x = x + cycle(of_ranks - multiply(x))
        left = of_ranks - multiply(x)
        residuals.append(dot(left, left).sqrt())
    history: list[float] = []
    alone = hierarchy.solve(b, tol=1e-30, maxiter=10, residuals=history)
    compare("norms of 10 cycles", torch.stack(residuals), torch.tensor(history[1:11]), 1e-12)
    compare("solution of 10 cycles", x[:, 0], torch.from_numpy(alone[own]), 1e-12)

    x, r = torch.zeros_like(of_ranks), of_ranks
    z = p = cycle(r)
    for _ in range(12):
        Ap, rz = multiply(p), dot(r, z)
        step = rz / dot(p, Ap)
        x, r = x + step * p, r - step * Ap
        z = cycle(r)
        p = z + dot(r, z) / rz * p
    alone = hierarchy.solve(b, tol=1e-30, maxiter=12, accel="cg")
    compare("solution of 12 steps of CG", x[:, 0], torch.from_numpy(alone[own]), 1e-11)
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
