"""Progress of long work: a line with a bar on a terminal; elsewhere a few lines, if it is long."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from spgnn.errors import ERASE, printable

# (what, steps done, steps in all); may be called very often.
Progress = Callable[[str, int, int], None]

# Where stderr is no terminal, work that takes less is not worth a line, and a job that runs for
# hours has a line in so many seconds.
LONG_SECONDS = 15.0
_RARE_SECONDS = 600.0
_SECONDS = 0.1  # between two updates of a bar
_BAR = 24  # characters
_COLUMNS = 80


def _process_began() -> float:
    """When this process was started, by the clock of ``time.perf_counter``."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # field 22 of proc(5)
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        age = 0.0
    return time.perf_counter() - max(age, 0.0)


# Forked ranks have it from the process that the user started.
PROCESS_BEGAN = _process_began()


class Stopwatch:
    """`seconds` of the parts of a job, one after the other; the first began now, or at `began`."""

    def __init__(self, began: float | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._lap = time.perf_counter() if began is None else began

    def lap(self, part: str, **within: float) -> None:
        """End a part; seconds `within` it were other parts. What has a name already adds up."""
        before, self._lap = self._lap, time.perf_counter()
        for name, seconds in {**within, part: self._lap - before - sum(within.values())}.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds


@dataclass
class _Stage:
    """Work that has begun: how far it is, and whether a line was written of it."""

    began: float
    done: int = 0
    total: int = 1
    news: str = ""
    written: bool = False

    @property
    def share(self) -> float:
        return min(self.done / self.total, 1.0) if self.total > 0 else 1.0

    @property
    def is_one_step(self) -> bool:
        return self.total == 1 and not self.done


class ProgressBar:
    """A callable (what, done, all): a line on a terminal, few lines of long work elsewhere."""

    # Of the whole process: a command has a bar for each of its jobs.
    _next_line, _pause = 0.0, 0.0

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown and sys.stderr is not None
        self._terminal = self._shown and sys.stderr.isatty()
        self._stages: dict[str, _Stage] = {}
        self._drawn = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._terminal:
            self._put(ERASE)

    def __call__(self, what: str, done: int, total: int, news: str = "") -> None:
        """Show how far something is, with a word on its newest result."""
        if not self._shown:
            return
        now, stage = time.monotonic(), self._stages.get(what)
        if stage is None or stage.share == 1.0:
            stage = self._stages[what] = _Stage(now)
        stage.done, stage.total, stage.news = done, total, news
        if not self._terminal:
            self._write(what, stage, now)
        elif now - self._drawn >= _SECONDS or stage.share == 1.0:
            self._drawn = now
            self._draw(what, stage, now)

    def _write(self, what: str, stage: _Stage, now: float) -> None:
        seconds, ends = now - stage.began, stage.share == 1.0 and stage.written
        if seconds < LONG_SECONDS or (now < ProgressBar._next_line and not ends):
            return
        pause = min(max(LONG_SECONDS, 2 * ProgressBar._pause), _RARE_SECONDS)
        ProgressBar._next_line, ProgressBar._pause = now + pause, pause
        stage.written = True
        state = "done" if stage.share == 1.0 else f"{100 * stage.share:.0f} %"
        words = ["under way" if stage.is_one_step else state, f"{seconds:.0f} s", stage.news]
        self._put(f"{what}: {', '.join(filter(None, words))}\n")

    def _draw(self, what: str, stage: _Stage, now: float) -> None:
        """The line of a stage, after what is newest of the epochs that it is a part of."""
        around = [
            f"{name} {one.done} of {one.total}  {one.news}"
            for name, one in self._stages.items()
            if one.news and one is not stage and one.share < 1
        ]
        full = int(_BAR * stage.share)
        bar = f"  {'━' * full}{' ' * (_BAR - full)}  {100 * stage.share:3.0f} %"
        words = [*around, f"{what}{' …' if stage.is_one_step else bar}"]
        seconds = now - stage.began
        if 0 < stage.share < 1 and seconds > 1:
            words.append(f"{seconds / stage.share - seconds:.0f} s left")
        text = "  ".join([*words, *filter(None, [stage.news])])
        columns = shutil.get_terminal_size((_COLUMNS, 0)).columns
        self._put(ERASE + printable(text)[: max(columns - 1, 0)])

    @staticmethod
    def _put(text: str) -> None:
        with suppress(OSError, ValueError):  # nobody is there to tell
            sys.stderr.write(text)
            sys.stderr.flush()


@contextmanager
def working(what: str, shown: bool = True) -> Iterator[None]:
    """Show work that cannot tell how far it is."""
    with ProgressBar(shown) as bar:
        bar(what, 0, 1)
        # One more call when there is something to write, on a thread that ends with the work.
        later = threading.Timer(LONG_SECONDS + _SECONDS, bar, (what, 0, 1))
        later.daemon = True
        if shown and LONG_SECONDS < threading.TIMEOUT_MAX:
            later.start()
        try:
            yield
        finally:
            later.cancel()
        bar(what, 1, 1)


def stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    """The callback (done, all) of one stage of a longer work."""
    return None if progress is None else lambda done, total: progress(name, done, total)
