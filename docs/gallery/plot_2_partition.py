"""
The true volume of a partition
==============================

How many rows does one product A·H move, and who sends them? A partitioner that counts cut edges
does not know: a row travels once to each part that needs it, however many edges need it there.
:func:`spgnn.partition.report` counts what an exchange will move, exactly, for labels of any origin.
"""

import matplotlib.pyplot as plt
import numpy as np

from spgnn.data import load_dataset
from spgnn.partition import count_volumes, partition

# %%
# A block model with skewed degrees, in eight parts, by three methods.

A = load_dataset("sbm").adjacency
parts = 8
found = {
    method: partition(A, parts, method=method, preset=preset)
    for method, preset in (("gvb", "fast"), ("stream", "fast"), ("random", "default"))
}
print(f"{'':>8} {'rows':>8} {'max send':>9} {'cut edges':>10} {'work':>7}")
for method, (_, figures) in found.items():
    print(
        f"{method:>8} {figures['total_volume']:8,} {figures['max_send']:9,} "
        f"{figures['edge_cut']:10,} {figures['nnz_imbalance']:+7.1%}"
    )

# %%
# What each part sends. The busiest one decides how long the exchange takes, so ``gvb`` minimises
# total and maximum together.

figure, (bars, heat) = plt.subplots(2, 1, figsize=(6, 7), layout="constrained")
for place, (method, (labels, _)) in enumerate(found.items()):
    send = count_volumes(A, labels, parts).column.send
    bars.bar(np.arange(parts) + 0.27 * (place - 1), send, 0.27, label=method)
bars.set(xlabel="part", ylabel="rows sent in one product")
bars.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
image = heat.imshow(count_volumes(A, found["gvb"][0], parts).column.blocks)
heat.set(title="gvb: from whom to whom", xlabel="receiving part", ylabel="sending part")
figure.colorbar(image, ax=heat, label="rows")
plt.show()

# %%
# Covers lower the volume further, where pairs of parts may also send partial sums.

for method, (labels, _) in found.items():
    volumes = count_volumes(A, labels, parts, minimum=True)
    print(f"{method:>8}: {volumes.minimum.total / volumes.column.total:.2f} of the rows")
