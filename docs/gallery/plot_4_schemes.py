"""
1D against 1.5D
===============

Is it better to cut a graph into P parts, or into fewer, and to add up partial sums? That depends on
how well it can be cut. Plans answer it without running anything: the same code that makes them on
P ranks makes all of them on one process.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
import torch

from spgnn import CSR, RowLayout
from spgnn.data import load_dataset
from spgnn.exchange import Algorithm
from spgnn.partition import partition, permutation

# %%
# A mesh, which can be cut well, and R-MAT with 40 neighbours a vertex, which cannot.

line = sp.diags_array([np.ones(95), np.ones(95)], offsets=[-1, 1])
mesh = sp.kronsum(line, line, format="csr").astype("float32")
graphs = {"mesh": mesh, "R-MAT": load_dataset("rmat-12-32").adjacency.to_scipy()}


def rows_sent(A, algorithm, ranks):
    """The rows that a rank sends on average in one product, in units of n/P."""
    parts = algorithm.parts(ranks)
    labels, _ = partition(A, parts, preset="fast")
    order = permutation(labels)
    A = A[order][:, order]
    # Each part is cut into ranks / parts slices of neighbouring ranks.
    sizes = np.bincount(labels, minlength=parts)
    slices = [part_rows for size in sizes for part_rows in _cut(size, ranks // parts)]
    layout = RowLayout(torch.tensor(np.cumsum([0, *slices])))
    blocks = [CSR.from_scipy(A[slice(*layout.range(rank))]) for rank in range(ranks)]
    return sum(plan.volume.send for plan in algorithm.plans(blocks, layout)) / A.shape[0]


def _cut(size, slices):
    return [size * (k + 1) // slices - size * k // slices for k in range(slices)]


# %%
# 1D, and 1.5D with two and four copies of each block row.

algorithms = {
    "1D": Algorithm("1d"),
    "1.5D, c = 2": Algorithm("1.5d", c=2),
    "1.5D, c = 4": Algorithm("1.5d", c=4),
}
ranks = [4, 8, 16, 32, 64]
figure, panels = plt.subplots(2, 1, figsize=(6, 7), layout="constrained")
for axes, (graph, A) in zip(panels, graphs.items(), strict=True):
    for name, algorithm in algorithms.items():
        sent = [rows_sent(A, algorithm, P) for P in ranks]
        axes.plot(ranks, sent, marker="o", label=name)
        print(f"{graph:>6}  {name:<12}", *(f"{value:7.2f}" for value in sent))
    axes.set(title=graph, xlabel="ranks", ylabel="rows a rank sends, in n/P")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
panels[0].legend(frameon=False)
plt.show()

# %%
# On the mesh nothing beats 1D: a part has few neighbours, and sums over c ranks cost c − 1 units
# whatever the graph is like. On R-MAT a row is needed by more and more parts the more there are,
# and fewer, larger parts pay: two copies from 4 ranks on, four from 16.
