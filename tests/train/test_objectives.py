"""Every loss: the history of one dense process at any P, and scores that it has too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.frontend.from_config import training_graph
from spgnn.testing import run_ranks
from spgnn.train import Trainer, train
from spgnn.train.report import best as best_of
from spgnn.train.vertices import NodeClassification
from tests.training import EPOCHS, TOLERANCE, reference_history, run, write_dataset

N = 61
RNG = np.random.default_rng(5)
SEVERAL = RNG.integers(-1, 2, (N, 3)).astype(np.int8)
NUMBERS = np.where(RNG.random((N, 2)) < 0.2, np.nan, RNG.standard_normal((N, 2))).astype(np.float32)
WEIGHTS = "0.5,2,1,3"


def written(tmp_path: Path, kind: str) -> Path:
    instead = {"several": {"y": SEVERAL}, "numbers": {"y": NUMBERS}}.get(kind, {})
    return write_dataset(tmp_path / f"{kind}.npz", **instead)


def labels(path: Path) -> torch.Tensor:
    """Of the training vertices."""
    with np.load(path) as file:
        return torch.from_numpy(file["y"][file["train_mask"]])


def cross_entropy(y: torch.Tensor, flags: dict) -> Callable:
    known = y >= 0
    given, weight = flags.get("class_weights"), None
    if given == "balanced":
        counts = torch.bincount(y[known], minlength=4).double()
        weight = counts.sum() / (4 * counts)
    elif given:
        weight = torch.tensor([float(w) for w in given.split(",")], dtype=torch.float64)
    smoothing = flags.get("label_smoothing", 0.0)
    return lambda Z: F.cross_entropy(Z[known], y[known], weight, label_smoothing=smoothing)


def binary(y: torch.Tensor, flags: dict) -> Callable:
    known, s = y >= 0, flags.get("label_smoothing", 0.0)
    ratio = torch.ones(3).double()
    if flags.get("class_weights"):
        ratio = (y == 0).sum(dim=0) / (y == 1).sum(dim=0).double()
    target = y.double() * (1 - s) + s / 2

    def loss(Z: torch.Tensor) -> torch.Tensor:
        p = torch.sigmoid(Z)
        entries = -(ratio * target * p.log() + (1 - target) * (1 - p).log())
        return entries[known].mean()

    return loss


def residual(y: torch.Tensor, flags: dict) -> Callable:
    known = ~y.isnan()
    of = {"l1": F.l1_loss, "huber": F.huber_loss}.get(flags.get("loss", ""), F.mse_loss)
    return lambda Z: of(Z[known], y[known].double())


CASES: list[tuple[str, Callable, dict]] = [
    ("classes", cross_entropy, {"class_weights": "balanced", "label_smoothing": 0.1}),
    ("classes", cross_entropy, {"class_weights": WEIGHTS, "model": "sage", "dropout": 0.5}),
    ("several", binary, {}),
    (
        "several",
        binary,
        {"class_weights": "balanced", "label_smoothing": 0.2, "recompute_halo": True},
    ),
    ("numbers", residual, {"dropout": 0.3}),
    ("numbers", residual, {"loss": "l1", "prune": False, "cover": "minimum"}),
    ("numbers", residual, {"loss": "huber", "model": "gin", "lr": 0.001}),
]


def configured(path: Path, flags: dict) -> TrainConfig:
    return TrainConfig.of(
        dataset=path, epochs=EPOCHS, eval_every=3, hidden=8, layers=2, partition="random", **flags
    )


def histories(rank: int, paths: dict[str, Path]) -> list[tuple[list[float], dict]]:
    comm, found = connect(), []
    for number, (kind, _, flags) in enumerate(CASES):
        config = configured(paths[kind], flags)
        found.append(run(config, comm))
        if comm.size == 4 and number in (0, 3, 4):
            losses, _ = run(config.but(algo="1.5d", c=2, recompute_halo=False), comm)
            np.testing.assert_allclose(losses, found[-1][0], rtol=TOLERANCE)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The runs of one rank."""
    directory = tmp_path_factory.mktemp("sets")
    paths = {kind: written(directory, kind) for kind in ("classes", "several", "numbers")}
    return paths, run_ranks(histories, 1, paths)[0]


def test_history_of_every_loss_is_that_of_a_dense_model(alone):
    paths, found = alone
    for (kind, loss_of, flags), (losses, report) in zip(CASES, found, strict=True):
        loss = loss_of(labels(paths[kind]), flags)
        expected = reference_history(paths[kind], configured(paths[kind], flags), loss)
        np.testing.assert_allclose(losses, expected, rtol=TOLERANCE, err_msg=str(flags))
        assert report["best"]["by"] == "val_loss"


@pytest.mark.parametrize("ranks", [3, 4])
def test_history_of_every_loss_at_more_ranks(alone, ranks):
    """The same losses, scores, best epoch and bytes as planned."""
    paths, expected = alone
    for number, (losses, report) in enumerate(run_ranks(histories, ranks, paths)[0]):
        one_losses, one = expected[number]
        np.testing.assert_allclose(losses, one_losses, rtol=TOLERANCE)
        assert report["volume"] == report["planned_volume"]
        for record, other in zip(report["history"], one["history"], strict=True):
            assert record.keys() == other.keys()
            for name in record.keys() - {"seconds"}:
                if record[name] is None:
                    assert other[name] is None, name
                else:
                    assert record[name] == pytest.approx(other[name], rel=1e-3), name
        assert report["best"]["epoch"] == one["best"]["epoch"]


def scores(path: Path, **flags) -> list[dict]:
    config = TrainConfig.of(dataset=path, epochs=2, hidden=8, layers=2, **flags)
    return run(config, connect())[1]["history"]


@pytest.mark.parametrize(
    ("kind", "flags", "names"),
    [
        ("classes", {}, {"acc"}),
        ("classes", {"metric": "roc-auc"}, {"acc", "roc_auc"}),
        ("classes", {"metric": "f1-macro"}, {"acc", "f1_macro"}),
        ("several", {}, {"f1_micro", "f1_macro"}),
        ("several", {"metric": "roc-auc"}, {"f1_micro", "f1_macro", "roc_auc"}),
        ("several", {"loss": "mse"}, {"mae", "rmse", "r2"}),
        ("numbers", {"metric": "r2"}, {"mae", "rmse", "r2"}),
    ],
)
def test_names_of_scores(tmp_path, kind, flags, names):
    wanted = {"epoch", "loss", "lr", "seconds", "val_loss"}
    wanted |= {f"{split}_{name}" for split in ("train", "val", "test") for name in names}
    for record in scores(written(tmp_path, kind), **flags):
        assert set(record) == wanted
        assert None not in record.values()


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("classes", {"loss": "multilabel"}, "--loss multilabel needs several labels a vertex"),
        ("classes", {"loss": "mse"}, "--loss mse needs numbers .*; classes has one class a vertex"),
        ("several", {"loss": "softmax"}, "--loss softmax needs one class .*has several labels"),
        ("several", {"metric": "accuracy"}, "--metric accuracy needs --loss softmax"),
        ("numbers", {"loss": "multilabel"}, "needs labels 0 and 1; those of numbers are others"),
        ("numbers", {"class_weights": "1,2"}, "aim.class-weights needs classes, and the labels of"),
        ("numbers", {"label_smoothing": 0.5}, "aim.label-smoothing needs classes"),
        ("classes", {"class_weights": "1,2"}, "aim.class-weights: 2 weights for 4 classes"),
    ],
)
def test_labels_that_do_not_fit_are_refused_on_all_ranks(tmp_path, kind, flags, message):
    path = written(tmp_path, kind)

    def refused(rank: int) -> str:
        comm, config = connect(), TrainConfig.of(dataset=path, **flags)
        with pytest.raises(InputError, match=message) as caught:
            NodeClassification(config, training_graph(config, comm))
        return str(caught.value)

    assert len(set(run_ranks(refused, 2))) == 1


def test_numbers_that_are_all_zero_or_one_may_be_labels(tmp_path):
    numbers = np.where(SEVERAL < 0, np.nan, SEVERAL).astype(np.float32)
    path = write_dataset(tmp_path / "graph.npz", y=numbers)
    several = scores(written(tmp_path, "several"))
    found = scores(path, loss="multilabel")
    assert [r["loss"] for r in found] == [r["loss"] for r in several]


def test_several_numbers_that_are_all_zero_or_one_are_labels(tmp_path):
    """As Yelp and PPI have them; one column of them is a number, as it says."""
    table = np.where(SEVERAL < 0, np.nan, SEVERAL).astype(np.float32)
    for y, name in ((table, "val_f1_micro"), (table[:, :1], "val_mae"), (table * 2, "val_mae")):
        assert name in scores(write_dataset(tmp_path / "graph.npz", y=y))[0]


# Rank 1 has no vertices, rank 2 none for training, and those of rank 3 have no labels.
UNEVEN: list[tuple[str, dict]] = [
    ("classes", {"metric": "roc-auc", "class_weights": "balanced", "norm": "layer"}),
    ("classes", {"metric": "f1-macro", "label_propagation": 0.5}),
    ("several", {"metric": "roc-auc", "class_weights": "balanced", "model": "gat"}),
    ("number", {"recompute_halo": True}),
    ("number", {"loss": "huber", "model": "gatv2", "norm": "batch", "optimizer": "sgd"}),
    ("number", {"loss": "l1", "model": "sage", "aggregate": "max", "inductive": True}),
    ("number", {"task": "links", "decoder": "mlp"}),
    ("number", {"algo": "vertex-cut", "prune": False}),
]


def uneven(
    rank: int, directory: Path, cases: list[tuple[str, dict]]
) -> list[tuple[list[dict], list[np.ndarray]]]:
    """Histories and predictions."""
    comm, found = connect(), []
    for kind, flags in cases:
        written = str(directory / f"{comm.size}.npz")
        partition = str(directory / "labels") if comm.size > 1 else "block"
        config = TrainConfig.of(
            dataset=str(directory / f"{kind}.npz"),
            **{"epochs": 2, "layers": 2, "partition": partition, "predictions": written, **flags},
        )
        history = train(config, comm)["history"]
        with np.load(written) as file:
            found.append((history, [file[name] for name in sorted(file.files)]))
    return found


def write_uneven(tmp_path: Path) -> None:
    """Data sets, and labels of such parts."""
    with np.load(written(tmp_path, "classes")) as file:
        y, training = file["y"], file["train_mask"]
    y[:9] = -1
    parts = np.where(y < 0, 3, np.where(training, 0, 2))
    parts[np.flatnonzero(parts == 2)[:8]] = 0
    np.savetxt(tmp_path / "labels", parts, fmt="%d")
    unknown = y < 0
    number = np.where(unknown, np.nan, NUMBERS[::-1, 0]).astype(np.float32)
    several = np.where(unknown[:, None], -1, SEVERAL).astype(np.int8)
    for kind, labels_of_kind in (("classes", y), ("several", several), ("number", number)):
        write_dataset(tmp_path / f"{kind}.npz", y=labels_of_kind)


def check_histories(one: list[dict], same: list[dict], case: object) -> None:
    for record, other in zip(one, same, strict=True):
        assert record.keys() == other.keys()
        for name in record.keys() - {"seconds", "val_mrr", "test_mrr"}:  # ties
            if record[name] is None:
                assert other[name] is None, (case, name)
            else:
                assert other[name] == pytest.approx(record[name], rel=1e-3), (case, name)


def test_ranks_without_vertices_or_labels(tmp_path):
    check_uneven(tmp_path, UNEVEN)


def check_uneven(directory: Path, cases: list[tuple[str, dict]]) -> None:
    """The same on one rank and on four, of which some have nothing."""
    write_uneven(directory)
    (one,), ranks = (run_ranks(uneven, size, directory, cases) for size in (1, 4))
    for case, expected, found in zip(cases, one, ranks[0], strict=True):
        check_histories(expected[0], found[0], case)
        for array, same in zip(expected[1], found[1], strict=True):
            np.testing.assert_allclose(same, array, rtol=1e-3, atol=1e-5, err_msg=str(case))


@pytest.mark.parametrize(
    ("metric", "values", "epochs", "best"),
    [
        ("auto", [3.0, 2, 1, 2, 3], 4, 2),
        ("accuracy", [0.1, 0.3, 0.2, 0.3, 0.1, 0.0], 5, 1),
        ("accuracy", [0.1, 0.2, 0.3, 0.4], 4, 3),
    ],
)
def test_better_is_higher_or_lower(tmp_path, metric, values, epochs, best):
    """Early stopping and the best epoch go by the same score."""
    path = write_dataset(tmp_path / "graph.npz")
    config = TrainConfig.of(dataset=path, epochs=len(values), patience=2, metric=metric, layers=1)
    comm = connect()
    task = NodeClassification(config, training_graph(config, comm))
    given = iter(values)
    task.scores = lambda: {task.criterion.name: next(given)}
    trainer = Trainer(task, options=config.training)
    trainer.run()
    assert len(trainer.history) == epochs
    assert best_of(trainer)["epoch"] == best
