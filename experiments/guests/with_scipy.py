"""Solvers of SciPy whose products are of a distributed matrix.

torchrun --nproc-per-node 4 experiments/guests/with_scipy.py

Each rank has its rows of the matrix, and the solver's vectors whole: all take the same steps.
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.sparse as sp
import torch
import torch.distributed as dist
from compared import compare
from scipy.sparse import linalg

from spgnn import Halo, RowLayout


def grid(side: int) -> sp.csr_array:
    """The Laplacian of a square grid with a drift to one side: not symmetric, positive."""
    line = sp.diags_array([-1.2, 2.0, -0.8], offsets=[-1, 0, 1], shape=(side, side))
    return sp.csr_array(sp.kron(line, sp.eye(side)) + sp.kron(sp.eye(side), line))


def distributed(A: sp.csr_array) -> linalg.LinearOperator:  # begin of the shim
    """An operator whose products are of all ranks. Collective, as each of its products is."""
    layout = RowLayout.even(A.shape[0], dist.get_world_size())
    first, last = layout.range(dist.get_rank())
    mine = A[first:last].tocoo()
    edges = torch.from_numpy(np.stack((mine.col, mine.row + first)).astype(np.int64))
    halo = Halo.build(edges, layout, dist.group.WORLD)
    forward = halo.matrix(torch.from_numpy(mine.data))

    def times(matrix):
        def product(x: np.ndarray) -> np.ndarray:
            own = matrix @ torch.from_numpy(x.reshape(len(x), -1)[first:last].copy())
            everyone = own.new_zeros(len(x), own.shape[1])
            everyone[first:last] = own
            dist.all_reduce(everyone)
            return everyone.numpy().reshape(x.shape)

        return product

    product, adjoint = times(forward), times(forward.T)
    return linalg.LinearOperator(
        A.shape, product, rmatvec=adjoint, matmat=product, rmatmat=adjoint, dtype=A.dtype
    )  # end of the shim


def main() -> None:
    dist.init_process_group("gloo")
    A = grid(23)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    symmetric = sp.csr_array(A + A.T)

    def results(A: object, S: object) -> dict[str, np.ndarray]:
        return {
            "cg": linalg.cg(S, b, rtol=1e-12)[0],
            "minres": linalg.minres(S, b, rtol=1e-12)[0],
            "bicgstab": linalg.bicgstab(A, b, rtol=1e-12)[0],
            "gmres": linalg.gmres(A, b, rtol=1e-12, restart=60)[0],
            "lsqr": linalg.lsqr(A, b, atol=1e-14, btol=1e-14)[0],
            "eigsh": linalg.eigsh(S, 5, v0=b)[0],
            "svds": linalg.svds(A, 4, v0=b, return_singular_vectors=False),
            "expm_multiply": linalg.expm_multiply(-0.1 * A, b, traceA=-0.4 * len(b)),
        }

    alone = results(A, symmetric)
    for name, value in results(distributed(A), distributed(symmetric)).items():
        compare(name, torch.from_numpy(value.copy()), torch.from_numpy(alone[name].copy()), 1e-11)
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
