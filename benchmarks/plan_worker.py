"""Builds plans for bench_plan.py, in a process of its own, of whichever version it is run with.

    PYTHON plan_worker.py GRAPH.npz RANKS

GRAPH.npz holds a matrix and the ``offsets`` of its rows. Prints, for each cover, a line ``RESULT
cover seconds bytes``: CPU seconds of all ranks, and the largest peak of a rank above what it had.
The first version, which has no meshes, is measured by the same code.
"""

import ctypes
import sys
from time import process_time

import numpy as np
import torch

import spgnn
from spgnn.comm import connect
from spgnn.testing import run_ranks

M_MMAP_THRESHOLD = -3
COVERS = ("column", "minimum")


def status(field):
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def forget_peak():
    """The peak that the system reports becomes what is used now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def build(rank, data):
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # so that the peak is what is in use
    comm, layout = connect(), spgnn.RowLayout(data["offsets"])
    if hasattr(spgnn, "Mesh"):
        mesh, made = spgnn.Mesh.grid(comm), spgnn.CSR.of
    else:
        mesh, made = spgnn.GridComm.build(comm), spgnn.CSR

    def block_of(indptr, indices, layout):
        first, last = layout.range(rank)
        begin, end = indptr[first], indptr[last]
        own = torch.from_numpy(indices[begin:end].copy())
        rows = torch.from_numpy(indptr[first : last + 1] - begin)
        return made(rows, own, (last - first, layout.rows))

    # A small one first: connections and what libraries make when they are first used.
    small = spgnn.RowLayout.even(4 * comm.size, comm.size)
    full = np.tile(np.arange(small.rows, dtype=np.int32), small.rows)
    block = block_of(np.arange(small.rows + 1) * small.rows, full, small)
    for cover in COVERS:
        spgnn.DistMatrix.build(block, small, mesh, cover=cover)
    block = block_of(data["indptr"], data["indices"], layout)
    found = []
    for cover in COVERS:
        comm.barrier()
        forget_peak()
        used, start = status("VmRSS"), process_time()
        matrix = spgnn.DistMatrix.build(block, layout, mesh, cover=cover)
        found.append((process_time() - start, status("VmHWM") - used))
        del matrix
    return found


def main():
    path, ranks = sys.argv[1], int(sys.argv[2])
    with np.load(path) as file:
        data = {name: file[name] for name in file.files}
    found = run_ranks(build, ranks, data)
    for number, cover in enumerate(COVERS):
        seconds = sum(of_rank[number][0] for of_rank in found)
        print("RESULT", cover, seconds, max(of_rank[number][1] for of_rank in found), flush=True)


if __name__ == "__main__":
    main()
