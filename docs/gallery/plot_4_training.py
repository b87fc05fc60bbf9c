"""
A training curve that does not know how many ranks there are
============================================================

The same training on one rank and on three. Each has its own share of the graph, of the rows of
every layer, and of the loss; all together they do what one does.
"""

import matplotlib.pyplot as plt

from spgnn import connect
from spgnn.config import TrainConfig
from spgnn.frontend import training_graph
from spgnn.testing import run_ranks
from spgnn.train import NodeClassification, Trainer

config = TrainConfig.of(dataset="sbm", hidden=32, epochs=40, dropout=0.3, cover="minimum")

# %%
# What every rank does: read its share, and train. Dropout masks are functions of the vertex, so
# they are the same wherever it lives.


def train(rank):
    comm = connect()
    data = training_graph(config, comm)
    trainer = Trainer(NodeClassification(config, data), options=config.training)
    trainer.fit()
    return trainer.history


histories = {ranks: run_ranks(train, ranks)[0] for ranks in (1, 3)}

# %%
# Both histories in one picture; the broken line lies on the other one.

figure, (losses, accuracies) = plt.subplots(2, 1, figsize=(6, 6.5), layout="constrained")
for (ranks, history), style in zip(histories.items(), ("-", "--"), strict=True):
    label = f"{ranks} rank{'s' if ranks > 1 else ''}"
    losses.plot([entry["loss"] for entry in history], style, label=label)
    scored = [entry for entry in history if entry["val_acc"] is not None]
    accuracies.plot(
        [entry["epoch"] for entry in scored],
        [entry["val_acc"] for entry in scored],
        style,
        label=label,
    )
losses.set(xlabel="epoch", ylabel="training loss")
accuracies.set(xlabel="epoch", ylabel="validation accuracy")
losses.legend(frameon=False)
plt.show()

# %%
# They differ by the order of additions.

one, three = ([entry["loss"] for entry in histories[ranks]] for ranks in (1, 3))
print("largest difference of the losses:", max(abs(a - b) for a, b in zip(one, three, strict=True)))
