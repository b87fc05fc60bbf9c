"""
A distributed product, and its gradient
=======================================

Four ranks multiply a sparse matrix with a tall dense one, and differentiate. SciPy, on one process,
says what should come out.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
import torch

from spgnn import CSR, DistMatrix, Mesh, RowLayout, connect
from spgnn.testing import run_ranks

n, width, ranks = 4000, 16, 4
A = sp.random(n, n, density=0.002, format="csr", random_state=0, dtype="float32")
H = np.random.default_rng(0).standard_normal((n, width), dtype=np.float32)
weights = np.random.default_rng(1).standard_normal((n, width), dtype=np.float32)

# %%
# What every rank does. It is given its own rows of A and H, and nothing else; all communication is
# in ``build``, in ``@``, and in ``backward``.


def multiply(rank):
    comm = connect()
    layout = RowLayout.even(n, comm.size)
    own = slice(*layout.range(rank))
    dist = DistMatrix.build(CSR.from_scipy(A[own]), layout, Mesh.grid(comm, c=1), cover="minimum")
    H_local = torch.tensor(H[own], requires_grad=True)
    Z_local = dist @ H_local
    (Z_local * torch.tensor(weights[own])).sum().backward()
    return Z_local.detach().numpy(), H_local.grad.numpy(), dist.volume


parts = run_ranks(multiply, ranks)  # forks four ranks of this machine
Z = np.concatenate([part[0] for part in parts])
dH = np.concatenate([part[1] for part in parts])

# %%
# Forward it is A·H, backward Aᵀ·G.

print("largest difference of A·H: ", abs(Z - A @ H).max())
print("largest difference of Aᵀ·G:", abs(dH - A.T @ weights).max())

# %%
# How many rows that moved was known before anything ran.

volumes = [part[2] for part in parts]
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.bar(np.arange(ranks) - 0.2, [volume.send for volume in volumes], 0.4, label="sent")
axes.bar(np.arange(ranks) + 0.2, [volume.receive for volume in volumes], 0.4, label="received")
axes.axhline(n, color="grey", linewidth=0.8)
axes.text(0, n, "all rows of H", va="bottom", color="grey")
axes.set(xlabel="rank", ylabel="rows in one product", xticks=range(ranks), ylim=(0, 1.15 * n))
axes.legend(frameon=False, loc="lower right")
plt.show()
