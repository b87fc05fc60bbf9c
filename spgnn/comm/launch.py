"""The start of a job: as a rank of a launcher, or as that of the P ranks that are forked here."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from spgnn.comm.communicator import Communicator
from spgnn.comm.connect import LOCALHOST, connect, meet_in
from spgnn.comm.failure import CommunicationError, StartError, guarded, world
from spgnn.comm.place import OUTER_NAMES, default_threads, find_place
from spgnn.command import prepare_streams, run, say
from spgnn.errors import InputError, check_method
from spgnn.registry import LIBRA, METHODS
from spgnn.signals import (
    END_SECONDS,
    ENDINGS,
    TERMINATED,
    AskedToEnd,
    die_with_parent,
    endings_prevail,
    endings_raise,
    name_of,
    raise_on_interrupt,
    raise_once,
)

# A rank that says why it fails lingers, so that the others can read it; give it that time.
GRACE_SECONDS = 0.2
# What a program on this machine takes to answer, however busy the machine is.
REACH_SECONDS = 20.0
# The end of a rank is seen at once, or at the latest after this time.
_LOOK_SECONDS = 0.05
_BAD_INPUT = 2


class JobConfig(Protocol):
    """A command's configuration, as far as its ranks are started by it."""

    @property
    def job(self) -> Any:
        """``backend``, ``device``, ``nproc`` and ``threads`` (0: an even share)."""

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks."""


Config = TypeVar("Config", bound=JobConfig)
Result = TypeVar("Result")


def run_job(
    read: Callable[[], Config],
    body: Callable[[Config, Communicator], Result],
    publish: Callable[[Config, Result], int | None],
    device: str | None = None,
) -> int:
    """The whole of a command that runs on one or many ranks; returns its exit status.

    Started by torchrun, mpiexec or srun, this process is one rank. Started plainly, it forks
    ``--nproc`` ranks.

    Parameters
    ----------
    read : callable
        Returns the configuration. Bad input is one line, of rank 0.
    body : callable (config, comm)
        Runs on every rank, which ends all others if it fails. Collective.
    publish : callable (config, result)
        Runs on rank 0 when all ranks are done.
    device : str, optional
        Of a command that knows one only, whatever the configuration says.
    """
    raise_on_interrupt()
    prepare_streams()
    try:
        config = read()
        nproc, threads = config.job.nproc, config.job.threads
        place = find_place()
        if place is not None and nproc > 1 and place.size != nproc:
            raise InputError(
                f"--nproc {nproc} starts ranks, but a launcher has already started "
                f"{place.size}; leave one of them out"
            )
        config.check(nproc if place is None else place.size)
        if place is None:  # Elsewhere rank 0 alone may see a file.
            options: dict[str, Any] = getattr(config, "flat", dict)()
            check_method(options.get("partition", LIBRA), (*METHODS, LIBRA))
            getattr(config, "check_sources", lambda: None)()
    except InputError as error:
        return _refuse(error)

    def rank() -> int:
        try:
            comm = connect(config.job.backend, device or config.job.device)
        except InputError as error:
            return _refuse(error)
        with guarded(comm):
            result = body(config, comm)
        return run(lambda: publish(config, result)) if comm.rank == 0 else 0

    if place is None and nproc > 1:
        try:
            return launch(rank, nproc, threads)
        except AskedToEnd as end:
            return 128 + end.number
    if threads or place is not None:
        torch.set_num_threads(threads or default_threads())
    return rank()


def _refuse(error: InputError) -> int:
    """Print why the job cannot start; returns the exit status."""
    try:
        place = find_place()
    except InputError:
        place = None
    if place is None or place.rank == 0 or isinstance(error, StartError):
        _say(str(error))
    return _BAD_INPUT


def launch(body: Callable[[], int | None], nproc: int, threads: int = 1) -> int:
    """Run `body` on `nproc` forked ranks of this machine and wait for all of them.

    The ranks are described as under torchrun (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and the
    rest are set), and :func:`spgnn.comm.connect` finds the others in a file of memory that all
    inherit and no other user can open. Nothing listens at ``MASTER_PORT``, so that the program's
    own ``init_process_group`` may. Each rank has `threads` OpenMP threads (0: an even share of the
    processors); the return value of `body`, or 0, is its exit status. Forking shares the imported
    torch between ranks, so 256 of them start in seconds. The caller must have no process group, and
    must not have entered an OpenMP region with more than one thread: neither survives a fork.

    Returns
    -------
    int
        0 if every rank returned 0. Otherwise the status of the first rank that failed; the
        others are killed. If a rank was killed by a signal, or if the ranks cannot start, a line on
        stderr says so.

    Raises
    ------
    SystemExit
        When all ranks have ended, if this process was asked to end (SIGTERM, SIGINT), and a line on
        stderr says so.
    """
    ranks: dict[int, int] = {}
    threads = threads or default_threads(nproc)
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with endings_raise():
            try:
                return _start(body, ranks, nproc, threads)
            except AskedToEnd as end:
                what = "terminated (SIGTERM)" if end.number == signal.SIGTERM else "interrupted"
                _say(f"{what}, and all ranks with it")
                _interrupt(ranks)
                raise
            finally:
                for pid in ranks:
                    os.kill(pid, signal.SIGKILL)
                for pid in ranks:
                    os.waitpid(pid, 0)
                ranks.clear()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def _start(body: Callable[[], int | None], ranks: dict[int, int], nproc: int, threads: int) -> int:
    """Fork all ranks, note them in `ranks`, and wait for their end; returns the job's status."""
    if dist.is_initialized():
        _say("ranks cannot be forked from a process that has a process group; use its own ranks")
        return _BAD_INPUT
    try:
        port = _reachable_port()
    except OSError as error:
        _say(
            f"ranks meet at {LOCALHOST}, which this process cannot reach ({_reason(error)}): "
            "is the loopback interface up, and does the sandbox or firewall allow it?"
        )
        return _BAD_INPUT
    environment = {
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": LOCALHOST,
        "MASTER_PORT": str(port),
    }
    # What every rank would import later, on pages that all share.
    import spgnn.comm.shared
    import spgnn.comm.torchdist  # noqa: F401

    gc.collect()
    gc.freeze()
    _flush()
    # What comes meanwhile waits until all ranks are noted and can be ended in good order.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDINGS, signal.SIGCHLD))
    parent = os.getpid()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or the system forgets how ranks ended
    try:
        store = os.memfd_create("spgnn store")
        os.close(os.open(f"/proc/self/fd/{store}", os.O_RDWR))
    except OSError as error:
        _say(
            f"ranks meet in a file of memory, which this process cannot open ({_reason(error)}): "
            "is /proc there, and does the sandbox allow memfd_create?"
        )
        return _BAD_INPUT
    try:
        for rank in range(nproc):
            pid = _fork()
            if pid == 0:
                meet_in(store)
                for name in (*OUTER_NAMES, "TORCHELASTIC_USE_AGENT_STORE"):
                    os.environ.pop(name, None)
                os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
                with suppress(AskedToEnd):
                    _run_rank(body, rank, threads, unblocked, parent)
                os._exit(TERMINATED)  # asked to end at its very end
            ranks[pid] = rank
    except OSError as error:
        _say(
            f"{len(ranks)} of {nproc} ranks could start ({_reason(error)}): start fewer, or raise "
            "the limit of processes and threads (ulimit -u, pids of a container or of SLURM)"
        )
        return _BAD_INPUT
    finally:
        os.close(store)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, set(ENDINGS) - unblocked)
    return _supervise(ranks)


def _say(what: str) -> None:
    print(f"error: {what}", file=sys.stderr, flush=True)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).partition("\n")[0]


def _reachable_port() -> int:
    """A free port to which ranks can connect, as a first connection shows."""
    with socket.create_server((LOCALHOST, 0)) as listener:
        listener.settimeout(REACH_SECONDS)
        with socket.create_connection(listener.getsockname(), REACH_SECONDS):
            listener.accept()[0].close()
        return int(listener.getsockname()[1])


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads in the parent; those are idle BLAS workers.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run_rank(
    body: Callable[[], int | None],
    rank: int,
    threads: int,
    unblocked: set[signal.Signals | int],
    parent: int,
) -> None:
    """Everything a forked rank does; never returns."""
    status = 1

    def leave() -> None:  # as exit handlers do elsewhere; those of the parent must not run here
        comm = world()
        if comm is not None:
            comm.leave()

    try:
        die_with_parent(parent)
        # Ctrl-C on a terminal reaches all processes; the parent decides, and asks by SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, raise_once)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        with endings_prevail():
            status = body() or 0
            say("", end="")
            leave()
    except AskedToEnd:
        _flush()
        os._exit(TERMINATED)
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            status = exit_.code or 0
        else:
            print(f"error: rank {rank}: {exit_.code}", file=sys.stderr)
        leave()
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


def _supervise(ranks: dict[int, int]) -> int:
    """Wait for all ranks; removes those that ended from `ranks`. Returns the job's status."""
    while True:
        ended = [(pid, status) for pid in ranks if (status := _status(pid)) is not None]
        numbers = {pid: ranks.pop(pid) for pid, _ in ended}
        # Those that were killed first: others may have ended because of them.
        for pid, status in sorted(ended, key=lambda end: end[1] >= 0):
            if status < 0:
                _say(f"rank {numbers[pid]} was killed by {name_of(-status)}")
                return 128 - status
            if status:
                time.sleep(GRACE_SECONDS)  # This process may be asked to end just as well.
            if status == TERMINATED:
                _say(f"rank {numbers[pid]} was terminated")
            if status:
                return status
        if not ranks:
            return 0
        try:
            signal.sigtimedwait((signal.SIGCHLD,), _LOOK_SECONDS)
        except OSError:  # Some sandboxes do not let us wait for signals either.
            time.sleep(_LOOK_SECONDS)


def _status(pid: int) -> int | None:
    """The exit status of a child (negative: the signal that killed it), ``None`` while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _interrupt(ranks: dict[int, int]) -> None:
    """Ask all ranks to end, and give them time to."""
    impatient: list[int] = []
    if threading.current_thread() is threading.main_thread():
        # A second Ctrl-C: no more patience.
        signal.signal(signal.SIGINT, lambda number, frame: impatient.append(number))
    for pid in ranks:
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + END_SECONDS
    while ranks and not impatient and time.monotonic() < end:
        for pid in [pid for pid in ranks if _status(pid) is not None]:
            del ranks[pid]
        time.sleep(0.02)
