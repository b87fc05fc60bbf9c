"""What the MPI test runs on every rank: ``python -m tests.comm.mpi_cases GRAPH P …``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from spgnn.comm import connect, guarded
from tests import products, training
from tests.comm import protocol


def main(path: Path, sizes: list[int]) -> None:
    """All oracles on the first P ranks of the job, for each P in `sizes`."""
    torch.set_num_threads(1)
    world = connect("mpi")
    with guarded(world):
        for size in sizes:
            part = world.subgroup([range(size), range(size, world.size)][: 1 + (size < world.size)])
            if world.rank < size:
                protocol.check_all(part)
                # On gloo every case is checked; here the backend is what is new.
                products.check_all(part, every=3 if size <= 4 else 15)
                training.check_history(part, path, every=2 if size <= 4 else 6)
            world.barrier()
        if world.rank == 0:
            print(f"checked on {sizes} ranks")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])
