"""Callbacks: CSV, TensorBoard (a fake package), a user's own, and their errors."""

from __future__ import annotations

import csv
import gc
import sys
from types import ModuleType

import pytest

from spgnn import InputError
from spgnn.comm import connect
from spgnn.config import TrainConfig, Training
from spgnn.testing import run_ranks
from spgnn.train import Trainer, train
from spgnn.train.callbacks import CSVLog, TensorBoardLog, logs_in
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
    trainer = Trainer(
        Line(connect()), options=Training(epochs=epochs, **options), callbacks=[callback]
    )
    trainer.run()
    return trainer


def points(trainer: Trainer) -> list[dict]:
    return [{n: v for n, v in r.items() if n != "epoch"} for r in trainer.history]


def test_tensorboard(monkeypatch):
    calls = fake(monkeypatch, "torch.utils.tensorboard")
    log = TensorBoardLog("there")
    trainer = trained(log)
    name, args, kwargs = calls[0]
    assert (name, args, kwargs) == ("SummaryWriter", ("there",), {"purge_step": None})
    scalars = [args for name, args, _ in calls if name.endswith("add_scalar")]
    expected = [(n, v, e) for e, point in enumerate(points(trainer)) for n, v in point.items()]
    assert scalars == expected
    assert calls[-1][0].endswith("flush")
    del log, trainer
    gc.collect()
    assert calls[-1][0].endswith("close")
    TensorBoardLog("there")({"epoch": 4, "loss": 1.0, "val_loss": None})  # of a resumed run
    assert calls[-4][2] == {"purge_step": 4}
    assert calls[-3][1] == ("loss", 1.0, 4)


def test_what_log_asks_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="tensorboard is not installed: pip install"):
        TensorBoardLog("x")
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
            patch.setattr("spgnn.train.trainer.Trainer._save_sometimes", lambda self: None)
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


@pytest.mark.parametrize(
    "text", ["epoch,loss\nx,1\n", "loss\n1\n", "epoch,loss\n0,1,2\n", "epoch,loss\n0\n", "\0", ""]
)
def test_csv_in_the_place_of_something_else(tmp_path, text):
    path = tmp_path / "history.csv"
    path.write_text(text)
    log = CSVLog(str(tmp_path))
    for epoch in (1, 2):
        log({"epoch": epoch, "loss": 0.5, "seconds": 1.0})
    assert path.read_text() == "epoch,loss,seconds\n1,0.5,1.0\n2,0.5,1.0\n"


def test_csv_is_not_written_through_a_link(tmp_path):
    victim, log = tmp_path / "victim", CSVLog(str(tmp_path / "log"))
    victim.write_text("precious")
    file = tmp_path / "log" / "history.csv"
    file.parent.mkdir()
    file.symlink_to(victim)
    log({"epoch": 0, "loss": 1.0})
    assert not file.is_symlink()
    file.unlink()
    file.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        log({"epoch": 1, "loss": 0.5})
    assert victim.read_text() == "precious"


def test_callbacks_are_called_on_rank_0():
    """Whether the others have any or not."""

    def body(rank: int) -> list:
        told: list[dict] = []
        for callbacks in ([told.append], [told.append] if rank == 0 else []):
            Trainer(Line(connect()), options=Training(epochs=2), callbacks=callbacks).run()
        return [record["epoch"] for record in told]

    assert run_ranks(body, 2) == [[0, 1] * 2, []]


def test_errors_in_a_callback_end_all_ranks():
    def broken(record):
        if record["epoch"] == 1:
            raise RuntimeError("no more room on the board")

    def body(rank: int) -> tuple[str | None, int, int]:
        told: list[dict] = []
        trainer = Trainer(
            Line(connect()), options=Training(epochs=3), callbacks=[broken, told.append]
        )
        trainer.run()
        return trainer.failure, len(trainer.history), len(told)

    first, other = run_ranks(body, 2)
    assert first == ("broken: no more room on the board", 2, 2)
    assert other == (*first[:2], 0)


def test_places_that_cannot_be_written(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    for place, word in ((path, "cannot be made"), ("/proc/x", "cannot be made")):
        check_refused(run(tmp_path, "--dataset", path, "--log", place, "--nproc", 2), "--log", word)
