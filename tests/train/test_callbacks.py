"""Callbacks: CSV, TensorBoard, W&B, MLflow (of fake packages), a user's own, and their errors."""

from __future__ import annotations

import csv
import sys
from types import ModuleType

import pytest

from spgnn import InputError
from spgnn.comm import connect
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, Trainer, Training, train
from spgnn.train.callbacks import CSVLog, MLflowLog, TensorBoardLog, WandbLog, logs_in
from tests.train.command import check_refused, run
from tests.train.test_task import Line
from tests.training import write_dataset


class Noted:
    """Stands for anything of a package; notes how it is called."""

    def __init__(self, calls: list, name: str = "") -> None:
        self._calls, self._name = calls, name

    def __getattr__(self, name: str) -> Noted:
        return Noted(self._calls, f"{self._name}.{name}".strip("."))

    def __call__(self, *args, **kwargs) -> Noted:
        self._calls.append((self._name, args, kwargs))
        return self


def fake(monkeypatch, name: str) -> list:
    """A module of that name, and the calls that it gets."""
    calls, module = [], ModuleType(name)
    module.__getattr__ = lambda attribute: Noted(calls, attribute)
    monkeypatch.setitem(sys.modules, name, module)
    return calls


def trained(callback, epochs: int = 2, **options) -> Trainer:
    trainer = Trainer(Line(connect()), Training(epochs=epochs, **options), connect(), [callback])
    trainer.run()
    return trainer


def points(trainer: Trainer) -> list[dict]:
    return [{n: v for n, v in r.items() if n != "epoch"} for r in trainer.history]


def test_tensorboard(monkeypatch):
    calls = fake(monkeypatch, "torch.utils.tensorboard")
    trainer = trained(TensorBoardLog("there"))
    name, args, kwargs = calls[0]
    assert (name, args, kwargs) == ("SummaryWriter", ("there",), {"purge_step": None})
    assert calls[1][0].endswith("add_text")
    assert "    epochs = 2" in calls[1][1][1]
    scalars = [args for name, args, _ in calls if name.endswith("add_scalar")]
    expected = [(n, v, e) for e, point in enumerate(points(trainer)) for n, v in point.items()]
    assert scalars == expected
    assert calls[-1][0].endswith("close")


def test_wandb(monkeypatch):
    calls = fake(monkeypatch, "wandb")
    trainer = trained(WandbLog(project="graphs"))
    assert calls[0][0] == "init"
    assert calls[0][2]["project"] == "graphs"
    assert calls[0][2]["config"]["epochs"] == 2
    logged = [(args[0], kwargs["step"]) for name, args, kwargs in calls if name.endswith(".log")]
    assert logged == [(point, epoch) for epoch, point in enumerate(points(trainer))]
    assert calls[-1][2] == {"exit_code": 0}


def test_mlflow(monkeypatch):
    calls = fake(monkeypatch, "mlflow")
    trainer = trained(MLflowLog(run_name="one"), epochs=3, lr=1e30, optimizer="sgd")
    assert trainer.failure
    assert calls[0] == ("start_run", (), {"run_name": "one"})
    assert calls[1][0] == "log_params"
    assert calls[1][1][0]["epochs"] == "3"
    logged = [(args[0], k["step"]) for name, args, k in calls if name == "log_metrics"]
    assert logged == [(point, epoch) for epoch, point in enumerate(points(trainer))]
    assert calls[-1] == ("end_run", ("FAILED",), {})


@pytest.mark.parametrize(
    ("kind", "package", "module"),
    [
        (WandbLog, "wandb", "wandb"),
        (MLflowLog, "mlflow", "mlflow"),
        (lambda: TensorBoardLog("x"), "tensorboard", "torch.utils.tensorboard"),
    ],
)
def test_packages_that_are_not_there(monkeypatch, kind, package, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=f"{package} is not installed: pip install"):
        kind()


def test_what_log_asks_for(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [type(log) for log in logs_in("x")] == [CSVLog]
    fake(monkeypatch, "torch.utils.tensorboard")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert [type(log) for log in logs_in("x")] == [CSVLog, TensorBoardLog]


def rows(path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_of_a_run_that_is_resumed(tmp_path, monkeypatch):
    """An epoch a line; killed after a checkpoint and resumed, it is that of a straight run."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = write_dataset(tmp_path / "graph.npz")
    config = TrainConfig.of(dataset=path, partition="random", epochs=7, eval_every=3)
    config = config.but(log=tmp_path / "log", checkpoint=tmp_path / "run", checkpoint_every=2)

    def body(rank: int) -> list[list[dict]]:
        found = []
        train(config.but(epochs=5, checkpoint_every=4), connect())
        found.append(rows(tmp_path / "log" / "history.csv"))
        # As if it had been killed after epoch 5, with a checkpoint of epoch 4.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("spgnn.train.loop.Trainer._save_sometimes", lambda self: None)
            train(config.but(resume=True, epochs=6), connect())
        found.append(rows(tmp_path / "log" / "history.csv"))
        report = train(config.but(resume=True), connect())
        found.append(rows(tmp_path / "log" / "history.csv"))
        return [*found, report["history"]]

    first, second, third, history = run_ranks(body, 2)[0]
    assert [len(found) for found in (first, second, third)] == [5, 6, 7]
    assert list(third[0]) == [
        *("epoch", "loss", "lr", "val_loss", "train_acc", "val_acc", "test_acc", "seconds")
    ]
    for line, record in zip(third, history, strict=True):
        for name, value in record.items():
            if name != "seconds":  # a report has those of the slowest rank
                assert line[name] == ("" if value is None else str(value))
    for before in (first, second):
        kept = [{k: v for k, v in line.items() if k != "seconds"} for line in before]
        assert kept[:5] == [{k: v for k, v in x.items() if k != "seconds"} for x in third[:5]]


class Collects:
    def __init__(self) -> None:
        self.told = []

    def on_start(self, config, history):
        self.told.append(("start", len(history)))

    def on_epoch(self, record):
        self.told.append(("epoch", record["epoch"]))

    def on_end(self, report):
        self.told.append(("end", len(report["history"]), report["failure"]))


def test_callbacks_are_called_on_rank_0():
    """Whether the others have any or not."""

    def body(rank: int) -> list:
        mine = Collects()
        for callbacks in ([mine], [mine] if rank == 0 else []):
            Trainer(Line(connect()), Training(epochs=2), connect(), callbacks).run()
        return mine.told

    told = [("start", 0), ("epoch", 0), ("epoch", 1), ("end", 2, None)]
    assert run_ranks(body, 2) == [told * 2, []]


@pytest.mark.parametrize("when", ["on_start", "on_epoch", "on_end"])
def test_errors_in_a_callback_end_all_ranks(when):
    def fails(*_):
        raise RuntimeError("no more room on the board")

    def body(rank: int) -> tuple[str | None, int, list]:
        broken, sound = Collects(), Collects()
        setattr(broken, when, fails)
        task = Line(connect())
        trainer = Trainer(task, Training(epochs=3), connect(), [broken, sound])
        trainer.run()
        return trainer.failure, len(trainer.history), sound.told[-1:]

    epochs = {"on_start": 0, "on_epoch": 1, "on_end": 3}[when]
    (said, trained, last), other = run_ranks(body, 2)
    assert (said, trained) == ("Collects: no more room on the board", epochs)
    assert other[:2] == (said, trained)
    assert last == [("end", epochs, None if when == "on_end" else said)]


def test_places_that_cannot_be_written(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    for place, word in ((path, "cannot be made"), ("/proc/x", "cannot be made")):
        check_refused(run(tmp_path, "--dataset", path, "--log", place, "--nproc", 2), "--log", word)
