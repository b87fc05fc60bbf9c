"""Progress of long work: one line on a terminal, nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import TaskID

from spgnn.data.download import Progress


@contextmanager
def terminal_progress() -> Iterator[Progress | None]:
    """A callable (what, done, all) that draws a bar on stderr; ``None`` if that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    tasks: dict[str, TaskID] = {}
    with RichProgress(console=Console(stderr=True), transient=True) as bars:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show
