"""Progress of long work: a bar on a terminal, nothing anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

# (what, steps done, steps in all); may be called very often.
Progress = Callable[[str, int, int], None]


class ProgressBar:
    """A callable (what, done, all) that draws a bar on stderr for each thing it is told of.

    Parameters
    ----------
    shown : bool
        Whether this process shows it (rank 0 does); never shown where stderr is no terminal.
    """

    _SECONDS = 0.1  # between two updates

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown and sys.stderr.isatty()
        self._bars = _bars(self.shown)
        self._tasks: dict[str, TaskID] = {}
        self._updated = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def __call__(self, what: str, done: int, total: int, news: str = "") -> None:
        """Show how far something is, with a word on its newest result."""
        now = time.monotonic()
        if not self.shown or (now - self._updated < self._SECONDS and done < total):
            return
        self._updated = now
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, news=news)
        self._bars.update(self._tasks[what], completed=done, total=total, news=news)


def _bars(shown: bool) -> Bars:
    # Imported here: a library that is imported has nothing to show yet, and rich takes its time.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}"),
        console=Console(stderr=True),
        disable=not shown,
        transient=True,
    )


def stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    """The callback (done, all) of one stage of a longer work."""
    return None if progress is None else lambda done, total: progress(name, done, total)
