"""Start a job, wait for its end, and see that nothing of it is left."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
import torch._dynamo

PATIENCE = 300.0  # seconds until what has not ended hangs, on a machine with much else to do
ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")
TRAINING = ["experiments/gcn.py", "--dataset=sbm", "--epochs=3", "--hidden=8", "--dropout=0.5"]


NEEDS_MPI = (
    pytest.mark.mpi,
    pytest.mark.skipif(not MPIEXEC.exists(), reason="needs the extra 'mpi'"),
)


def needs_mpi(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts mpiexec."""
    for mark in NEEDS_MPI:
        test = mark(test)
    return test


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status (negative: by a signal) and what it printed."""

    status: int
    out: str
    err: str


class Forked:
    """A function that runs in a fork of this process (which has imported torch already).

    Parameters
    ----------
    body : callable
        Its return value is the exit status.
    directory : Path
        Where the output goes; one forked process at a time may write there.
    environment : variables set for it, and nothing else of a launcher's
    """

    def __init__(
        self,
        body: Callable[[], int | None],
        directory: Path,
        environment: dict[str, str] | None = None,
        name: str = "job",
    ) -> None:
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        with warnings.catch_warnings():
            # Python warns of threads in the parent; those are idle BLAS workers.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            self._run(body, environment or {})
        self._watch = os.pidfd_open(self.pid)

    def _run(self, body: Callable[[], int | None], environment: dict[str, str]) -> None:
        status = 99
        try:
            os.setpgid(0, 0)
            # A shell's background jobs ignore it, and hand that on.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for path, descriptor in ((self._out, 1), (self._err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
            # Not those of pytest, which capture.
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            os.environ.update(environment)
            # libgomp's threads, if this process's parent has any, do not survive the fork.
            torch.set_num_threads(1)
            status = body() or 0
        except KeyboardInterrupt:
            status = 130
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 98
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        os.kill(self.pid, number)

    def wait(self, patience: float = PATIENCE) -> Ended:
        """Wait for its end; a job that outlasts `patience` seconds is killed and fails the test."""
        ready, _, _ = select.select([self._watch], [], [], patience)
        if not ready:
            os.killpg(self.pid, signal.SIGKILL)
        os.close(self._watch)
        _, status = os.waitpid(self.pid, 0)
        ended = Ended(
            os.waitstatus_to_exitcode(status), self._out.read_text(), self._err.read_text()
        )
        assert ready, f"still running after {patience} s: {ended}"
        return ended


_ports = count(10_000 + os.getpid() % 20_000)
_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port of this machine that nobody listens on, and that no other process of tests is given.

    None of those that the system hands out by itself, in the meantime perhaps to someone else.
    """
    while True:
        port = next(_ports)
        # A name that the system frees when the process ends. Another one that runs tests beside
        # this one would find the port free as well, until somebody listens there.
        word = socket.socket(socket.AF_UNIX)
        try:
            word.bind(f"\0spgnn port {port}")
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            word.close()
            continue
        _reserved.append(word)
        return port


def on_their_own(
    body: Callable[[], int | None], directory: Path, ranks: int, **environment: str
) -> list[Ended]:
    """How ranks end that no launcher has started: the environment alone describes them."""
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        Forked(body, directory, job | environment | {"RANK": str(rank)}, name=f"rank{rank}")
        for rank in range(ranks)
    ]
    return [rank.wait() for rank in started]


def command(
    *words: object, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with whatever status."""
    return subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def run_program(start: list[str], *arguments: object, **environment: str) -> Ended:
    """Start an interpreter, perhaps by a launcher; after ``-m``, `misbehaving` with arguments."""
    program = [*start, *(["tests.comm.misbehaving"] if start[-1] == "-m" else [])]
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"} | environment
    done = command(*program, *arguments, environment=clean)
    return Ended(done.returncode, done.stdout, done.stderr)


def announce(path: Path, text: str = "") -> None:
    """Write a file that is there once all of its text is."""
    begun = path.with_name(f".{path.name}")
    begun.write_text(text)
    begun.rename(path)


def wait_for(what: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Return as soon as something is true."""
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, f"waited {patience} s in vain"
        time.sleep(0.02)


def slowness() -> float:
    """How many times longer than on a machine of its own a process that computes needs here, now.

    Bounds in seconds are of such a machine: times this, they hold where others compute as well.
    """
    enough, start, used = 0.02, time.monotonic(), time.thread_time()
    while time.thread_time() - used < enough:
        pass
    return max(1.0, (time.monotonic() - start) / enough)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def names_of_threads(tasks: Path = Path("/proc/self/task")) -> list[str]:
    """The names of the threads that run or wait.

    The system lists a thread for a while longer after whoever joined it has gone on.
    """
    exiting = 4  # PF_EXITING of the kernel's <linux/sched.h>
    names = []
    for task in tasks.iterdir():
        # Its files too may be gone by now.
        with suppress(FileNotFoundError, ProcessLookupError):
            before, _, after = (task / "stat").read_text().rpartition(")")
            if not int(after.split()[6]) & exiting:
                names.append(before.partition("(")[2])
    return names
