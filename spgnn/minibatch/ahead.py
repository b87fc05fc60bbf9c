"""Work that is done ahead, in threads, and handed over in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Generic, TypeVar

Made = TypeVar("Made")
Ready = TypeVar("Ready")


def in_order(
    make: Callable[[int], Made],
    finish: Callable[[Sequence[Made]], Sequence[Ready]],
    count: int,
    *,
    threads: int,
    ahead: int,
    together: int = 1,
) -> Iterator[Ready]:
    """What becomes of the numbers 0 … count − 1, in order.

    Each is made by any of some threads; one more thread finishes them, several together, in order.
    Whatever is raised anywhere comes out of the iterator at once, before what is ready. Closing the
    iterator ends all threads.

    Parameters
    ----------
    make : callable
        Of a number.
    finish : callable
        Of as many things that were made, as many that are ready; called in order.
    count : int
    threads : int
        0: whoever iterates does everything.
    ahead : int
        So many are made before they are asked for, but at least as many as are finished together.
    together : int
    """
    groups = (range(b, min(b + together, count)) for b in range(0, count, together))
    if not threads:
        for group in groups:
            yield from finish([make(number) for number in group])
        return
    line = _Line(make, finish, threads)
    try:
        for group in islice(groups, 1 + -(-ahead // together)):
            line.put(group)
        while (found := line.next()) is not None:
            for following in islice(groups, 1):
                line.put(following)
            yield from found
    finally:
        line.close()


class _Line(Generic[Made, Ready]):
    """Groups of numbers on their way."""

    def __init__(
        self,
        make: Callable[[int], Made],
        finish: Callable[[Sequence[Made]], Sequence[Ready]],
        threads: int,
    ) -> None:
        self._make, self._finish = make, finish
        self._makers = ThreadPoolExecutor(threads, "spgnn-sample")
        self._finisher = ThreadPoolExecutor(1, "spgnn-fetch")
        self._changed = threading.Condition()
        self._ready: deque[Sequence[Ready]] = deque()
        self._under_way = 0
        self._error: BaseException | None = None

    def put(self, group: Sequence[int]) -> None:
        """Begin with a group."""
        self._under_way += 1
        parts = [self._makers.submit(self._make, number) for number in group]
        for part in parts:
            part.add_done_callback(self._look)
        self._finisher.submit(self._finished, parts).add_done_callback(self._look)

    def next(self) -> Sequence[Ready] | None:
        """The next group that is ready; ``None`` if none is under way."""
        with self._changed:
            while not self._ready and self._error is None:
                if not self._under_way:
                    return None
                self._changed.wait()
            if self._error is not None:
                raise self._error
            self._under_way -= 1
            return self._ready.popleft()

    def close(self) -> None:
        """End all threads; what has not begun will not begin."""
        for pool in (self._makers, self._finisher):
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in (self._makers, self._finisher):
            pool.shutdown(wait=True)

    def _finished(self, parts: Sequence[Future[Made]]) -> None:
        found = self._finish([part.result() for part in parts])
        with self._changed:
            self._ready.append(found)
            self._changed.notify()

    def _look(self, future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            with self._changed:
                self._error = self._error or error
                self._changed.notify()
