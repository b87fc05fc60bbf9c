"""The local launcher: fork P ranks from one parent, and end all of them when one ends badly."""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType

import torch
from torch._C._distributed_c10d import TCPStore

from spgnn.comm.connect import die_with_parent, world
from spgnn.comm.job import CommunicationError
from spgnn.command import say
from spgnn.errors import InputError

# A rank that says why it fails lingers, so that the others can read it; give it that time.
GRACE_SECONDS = 0.2
# What an interrupted rank gets to remove a file it was writing.
INTERRUPT_SECONDS = 5.0
_TERMINATED = 128 + signal.SIGTERM
_ENDINGS = (signal.SIGINT, signal.SIGTERM)


def launch(body: Callable[[], int | None], nproc: int, threads: int = 1) -> int:
    """Run `body` on `nproc` forked ranks of this machine and wait for all of them.

    The ranks find each other as under torchrun: ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and the
    rest are set, and :func:`spgnn.comm.connect` reads them. Forking shares the imported torch
    between ranks, so 256 of them start in seconds. The caller must not have entered an OpenMP
    region with more than one thread: libgomp's thread pool does not survive a fork.

    Parameters
    ----------
    body : callable
        Runs on every rank; its return value (or 0) is the rank's exit status.
    nproc : int
        Number of ranks.
    threads : int
        OpenMP threads of each rank.

    Returns
    -------
    int
        0 if every rank returned 0. Otherwise the status of the first rank that failed; the
        others are killed. If a rank was killed by a signal, or this process was asked to end
        (SIGTERM), a line on stderr says so.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=nproc)
    environment = _described(listener, nproc)
    _preload()
    _flush()
    ranks: dict[int, int] = {}
    store = None
    # What comes meanwhile waits until there is somebody to see to it.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    try:
        for rank in range(nproc):
            pid = _fork()
            if pid == 0:
                listener.close()
                os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
                _run_rank(body, rank, threads, unblocked)
            ranks[pid] = rank
        # After the forks, because its server thread would not survive them.
        store = _store(listener)
        with _termination_raises():
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            return _supervise(ranks)
    except (KeyboardInterrupt, _Terminated) as end:
        terminated = isinstance(end, _Terminated)
        what = "terminated (SIGTERM)" if terminated else "interrupted"
        print(f"error: {what}, and all ranks with it", file=sys.stderr, flush=True)
        _interrupt(ranks)
        return _TERMINATED if terminated else 128 + signal.SIGINT
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        _kill(ranks)
        del store  # As long as there is a rank, it may look there.


def _described(listener: socket.socket, nproc: int) -> dict[str, str]:
    """What all ranks read of their job in the environment."""
    return {
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listener.getsockname()[1]),
        # As under torchrun: the store lives in the parent and every rank is its client.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _store(listener: socket.socket) -> TCPStore:
    return TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(hours=24),
        master_listen_fd=listener.detach(),
    )


class _Terminated(BaseException):
    """SIGTERM: whoever sent it says why, so nothing that catches errors may report it."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


@contextmanager
def _termination_raises() -> Iterator[None]:
    """Let SIGTERM end the job in good order; only a main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _preload() -> None:
    """Import once what every rank would import later, and keep it on shared pages.

    The first optimiser imports torch._dynamo and with it sympy: seconds and 100 MB for each rank.
    """
    importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads in the parent; those are idle BLAS workers.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run_rank(
    body: Callable[[], int | None], rank: int, threads: int, unblocked: set[signal.Signals | int]
) -> None:
    """Everything a forked rank does; never returns."""
    status = 1
    try:
        die_with_parent()
        # Ctrl-C on a terminal reaches all processes; the parent decides, and asks by SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _terminate)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        status = body() or 0
        say("", end="")
        _leave()
    except _Terminated:
        status = _TERMINATED
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            status = exit_.code or 0
        else:
            print(f"error: rank {rank}: {exit_.code}", file=sys.stderr)
        _leave()
    except (InputError, CommunicationError) as error:
        print(f"error: rank {rank}: {error}", file=sys.stderr)
    except BaseException:
        print(f"error: rank {rank}:\n{traceback.format_exc()}", file=sys.stderr)
    finally:
        _flush()
        os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # its disk is full, or it was closed
            stream.flush()


def _leave() -> None:
    """What happens at exit elsewhere; a fork must not run what its parent has registered."""
    comm = world()
    if comm is not None:
        comm.leave()


def _supervise(ranks: dict[int, int]) -> int:
    """Wait for all ranks; removes those that ended from `ranks`. Returns the job's status."""
    watches = {os.pidfd_open(pid): pid for pid in ranks}
    poll = select.poll()
    for watch in watches:
        poll.register(watch, select.POLLIN)
    try:
        while ranks:
            for watch, _ in poll.poll():
                poll.unregister(watch)
                pid = watches[watch]
                _, wait_status = os.waitpid(pid, 0)
                rank = ranks.pop(pid)
                status = os.waitstatus_to_exitcode(wait_status)
                if status < 0:
                    name = signal.Signals(-status).name
                    print(f"error: rank {rank} was killed by {name}", file=sys.stderr, flush=True)
                    return 128 - status
                if status == _TERMINATED:
                    print(f"error: rank {rank} was terminated", file=sys.stderr, flush=True)
                if status:
                    time.sleep(GRACE_SECONDS)
                    return status
        return 0
    finally:
        for watch in watches:
            os.close(watch)


def _interrupt(ranks: dict[int, int]) -> None:
    """Ask all ranks to end, and give them time to."""
    for pid in ranks:
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + INTERRUPT_SECONDS
    with suppress(KeyboardInterrupt):  # A second Ctrl-C: no more patience.
        while time.monotonic() < end:
            for pid in list(ranks):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del ranks[pid]
            if not ranks:
                return
            time.sleep(0.02)


def _kill(ranks: dict[int, int]) -> None:
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    for pid in ranks:
        os.waitpid(pid, 0)
    ranks.clear()
