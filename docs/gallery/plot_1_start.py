"""
Start: the same training on one rank and on three
=================================================

A graph is distributed, a model trained, its scores inferred. Each rank has its share of the graph,
of the rows of every layer, and of the loss; together they do what one does.
"""

import matplotlib.pyplot as plt
import torch.nn.functional as F

import spgnn
from spgnn.testing import run_ranks

# %%
# What every rank does. Under ``torchrun`` or ``mpiexec`` this is the whole program. Dropout masks
# are functions of the vertex, so they are the same wherever it lives.


def train(rank):
    graph = spgnn.distribute("sbm", seed=0)  # or a PyG Data, a file, a directory
    model = spgnn.nn.GCN(graph.num_features, 32, num_layers=3, out_channels=8, dropout=0.3)
    trainer = spgnn.Trainer(model, graph, loss=F.cross_entropy)
    trainer.fit(epochs=30)
    scores = spgnn.infer(model, graph)  # of own vertices
    return trainer.history, len(scores)


results = {ranks: run_ranks(train, ranks) for ranks in (1, 3)}  # forks ranks of this machine
print("vertices of each of three ranks:", [own for _, own in results[3]])

# %%
# Both histories in one picture; the broken line lies on the other one.

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
losses = {ranks: [entry["loss"] for entry in ended[0][0]] for ranks, ended in results.items()}
for (ranks, values), style in zip(losses.items(), ("-", "--"), strict=True):
    axes.plot(values, style, label=f"{ranks} rank{'s' if ranks > 1 else ''}")
axes.set(xlabel="epoch", ylabel="training loss")
axes.legend(frameon=False)
plt.show()

# %%
# They differ by the order of additions.

difference = max(abs(a - b) for a, b in zip(losses[1], losses[3], strict=True))
assert difference < 1e-3, difference
print(f"largest difference of the losses: {difference:.0e}")
