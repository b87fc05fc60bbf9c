"""
A guest: products inside a program with a process group
=======================================================

A program that starts its own processes and its own group hands the group over. Four ranks multiply
a sparse matrix with a tall dense one, and differentiate; SciPy, on one process, says what is right.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from spgnn import CSR, DistMatrix, Mesh, RowLayout, connect

n, width, ranks = 4000, 16, 4
A = sp.random(n, n, density=0.002, format="csr", random_state=0, dtype="float32")
H = np.random.default_rng(0).standard_normal((n, width), dtype=np.float32)
weights = np.random.default_rng(1).standard_normal((n, width), dtype=np.float32)

# %%
# What every rank does. It takes its own rows of A and H, and nothing else; all communication is
# in ``build``, in ``@``, and in ``backward``, through the program's group, which stays its own.


def multiply(rank, folder):
    torch.set_num_threads(1)  # threads of the process before the fork are not there
    rendezvous = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    comm = connect(group=dist.group.WORLD)
    layout = RowLayout.even(n, comm.size)
    own = slice(*layout.range(rank))
    A_own = CSR.from_scipy(A[own])
    matrix = DistMatrix.build(A_own, layout, Mesh.grid(comm, c=1), cover="minimum")
    H_local = torch.tensor(H[own], requires_grad=True)
    Z_local = matrix @ H_local
    (Z_local * torch.tensor(weights[own])).sum().backward()
    volume = matrix.volume.send, matrix.volume.receive
    np.savez(f"{folder}/{rank}", Z=Z_local.detach(), dH=H_local.grad, volume=volume)
    comm.leave()
    dist.destroy_process_group()


with tempfile.TemporaryDirectory() as folder:
    mp.start_processes(multiply, (folder,), nprocs=ranks, start_method="fork")
    parts = [dict(np.load(Path(folder, f"{rank}.npz"))) for rank in range(ranks)]
Z, dH = (np.concatenate([part[name] for part in parts]) for name in ("Z", "dH"))

# %%
# Forward it is A·H, backward Aᵀ·G.

print("largest difference of A·H: ", abs(Z - A @ H).max())
print("largest difference of Aᵀ·G:", abs(dH - A.T @ weights).max())
assert np.allclose(Z, A @ H, atol=1e-4)
assert np.allclose(dH, A.T @ weights, atol=1e-4)

# %%
# How many rows that moved was known before anything ran.

sent, received = np.array([part["volume"] for part in parts]).T
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.bar(np.arange(ranks) - 0.2, sent, 0.4, label="sent")
axes.bar(np.arange(ranks) + 0.2, received, 0.4, label="received")
axes.axhline(n, color="grey", linewidth=0.8)
axes.text(0, n, "all rows of H", va="bottom", color="grey")
axes.set(xlabel="rank", ylabel="rows in one product", xticks=range(ranks), ylim=(0, 1.15 * n))
axes.legend(frameon=False, loc="lower right")
plt.show()
