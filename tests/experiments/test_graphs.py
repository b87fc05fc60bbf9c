"""Labels of whole graphs: losses and scores of PyG's model with its own pooling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import spgnn
from spgnn.testing import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
slow, EPOCHS, READOUTS = pytest.mark.slow, 4, ("mean", "sum", "max")


def prepared(readout: str) -> tuple[Any, Any]:
    """A batch in double precision, with masks of graphs, and a model."""
    import graphs as program  # which imports PyG

    batch = program.of_shapes(30)
    torch.manual_seed(2)
    batch.x = torch.rand(batch.num_nodes, 4).double()
    return batch, program.Classifier(4, 8, 3, readout).double()


def of_pyg(readout: str) -> tuple[list[float], float]:
    from torch_geometric.nn import pool

    pooled = getattr(pool, f"global_{readout.replace('sum', 'add')}_pool")
    (batch, model), mask, losses = prepared(readout), torch.arange(30) % 4 > 0, []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS + 1):
        x = batch.x
        for layer in model.layers:
            x = layer(x, batch.edge_index).relu()
        rows = model.out(pooled(x, batch.batch))
        if epoch < EPOCHS:
            optimizer.zero_grad()
            (loss := F.cross_entropy(rows[mask], batch.y[mask])).backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, float((rows.argmax(1) == batch.y)[~mask].double().mean())


def of_ours(rank: int, ranks: int) -> dict[str, tuple[list[float], float]]:
    import graphs as program

    results = {}
    for readout in READOUTS:
        batch, model = prepared(readout)
        data, number = program.with_graphs(batch), torch.arange(30) % 4
        data["graph"].train_mask, data["graph"].test_mask = number > 0, number == 0
        # Vertices of a graph lie on all ranks, and apart from it.
        labels = {name: torch.arange(data[name].num_nodes) % ranks for name in data.node_types}
        graph = spgnn.distribute(data, partition=labels)
        options = {"target": "graph", "forward": program.forward, "eval_every": EPOCHS}
        history = spgnn.Trainer(model, graph, lr=0.01, **options).fit(EPOCHS)
        results[readout] = [row["loss"] for row in history], history[-1]["test_acc"]
    return results


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=slow), pytest.param(2, marks=slow), 4])
def test_readouts_are_those_of_pyg_on_one_process(ranks):
    pytest.importorskip("torch_geometric.nn")
    expected = {readout: of_pyg(readout) for readout in READOUTS}
    for results in run_ranks(of_ours, ranks, ranks):
        for readout, (losses, accuracy) in expected.items():
            assert results[readout][0] == pytest.approx(losses, rel=1e-10), readout
            assert results[readout][1] == accuracy, readout
