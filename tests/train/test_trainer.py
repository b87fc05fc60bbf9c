"""spgnn.Trainer for users: their modules and losses give the history of a dense loop."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import spgnn
from spgnn import InputError
from spgnn.testing import run_ranks
from tests.comm.jobs import on_their_own
from tests.training import write_dataset

EPOCHS = 6


class Mean(torch.nn.Module):
    """Two layers of weights around the mean of neighbours, on anyone's edge_index."""

    def __init__(self, widths=(23, 8, 4)):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(f_in, f_out) for f_in, f_out in pairwise(widths)
        )

    def forward(self, x, edge_index):
        sources, targets = edge_index
        for layer in self.layers:
            h = layer(x.relu())
            x = torch.zeros_like(h).index_add(0, targets, h[sources])
        return x


def dense_history(path, optimizer, smooth):
    """Losses and validation accuracies of a loop over all vertices in one process."""
    with np.load(path) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
        masks = [torch.from_numpy(file[f"{split}_mask"]) & (y >= 0) for split in ("train", "val")]
        rows = torch.arange(len(y)).repeat_interleave(torch.from_numpy(np.diff(file["indptr"])))
        edge_index = torch.stack((torch.from_numpy(file["indices"]).long(), rows))
    model = Mean()
    steps, history = optimizer(model.parameters()), []
    for _ in range(EPOCHS):
        out = model(x, edge_index)
        loss = F.cross_entropy(out[masks[0]], y[masks[0]], label_smoothing=smooth)
        loss.backward()
        steps.step()
        steps.zero_grad()
        accuracy = (model(x, edge_index).argmax(1) == y)[masks[1]].float().mean()
        history.append((loss.item(), float(accuracy)))
    return history


def fitted(rank, path, options):
    graph = spgnn.distribute(path, partition="random")
    trainer = spgnn.Trainer(Mean(), graph, **options)
    return [(one["loss"], one["val_acc"]) for one in trainer.fit(epochs=EPOCHS)]


def smoothed(outputs, y):
    return F.cross_entropy(outputs, y, label_smoothing=0.2)


@pytest.mark.parametrize(
    ("options", "optimizer", "smooth"),
    [
        ({"lr": 0.05}, lambda p: torch.optim.Adam(p, lr=0.05), 0.0),
        (
            {"loss": smoothed, "optimizer": "sgd", "lr": 0.1, "weight_decay": 0.01},
            lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
            0.2,
        ),
        (
            {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)},
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            0.0,
        ),
    ],
    ids=["adam", "smoothed", "momentum"],
)
def test_history_of_a_dense_loop(tmp_path, options, optimizer, smooth):
    path = write_dataset(tmp_path / "graph.npz")
    expected = dense_history(path, optimizer, smooth)
    for ranks in (1, 2):
        found = run_ranks(fitted, ranks, path, options)
        assert all(history == found[0] for history in found)
        np.testing.assert_allclose(found[0], expected, rtol=1e-4)


def resumed(rank, path, directory, codec):
    """Straight, and stopped after half of the epochs."""
    histories = []
    for stops, kept in (((EPOCHS,), None), ((EPOCHS // 2, EPOCHS), str(directory))):
        for epochs in stops:
            graph = spgnn.distribute(path, partition="random", codec=codec)
            model = spgnn.nn.GraphSAGE(-1, 8, 2, 4, dropout=0.5, seed=2)
            options = {"checkpoint": kept, "resume": epochs != stops[0], "seed": 1}
            trainer = spgnn.Trainer(model, graph, **options)
            history = trainer.fit(epochs)
        histories.append([(one["loss"], one["val_acc"]) for one in history])
    # A forward of one's own makes the same of the same model.
    graph = spgnn.distribute(path, partition="random")
    model = spgnn.nn.GraphSAGE(23, 8, 2, 4, seed=2)
    one, other = (
        spgnn.Trainer(model, graph, epochs=1, forward=forward).evaluate()
        for forward in (None, lambda model, graph: model(graph.x, graph))
    )
    assert one == other
    return histories


@pytest.mark.parametrize("codec", [None, {"delay": 1, "bits": 8}], ids=["exact", "late"])
def test_checkpoints_go_on(tmp_path, codec):
    path = write_dataset(tmp_path / "graph.npz")
    straight, stopped = run_ranks(resumed, 2, path, tmp_path / "kept", codec)[0]
    assert straight == stopped
    assert straight[-1][0] < straight[0][0]


def test_a_guest_trains_on_the_groups_of_its_program(tmp_path):
    """A mesh of two groups of two ranks: each trains as one process does, and nothing is ended."""
    path = write_dataset(tmp_path / "graph.npz")
    expected = dense_history(path, lambda p: torch.optim.Adam(p, lr=0.05), 0.0)

    def program() -> None:
        dist = torch.distributed
        dist.init_process_group("gloo")
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        graph = spgnn.distribute(path, partition="random", group=mesh["b"])
        assert graph.comm.size == 2
        history = spgnn.Trainer(Mean(), graph, lr=0.05).fit(EPOCHS)
        found = [(one["loss"], one["val_acc"]) for one in history]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        dist.barrier()
        dist.destroy_process_group()

    ended = on_their_own(program, tmp_path, 4)
    assert [end.status for end in ended] == [0] * 4, "\n".join(end.err for end in ended)


def test_refusals():
    graph = spgnn.distribute("rmat-5-4")
    model = torch.nn.Linear(2, 2)
    for arguments, options, words in (
        ((model,), {}, "give the graph that spgnn.distribute made"),
        ((model, graph), {}, "has no labels"),
        ((model, graph), {"loss": "sofmax"}, "did you mean 'softmax'"),
        ((model, graph), {"optimizer": "adamm"}, "did you mean 'adam'"),
        ((model, graph), {"epochs": 0}, "epochs"),
    ):
        with pytest.raises(InputError, match=words):
            spgnn.Trainer(*arguments, **options)
