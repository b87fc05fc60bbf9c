"""Work that is done ahead, in threads, and handed over in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import Any, Generic, TypeVar

Made = TypeVar("Made")
Ready = TypeVar("Ready")
Finish = Callable[[Sequence[Made]], Generator[Ready, None, None]]


def in_order(
    make: Callable[[int], Made],
    finish: Finish[Made, Ready],
    count: int,
    *,
    threads: int,
    ahead: int,
    together: int = 1,
) -> Generator[Ready, None, None]:
    """What becomes of the numbers 0 … count − 1, in order.

    Each is made by any of some threads; one more thread finishes them, several together, in order.
    Whatever is raised anywhere comes out of the iterator at once, before what is ready. Closing the
    iterator ends all threads.

    Parameters
    ----------
    make : callable
        Of a number.
    finish : callable
        Of several things that were made, those that are ready, one by one; called in order.
    count : int
    threads : int
        0: whoever iterates does everything.
    ahead : int
        At most so many are ready before they are asked for.
    together : int
        So many are made before the first of them is finished.
    """
    if not threads:
        for first in range(0, count, together):
            group = range(first, min(first + together, count))
            yield from finish([make(number) for number in group])
        return
    line = _Line(make, finish, count, threads=threads, ahead=ahead, together=together)
    try:
        yield from line.ready()
    finally:
        line.close()


def last(work: Generator[None, None, Ready]) -> Ready:
    """What becomes of all steps of a work, one after the other."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            made: Ready = done.value
            return made


def in_turns(
    works: Iterable[Generator[None, None, Ready]], drop: Callable[[Ready], object]
) -> Generator[Ready, None, None]:
    """What becomes of several works, in order, each of which goes on by a step at every turn.

    All steps are made by whoever iterates, in an order that depends on their numbers alone, so
    they may be collective. One work more is ready than is asked for. Closing the iterator leaves
    those that are not as they are.

    Parameters
    ----------
    works : iterable of generators
        Each yields between its steps, of which all have as many, and returns what it makes.
    drop : callable
        Of what is ready when the iterator is closed.
    """
    coming = iter(works)
    growing: deque[Generator[None, None, Ready]] = deque()
    ready: deque[Ready] = deque()
    try:
        while True:
            growing.extend(islice(coming, 1))
            if not growing:
                break
            for work in list(growing):
                try:
                    next(work)
                except StopIteration as done:
                    growing.remove(work)
                    ready.append(done.value)
            if len(ready) > 1:
                yield ready.popleft()
        while ready:
            yield ready.popleft()
    finally:
        for left in ready:
            drop(left)


class _Line(Generic[Made, Ready]):
    """Numbers on their way through the threads; see `in_order`."""

    def __init__(
        self,
        make: Callable[[int], Made],
        finish: Finish[Made, Ready],
        count: int,
        *,
        threads: int,
        ahead: int,
        together: int,
    ) -> None:
        self._make, self._finish, self._count = make, finish, count
        self._ahead, self._together = max(ahead, 1), together
        self._changed = threading.Condition()
        self._ready: deque[Ready] = deque()
        self._done = self._closed = False
        self._error: BaseException | None = None
        self._makers = ThreadPoolExecutor(threads, "spgnn-sample")
        self._finisher = threading.Thread(target=self._run, name="spgnn-fetch", daemon=True)
        self._finisher.start()

    def ready(self) -> Iterator[Ready]:
        """What is ready, in order."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._done or self._error)
                if self._error is not None:
                    raise self._error
                if not self._ready:
                    return
                found = self._ready.popleft()
                self._changed.notify_all()
            yield found

    def close(self) -> None:
        """End all threads; what has not begun will not begin."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._makers.shutdown(wait=True, cancel_futures=True)
        self._finisher.join()

    def _run(self) -> None:
        try:
            self._finish_all()
        except CancelledError:
            pass
        except BaseException as error:
            self._fail(error)
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _finish_all(self) -> None:
        begun: deque[Future[Made]] = deque()
        numbers = iter(range(self._count))
        for first in range(0, self._count, self._together):
            size = min(self._together, self._count - first)
            # While these are finished, others are made.
            for number in numbers:
                begun.append(self._begin(number))
                if len(begun) == size + max(self._together, self._ahead):
                    break
            group = [begun.popleft().result() for _ in range(size)]
            with closing(self._finish(group)) as finished:
                for found in finished:
                    if not self._put(found):
                        return

    def _begin(self, number: int) -> Future[Made]:
        try:
            future = self._makers.submit(self._make, number)
        except RuntimeError:  # they have been sent home
            raise CancelledError from None
        future.add_done_callback(self._look)
        return future

    def _put(self, found: Ready) -> bool:
        """Put down what is ready, as soon as there is room; whether anybody is interested."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._ahead)
            self._ready.append(found)
            self._changed.notify_all()
            return not self._closed

    def _look(self, future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
