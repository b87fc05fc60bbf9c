"""Callbacks of a run, called after each epoch on rank 0."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from spgnn.errors import InputError
from spgnn.files import atomic_file, check_writable

Record = Mapping[str, Any]
"""An epoch: its number, loss, learning rate and seconds, and the scores where it was evaluated."""

Callback = Callable[[Record], object]
"""``on_epoch(record)``: called after each epoch on rank 0 alone, so it must not be collective.

If it returns ``True``, this was the last epoch; whatever it raises ends the run on all ranks, with
its message. What has a ``state_dict`` is saved with a checkpoint, and goes on where a run resumes.
A scheduler of torch is stepped, ``ReduceLROnPlateau`` with the validation loss.
"""


def call(callback: Any, record: Record) -> object:
    """Call a callback with an epoch, or step a scheduler."""
    if callable(callback):
        return callback(record)
    by_loss = isinstance(callback, ReduceLROnPlateau)
    callback.step(*([record.get("val_loss", record["loss"])] if by_loss else []))
    return None


def states_of(callbacks: Sequence[Any]) -> list[Any]:
    """State of each callback, ``None`` where it has none."""
    return [one.state_dict() if hasattr(one, "state_dict") else None for one in callbacks]


CSV_FILE = "history.csv"


class CSVLog:
    """``history.csv`` in a directory, made if need be: an epoch a line, written as it ends."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / CSV_FILE
        self._columns: list[str] = []
        self._records: list[Record] = []

    def __call__(self, record: Record) -> None:
        """Append a line; a score that was never there before is a new column of all lines."""
        if not self._records:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._records = _lines_before(self._path, record["epoch"])
        self._records.append(record)
        if not set(record) <= set(self._columns):
            self._write_all()
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(self._path, flags), "a", newline="") as file:
            file.write(self._lines([record]))

    def _write_all(self) -> None:
        named = [name for record in self._records for name in record]
        # Seconds last, whatever else an epoch has.
        names = dict.fromkeys(name for name in named if name != "seconds")
        self._columns = [*names, *(["seconds"] if "seconds" in named else [])]
        text = self._lines([{name: name for name in self._columns}, *self._records])
        with atomic_file(self._path) as file:
            file.write(text.encode())

    def _lines(self, records: Iterable[Record]) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writerows(records)
        return text.getvalue()


def _lines_before(path: Path, epoch: int) -> list[Record]:
    """Lines of earlier epochs; none of a file that is no such history."""
    try:
        with path.open(newline="") as file:
            lines: list[Record] = list(csv.DictReader(file, strict=True))
        earlier = [line for line in lines if int(line["epoch"]) < epoch]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return []
    return [] if any(None in line or None in line.values() for line in earlier) else earlier


class TensorBoardLog:
    """Event files of TensorBoard in a directory: a scalar for each number of an epoch."""

    def __init__(self, directory: str) -> None:
        try:
            self._module = importlib.import_module("torch.utils.tensorboard")
        except ImportError:
            raise InputError("tensorboard is not installed: pip install 'spgnn[log]'") from None
        self._directory = directory
        self._writer: Any = None

    def __call__(self, record: Record) -> None:
        """Add a point to each curve; what is shown of epochs that are trained again is dropped."""
        epoch = record["epoch"]
        if self._writer is None:
            self._writer = self._module.SummaryWriter(self._directory, purge_step=epoch or None)
            weakref.finalize(self, self._writer.close)
        for name, value in record.items():
            if name != "epoch" and value is not None:
                self._writer.add_scalar(name, value, epoch)
        self._writer.flush()


def logs_in(directory: str) -> list[Callback]:
    """The logs of ``--log``: CSV, and TensorBoard where it is installed."""
    result: list[Callback] = [CSVLog(directory)]
    if importlib.util.find_spec("tensorboard") is not None:
        result.append(TensorBoardLog(directory))
    return result


def check_log_directory(directory: str) -> None:
    """Find out before training whether logs can be written; makes the directory."""
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--log {directory}: cannot be made: {error.strerror}") from None
    check_writable(path / CSV_FILE, "--log")
