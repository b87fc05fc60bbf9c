"""Interrupts that do not get lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """While entered, an interrupt that was swallowed is raised again by `check`.

    Python raises KeyboardInterrupt wherever it happens to be. In a finaliser, as while the archive
    of a checkpoint is closed, it is dropped, and a long job would go on.
    """

    def __enter__(self) -> Self:
        self._seen = False
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is signal.default_int_handler:
                    self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was one since entering."""
        if self._seen:
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._seen = True
        raise KeyboardInterrupt
