"""A process is asked to end: by a signal, or by the end of the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any
from weakref import ref

ENDINGS = (signal.SIGINT, signal.SIGTERM)
TERMINATED = 128 + signal.SIGTERM  # an exit status, as shells have it
# A process that is asked to end gets this long to remove the files it was writing.
END_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


class AskedToEnd(SystemExit):
    """A signal, of this number, asked this process to end: nobody may report it as an error."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def name_of(number: int) -> str:
    """``SIGKILL``, or ``SIGRTMIN+3``: real-time signals have no names of their own."""
    with suppress(ValueError):
        return signal.Signals(number).name
    first = signal.SIGRTMIN
    return f"SIGRTMIN+{number - first}" if first < number < signal.SIGRTMAX else f"signal {number}"


def end_silently_on_interrupt() -> None:
    """Let Ctrl-C end a command that is still importing; `raise_on_interrupt` takes that back."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _importing.append(os.getpid())


def raise_on_interrupt() -> None:
    """The command is imported: Ctrl-C raises ``KeyboardInterrupt`` again."""
    if _importing:
        _importing.clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)


# The process that imports a command.
_importing: list[int] = []


def raise_once(number: int, frame: FrameType | None) -> None:
    """Handle a signal by raising `AskedToEnd`, which later ones do not interrupt on its way."""
    if _on_its_way() is None:
        _raise(AskedToEnd(number), number)


class _Interrupt(KeyboardInterrupt):
    """As Python raises it; but it can be referred to weakly."""


def _raise(end: BaseException, number: int) -> None:
    """Raise it, and send the signal again where it is dropped: in a finaliser, or in C code."""
    # No line of Python runs then, in which the next one would be dropped as well.
    _end[:] = [ref(end, partial(_send, number))]
    _noticed.set()
    show = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if lost.exc_value is _on_its_way() else show(lost)
    try:
        raise end
    finally:
        del end  # or its own traceback keeps it


def _on_its_way() -> BaseException | None:
    return _end[0]() if _end else None


_send = ctypes.CDLL(None)["raise"]
_send.argtypes = ctypes.c_int, ctypes.py_object
# The exception of a signal, as long as a block here waits for it; and that it was raised at all.
_end: list[ref[BaseException]] = []
_noticed = threading.Event()


def die_with_parent(parent: int) -> None:
    """Have the system end this process when its parent, of this number, ends; at once if it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(TERMINATED)


def die_with_torchrun() -> None:
    """The same if torchrun started this process, or a rank of it: nobody else would end them."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(os.getppid())


@contextmanager
def endings_prevail() -> Iterator[None]:
    """Raise the end that a signal asked for, where clean-up after it raised another error."""
    # A signal may interrupt torch's own bookkeeping, which it then cannot undo.
    try:
        yield
    except Exception:
        end = _on_its_way()
        if end is not None:
            raise end from None
        raise


@contextmanager
def endings_raise() -> Iterator[None]:
    """SIGINT and SIGTERM raise `AskedToEnd` in the block, if on a main thread and not ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDINGS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, raise_once)
        with endings_prevail():
            yield
    finally:
        _restore(before)


@contextmanager
def termination_raises(give_up: Callable[[], object]) -> Iterator[bool]:
    """SIGTERM raises `AskedToEnd` in the block; yields whether this process says why it ends."""
    # Another thread calls `give_up`, which must end the process, `END_SECONDS` after the signal if
    # the main thread, which may compute outside Python, has not noticed it.
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield bool(_in_force) or signal.getsignal(signal.SIGTERM) is not raise_once
        return

    def watch() -> None:
        while number := reader.recv(1):
            if number[0] == signal.SIGTERM and not _noticed.wait(END_SECONDS):
                give_up()

    _noticed.clear()
    before = {number: signal.getsignal(number) for number in ENDINGS}
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    thread = threading.Thread(target=watch, name="termination", daemon=True)
    thread.start()
    others = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, raise_once)
    if before[signal.SIGINT] is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _: _raise(_Interrupt(), number))
    _in_force.append(os.getpid())
    try:
        with endings_prevail():
            yield True
    finally:
        _noticed.set()
        _in_force.clear()
        _restore(before)
        signal.set_wakeup_fd(others)
        writer.close()
        thread.join()
        reader.close()


# The process whose SIGTERM raises, and the signals it blocked before it forks.
_in_force: list[int] = []
_blocked: list[set[int]] = []


def _before_fork() -> None:
    """A signal must not reach the new process while it would still tell its parent of it."""
    if _in_force:
        _blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,)))


def _after_fork() -> None:
    if _blocked:
        signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.pop())


def _in_child() -> None:
    if _in_force:
        _in_force.clear()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    _end.clear()
    for number, handler in handlers.items():
        if handler is not None:  # as it is where Python did not install it
            signal.signal(number, handler)
