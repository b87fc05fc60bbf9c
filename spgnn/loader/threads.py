"""Work that is done ahead, in threads, and handed over in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
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
    if not threads:
        for first in range(0, count, together):
            group = range(first, min(first + together, count))
            yield from finish([make(number) for number in group])
        return
    changed = threading.Condition()
    ready: deque[Ready] = deque()
    errors: list[BaseException] = []
    done = closed = False
    ahead = max(ahead, 1)
    makers = ThreadPoolExecutor(threads, "spgnn-sample")

    def fail(error: BaseException) -> None:
        with changed:
            errors.append(error)
            changed.notify_all()

    def look(future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            fail(error)

    def finish_all() -> None:
        begun: deque[Future[Made]] = deque()
        numbers = iter(range(count))
        for first in range(0, count, together):
            size = min(together, count - first)
            # While these are finished, others are made.
            for number in numbers:
                try:
                    future = makers.submit(make, number)
                except RuntimeError:  # the pool has been shut down
                    raise CancelledError from None
                future.add_done_callback(look)
                begun.append(future)
                if len(begun) == size + max(together, ahead):
                    break
            group = [begun.popleft().result() for _ in range(size)]
            with closing(finish(group)) as finished:
                for one in finished:
                    with changed:
                        changed.wait_for(lambda: closed or len(ready) < ahead)
                        ready.append(one)
                        changed.notify_all()
                        if closed:
                            return

    def run() -> None:
        nonlocal done
        try:
            finish_all()
        except CancelledError:
            pass
        except BaseException as error:
            fail(error)
        with changed:
            done = True
            changed.notify_all()

    finisher = threading.Thread(target=run, name="spgnn-fetch", daemon=True)
    finisher.start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: ready or done or errors)
                if errors:
                    raise errors[0]
                if not ready:
                    return
                one = ready.popleft()
                changed.notify_all()
            yield one
    finally:
        with changed:
            closed = True
            changed.notify_all()
        makers.shutdown(wait=True, cancel_futures=True)
        finisher.join()


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
    """The results of several works, in order, where each advances by a step at every turn.

    All steps are made by whoever iterates, in an order that depends on their numbers alone, so
    they may be collective. One work more is ready than is asked for. Closing the iterator leaves
    those that are not as they are.
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


def running(
    thread: Executor | None, call: Callable[..., Ready], *arguments: Any
) -> Callable[[], Ready]:
    """A call that may run in a thread; the returned function waits for its result."""
    if thread is None:
        return partial(call, *arguments)
    return thread.submit(call, *arguments).result
