"""What follows a run: calls at its start, after each epoch, and at its end; on rank 0."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from spgnn.errors import InputError
from spgnn.files import written_aside

Record = Mapping[str, Any]
CSV_FILE = "history.csv"


class Callback(Protocol):
    """Told of a run as it goes. Called on rank 0 alone, so it must not be collective.

    Whatever it raises ends the run on all ranks, with its message.
    """

    def on_start(self, config: Record, history: Sequence[Record]) -> None:
        """Before the first epoch.

        Parameters
        ----------
        config : mapping
            Flags of the run, by name.
        history : sequence of mapping
            Epochs that a resumed run has trained before; whatever this callback was told beyond
            them does not count.
        """

    def on_epoch(self, record: Record) -> None:
        """After each epoch: its number, loss, learning rate, seconds, and scores if there are."""

    def on_end(self, report: Record) -> None:
        """After the last epoch: ``history``, and ``failure``, the reason of an early end."""


class CSVLog(Callback):
    """``history.csv`` in a directory: an epoch a line, written as it ends.

    Parameters
    ----------
    directory : str
        Made if it does not exist. A resumed run goes on after the epochs that it has.
    """

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / CSV_FILE
        self._columns: list[str] = []
        self._records: list[Record] = []

    def on_start(self, config: Record, history: Sequence[Record]) -> None:
        """Write the epochs before, in the place of whatever was there."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._columns, self._records = [], list(history)
        self._write_all()

    def on_epoch(self, record: Record) -> None:
        """Append a line; a score that was never there before is a new column of all lines."""
        self._records.append(record)
        if not set(record) <= set(self._columns):
            self._write_all()
            return
        with self._path.open("a", newline="") as file:
            file.write(self._lines([record]))

    def on_end(self, report: Record) -> None:
        """Everything is there already."""

    def _write_all(self) -> None:
        named = [name for record in self._records for name in record]
        # Seconds last, whatever else an epoch has.
        names = dict.fromkeys(name for name in named if name != "seconds")
        self._columns = [*names, *(["seconds"] if "seconds" in named else [])]
        text = self._lines([{name: name for name in self._columns}, *self._records])
        with written_aside(self._path) as file:
            file.write(text.encode() if self._columns else b"")

    def _lines(self, records: Iterable[Record]) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writerows(records)
        return text.getvalue()


class TensorBoardLog(Callback):
    """Event files of TensorBoard in a directory: a scalar for each number of an epoch.

    Parameters
    ----------
    directory : str

    Raises
    ------
    InputError
        If tensorboard is not installed.
    """

    def __init__(self, directory: str) -> None:
        self._module = _optional("torch.utils.tensorboard", "tensorboard", "spgnn[log]")
        self._directory = directory
        self._writer: Any = None

    def on_start(self, config: Record, history: Sequence[Record]) -> None:
        """Open a file; what is shown of epochs that are trained again is dropped."""
        begun = len(history) if history else None
        self._writer = self._module.SummaryWriter(self._directory, purge_step=begun)
        flags = "\n".join(f"    {name} = {value}" for name, value in config.items())
        self._writer.add_text("config", flags, len(history))

    def on_epoch(self, record: Record) -> None:
        """Add a point to each curve."""
        for name, value in _numbers(record).items():
            self._writer.add_scalar(name, value, record["epoch"])

    def on_end(self, report: Record) -> None:
        """Close the file."""
        self._writer.close()


class WandbLog(Callback):
    """Weights & Biases: one of its runs for each of ours.

    Parameters
    ----------
    options
        Of ``wandb.init``: project, name, …

    Raises
    ------
    InputError
        If wandb is not installed.
    """

    def __init__(self, **options: Any) -> None:
        self._module = _optional("wandb", "wandb", "wandb")
        self._options = options
        self._run: Any = None

    def on_start(self, config: Record, history: Sequence[Record]) -> None:
        """Begin one of its runs, with our flags."""
        self._run = self._module.init(**{"config": dict(config), **self._options})

    def on_epoch(self, record: Record) -> None:
        """Log the numbers of an epoch."""
        self._run.log(_numbers(record), step=record["epoch"])

    def on_end(self, report: Record) -> None:
        """Finish it, as failed if it has."""
        self._run.finish(exit_code=int(report["failure"] is not None))


class MLflowLog(Callback):
    """MLflow: one of its runs for each of ours.

    Parameters
    ----------
    options
        Of ``mlflow.start_run``: run_name, experiment_id, …

    Raises
    ------
    InputError
        If mlflow is not installed.
    """

    def __init__(self, **options: Any) -> None:
        self._module = _optional("mlflow", "mlflow", "mlflow")
        self._options = options

    def on_start(self, config: Record, history: Sequence[Record]) -> None:
        """Begin one of its runs, with our flags as parameters."""
        self._module.start_run(**self._options)
        self._module.log_params({name: str(value) for name, value in config.items()})

    def on_epoch(self, record: Record) -> None:
        """Log the numbers of an epoch."""
        self._module.log_metrics(_numbers(record), step=record["epoch"])

    def on_end(self, report: Record) -> None:
        """Finish it, as failed if it has."""
        self._module.end_run("FINISHED" if report["failure"] is None else "FAILED")


def logs_in(directory: str) -> list[Callback]:
    """What ``--log`` asks for: CSV, and TensorBoard where it is installed."""
    found: list[Callback] = [CSVLog(directory)]
    if importlib.util.find_spec("tensorboard") is not None:
        found.append(TensorBoardLog(directory))
    return found


def check_log_directory(directory: str) -> None:
    """Find out before training whether logs can be written; makes the directory.

    Raises
    ------
    InputError
    """
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--log {directory}: cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"--log {directory}: cannot be written to")


def _numbers(record: Record) -> dict[str, float]:
    """What of an epoch is a number and has a curve."""
    return {name: value for name, value in record.items() if name != "epoch" and value is not None}


def _optional(module: str, package: str, install: str) -> Any:
    """An optional package's module."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"{package} is not installed: pip install '{install}'") from None
