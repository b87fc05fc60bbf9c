"""
Planning a run
==============

What would an epoch move, hold and take on 4, 16 or 64 ranks, under which scheme? All of it follows
from plans. ``spgnn plan`` prints the ranked table for a whole command line; this is the same from
Python, for three configurations and a machine that is made up.
"""

import matplotlib.pyplot as plt

from spgnn.addons.plan import Dataset, predict
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.partition import partition

# %%
# A configuration is that of the training command: here three layers of a GCN, and three schemes.

dataset = Dataset.of(open_source("sbm@seed=1"))
base = TrainConfig.of(layers=3, hidden=16)
configurations = {
    "1D": base,
    "1D, minimum cover": base.but(cover="minimum"),
    "1D, oblivious": base.but(exchange="oblivious"),
}

# %%
# Nothing is trained: plans of all ranks are made on this process, counted, and forgotten.

prices = {name: [] for name in configurations}
ranks = [4, 16, 64]
for P in ranks:
    labels, _ = partition(dataset.looped, P, preset="fast")
    for name, config in configurations.items():
        prices[name].append(predict(dataset, labels, config, P))
print(f"{'':<20}", *(f"{f'P = {P}':>14}" for P in ranks))
for name, found in prices.items():
    print(f"{name:<20}", *(f"{price.volume['total_bytes'] / 1e6:11.2f} MB" for price in found))

# %%
# Bytes are exact, and so is memory by item; the picture shows what the busiest rank sends, and what
# the fullest one holds.

figure, (sent, held) = plt.subplots(2, 1, figsize=(6, 7), layout="constrained")
for name, found in prices.items():
    sent.plot(ranks, [p.volume["max_send_bytes"] / 1e6 for p in found], marker="o", label=name)
    held.plot(ranks, [p.memory_bytes / 1e6 for p in found], marker="o", label=name)
sent.set(xlabel="ranks", ylabel="MB an epoch, busiest rank", yscale="log")
held.set(xlabel="ranks", ylabel="MB in training, fullest rank")
for axes in (sent, held):
    axes.set_xscale("log", base=2)
sent.legend(frameon=False)
plt.show()
