"""Work that is done ahead, in threads, and handed over in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

Made = TypeVar("Made")
Ready = TypeVar("Ready")


def in_order(
    make: Callable[[int], Made],
    finish: Callable[[Sequence[Made]], Generator[Ready, None, None]],
    count: int,
    *,
    threads: int,
    ahead: int,
    together: int = 1,
) -> Generator[Ready, None, None]:
    """Results for the numbers 0 … count − 1, in order.

    Each is made by any of some threads; one more thread finishes them, several together, in order.
    Whatever is raised anywhere comes out of the iterator at once, before what is ready. Closing the
    iterator ends all threads.
    """
    if not threads:
        for first in range(0, count, together):
            group = range(first, min(first + together, count))
            yield from finish([make(number) for number in group])
        return
    ahead = max(ahead, 1)
    makers = ThreadPoolExecutor(threads, "spgnn-sample")
    finisher = ThreadPoolExecutor(1, "spgnn-fetch")
    numbers, groups = iter(range(count)), iter(range(0, count, together))
    begun: deque[Future[Made]] = deque()
    errors: list[BaseException] = []
    finished: Generator[Ready, None, None] | None = None

    def look(future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            errors.append(error)

    def finish_next() -> Ready:
        nonlocal finished
        for one in finished or ():
            return one
        size = min(together, count - next(groups))
        # While these are finished, others are made.
        for number in islice(numbers, size + max(together, ahead) - len(begun)):
            begun.append(makers.submit(make, number))
            begun[-1].add_done_callback(look)
        finished = finish([begun.popleft().result() for _ in range(size)])
        return next(finished)

    ready: deque[Future[Ready]] = deque()
    try:
        for number in range(count):
            while len(ready) <= min(ahead, count - 1 - number):
                ready.append(finisher.submit(finish_next))
                ready[-1].add_done_callback(look)
            if errors:
                raise errors[0]
            yield ready.popleft().result()
    finally:
        makers.shutdown(wait=True, cancel_futures=True)
        finisher.shutdown(wait=True, cancel_futures=True)
        if finished is not None:
            finished.close()


def in_background(work: Generator[Ready, None, None], ahead: int) -> Generator[Ready, None, None]:
    """A generator's items, made by one thread, so many ahead. Closing the iterator ends both."""
    thread, end = ThreadPoolExecutor(1, "spgnn-fetch"), object()
    ready: deque[Future[Any]] = deque()
    try:
        while True:
            while len(ready) <= ahead:
                ready.append(thread.submit(next, work, end))
            result = ready.popleft().result()
            if result is end:
                return
            yield result
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
        work.close()


def last(work: Generator[None, None, Ready]) -> Ready:
    """The result of a work, all of whose steps are made one after the other."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Ready = done.value
            return result


def in_turns(
    works: Iterable[Generator[None, None, Ready]], drop: Callable[[Ready], object]
) -> Generator[Ready, None, None]:
    """The results of several works, in order, where each advances by a step at every turn."""
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


def running(
    thread: Executor | None, call: Callable[..., Ready], *arguments: Any
) -> Callable[[], Ready]:
    """A call that may run in a thread; the returned function waits for its result."""
    if thread is None:
        return partial(call, *arguments)
    return thread.submit(call, *arguments).result
