"""The trainer trains any task: what docs/training.md shows, and tasks that are awkward."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect
from spgnn.config import Training
from spgnn.testing import run_ranks
from spgnn.train import Task, Trainer
from spgnn.train.report import measurements
from tests.training import write_dataset

DOCS = Path(__file__).parents[2] / "docs" / "training.md"


def examples() -> list[str]:
    """Those of docs/training.md, then those of docs/tasks.md."""
    pages = (DOCS, DOCS.with_name("tasks.md"))
    found = (
        re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL) for page in pages
    )
    return [code for page in found for code in page]


def run_example(number: int, path: Path) -> tuple[Trainer, dict[str, object]]:
    """An example as it is printed, on a smaller graph."""
    code = examples()[number].replace('dataset="sbm"', f'dataset="{path}"')
    assert str(path) in code
    scope: dict[str, object] = {}
    exec(compile(code, str(DOCS), "exec"), scope)
    return scope["trainer"], scope


@pytest.mark.parametrize("ranks", [1, 3])
def test_example_of_a_task(tmp_path, ranks):
    path = write_dataset(tmp_path / "graph.npz")

    def body(rank: int) -> list[dict[str, float]]:
        trainer, _ = run_example(0, path)
        return measurements(trainer)["history"]

    histories = run_ranks(body, ranks)
    assert all(history == histories[0] for history in histories)
    assert len(histories[0]) == 10
    with np.load(path) as file:
        x = file["x"] / np.maximum(file["x"].sum(axis=1, keepdims=True), 1)
    losses = [record["loss"] for record in histories[0]]
    assert losses[-1] < 0.9 * losses[0]
    # No worse than zeros.
    assert losses[-1] < np.square(x).mean()
    for record, after in zip(histories[0], losses[1:], strict=False):
        assert record["rmse"] == pytest.approx(after**0.5, rel=1e-5)


def test_examples_do_not_depend_on_ranks(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    for number in range(len(examples())):
        one, three = (
            run_ranks(
                lambda rank, n=number: [r["loss"] for r in run_example(n, path)[0].history], P
            )[0]
            for P in (1, 3)
        )
        np.testing.assert_allclose(one, three, rtol=1e-4)


class Line(Task):
    """Fit a line; only rank 0 has data, and the offset appears nowhere else."""

    def __init__(self, comm, targets=(1.0, 3.0, 5.0)):
        self.comm = comm
        self.model = torch.nn.Linear(1, 1)
        with torch.no_grad():
            self.model.weight.zero_()
            self.model.bias.zero_()
        self.x = torch.arange(3.0)[:, None]
        self.y = torch.tensor(targets)[:, None]
        self.epochs = []

    def loss(self, epoch):
        self.epochs.append(epoch)
        if self.comm.rank:
            return (self.model.weight * 0).sum()
        return (self.model(self.x) - self.y).square().sum()


def test_gradients_add_up_where_some_ranks_have_none():
    def fitted(rank: int) -> tuple[list[float], list[int], list[dict]]:
        task = Line(connect())
        trainer = Trainer(task, options=Training(epochs=5, optimizer="sgd", lr=0.05))
        trainer.run()
        weights = [float(p.detach()) for p in task.model.parameters()]
        return weights, task.epochs, [r["loss"] for r in trainer.history]

    (alone,), shared = run_ranks(fitted, 1), run_ranks(fitted, 3)
    assert shared == [alone] * 3
    assert alone[1] == [0, 1, 2, 3, 4]
    assert alone[2][0] == 35.0
    assert alone[2][-1] < 1


@pytest.mark.parametrize(
    ("target", "lr", "epochs", "said"),
    [
        (float("nan"), 1, 0, "loss of epoch 0 is nan: training ends"),
        (1e15, 1e15, 1, "loss of epoch 1 is inf: training ends"),
        (1e15, 1e30, 1, "is not finite after 1 epochs; not saved"),
    ],
)
def test_what_is_not_finite_ends_training(tmp_path, target, lr, epochs, said):
    """On all ranks; what was before stays, and nothing is saved any more."""

    def diverged(rank: int) -> tuple[str | None, int]:
        task = Line(connect(), targets=(target, 0.0, 0.0))
        options = Training(
            epochs=5, lr=lr, optimizer="sgd", checkpoint=str(tmp_path), checkpoint_every=1
        )
        trainer = Trainer(task, options=options)
        trainer.run()
        json.dumps(measurements(trainer), allow_nan=False)
        return trainer.failure, len(trainer.history)

    for failure, trained in run_ranks(diverged, 2):
        assert trained == epochs
        assert said in failure


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: model.weight.data.fill_(1.0), "weight of the model; give all ranks"),
        (
            lambda model: setattr(model, "more", torch.nn.Parameter(torch.ones(1))),
            "more of the model",
        ),
        (lambda model: model.bias.requires_grad_(False), "bias of the model"),
    ],
)
def test_models_that_differ_between_ranks(change, said):
    """Found before the first epoch, and said by all ranks."""

    def refused(rank: int) -> tuple[str, list[int]]:
        task = Line(connect())
        if rank == 1:
            change(task.model)
        with pytest.raises(InputError) as raised:
            Trainer(task, options=Training(epochs=1)).run()
        return str(raised.value), task.epochs

    (line, epochs), other = run_ranks(refused, 2)
    assert (line, epochs) == other
    assert said in line
    assert "on rank 1" in line
    assert not epochs
