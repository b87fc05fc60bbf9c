"""A progress bar on rank 0, silent where nobody looks."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """Epochs done, with the newest loss and validation accuracy.

    Parameters
    ----------
    epochs, done : int
    shown : bool
        Whether this rank shows it; never shown if stderr is not a terminal.
    """

    def __init__(self, epochs: int, done: int, shown: bool) -> None:
        self._bar = Progress(
            TextColumn("epoch"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[news]}"),
            console=Console(stderr=True),
            disable=not (shown and sys.stderr.isatty()),
            transient=True,
        )
        self._task = self._bar.add_task("epoch", total=epochs, completed=done, news="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def advance(self, loss: float, val_acc: float | None) -> None:
        """One more epoch is done."""
        news = f"loss {loss:.4f}" + ("" if val_acc is None else f"  val {val_acc:.1%}")
        self._bar.update(self._task, advance=1, news=news)
