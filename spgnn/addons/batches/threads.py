"""Work that is done ahead, in threads, and handed over in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
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
    groups = [range(first, min(first + together, count)) for first in range(0, count, together)]
    if not threads:
        for group in groups:
            yield from finish([make(number) for number in group])
        return
    makers, errors = ThreadPoolExecutor(threads, "spgnn-sample"), list[BaseException]()

    def finished() -> Generator[Ready, None, None]:
        numbers, begun = iter(range(count)), deque[Future[Made]]()
        for group in groups:
            # While these are finished, others are made.
            for number in islice(numbers, len(group) + max(together, ahead) - len(begun)):
                begun.append(_submitted(errors, makers, make, number))
            yield from finish([begun.popleft().result() for _ in group])

    with closing(in_background(finished(), max(ahead, 1), errors)) as results:
        try:
            for result in results:  # noqa: UP028  # makers end before `results` are closed
                yield result
        finally:
            makers.shutdown(wait=True, cancel_futures=True)


def in_background(
    work: Generator[Ready, None, None], ahead: int, errors: list[BaseException] | None = None
) -> Generator[Ready, None, None]:
    """A generator's items, made by one thread, so many ahead. Closing the iterator ends both.

    What the thread raises comes out at once, and so does what others note among the errors.
    """
    thread, end = ThreadPoolExecutor(1, "spgnn-fetch"), object()
    ready: deque[Future[Any]] = deque()
    errors = [] if errors is None else errors
    try:
        while True:
            while len(ready) <= ahead:
                ready.append(_submitted(errors, thread, next, work, end))
            if errors:
                raise errors[0]
            result = ready.popleft().result()
            if result is end:
                return
            yield result
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
        work.close()


def _submitted(
    errors: list[BaseException], threads: Executor, call: Callable[..., Ready], *arguments: Any
) -> Future[Ready]:
    """A call in one of some threads, whose error is noted as soon as there is one."""

    def note(future: Future[Ready]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            errors.append(error)

    future = threads.submit(call, *arguments)
    future.add_done_callback(note)
    return future


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
