"""How ranks under MPI wait, make progress, end, and learn that others have ended."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import count
from typing import Any, Literal, NoReturn

import torch
from mpi4py import MPI

from spgnn.comm.callring import CallRing
from spgnn.comm.job import CommunicationError, Farewells, Job, ended_before
from spgnn.comm.transport import Wait
from spgnn.memory import processors

# mpiexec forwards what ranks print; what is under way when a job is aborted may be lost.
FORWARDING_SECONDS = 0.5
# Ranks that find the same mistake at the same time leave it to the first of them to say so.
HESITATION_SECONDS = 0.05
_ENDED, _FAILED = 1, 2  # tags
# How often to ask before sleeping in between: with a processor of one's own, and without.
_SPINS, _SHARED_SPINS = 100, 3
_LONGEST_PAUSE = 5e-4
_LOOK_SECONDS = 0.01


Help = Literal["none", "soon", "late"]


class MPIJob(Job):
    """A job of MPI_COMM_WORLD; ranks tell each other that they end by messages of their own.

    Attributes
    ----------
    rings : list of CallRing
        Of each communicator. MPI never ends if something long was sent that nobody has received,
        and may crash if it was thousands of messages.
    progress : Progress
    """

    def __init__(self, world: Any, device: torch.device, ranks_here: int) -> None:
        super().__init__(world.Get_rank(), world.Get_size(), device)
        self._spins = _SPINS if ranks_here <= processors() else _SHARED_SPINS
        self._control = world.Dup()
        self._farewells = Farewells()
        self._sent: list[Any] = []
        self._abandoned: list[Any] = []
        self._left = False
        self._is_complete = False
        self._under_way: dict[Wait, AbstractContextManager[None]] = {}
        self.rings: list[CallRing] = []
        self.progress = Progress(lambda: self._control.Iprobe(MPI.ANY_SOURCE, _ENDED))

    def poll(
        self,
        done: Callable[[], bool],
        look: Callable[[], object] | None = None,
        patient: bool = False,
    ) -> None:
        """Return as soon as `done` says so; hear meanwhile what other ranks say.

        MPI's own waits keep a processor busy, which ranks that share one need for each other, and
        never give up.

        Raises
        ------
        TimeoutError
            After the job's time-out, unless `patient`.
        CommunicationError
            If a rank has ended that the present call waits for.
        """
        self.progress.pause()
        try:
            self._poll(done, look, patient)
        finally:
            self.progress.resume()

    def _poll(
        self, done: Callable[[], bool], look: Callable[[], object] | None, patient: bool
    ) -> None:
        start = time.monotonic()
        next_look = start + _LOOK_SECONDS
        pause = 1e-5
        for attempt in count():
            if done():
                return
            if attempt < self._spins:
                continue
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            now = time.monotonic()
            if now < next_look:
                continue
            next_look = now + _LOOK_SECONDS
            self._listen()
            if look is not None:
                look()
            if not patient and now - start > self.timeout:
                raise TimeoutError

    def abandon(self, requests: list[Any], receives: int) -> None:
        """Give up requests, of which the first are receives; their memory may still be written."""
        for request in requests[:receives]:
            if request != MPI.REQUEST_NULL:
                request.Cancel()
        self._abandoned += requests

    def fail(self, message: str, status: int = 1) -> NoReturn:
        """Print the message, unless another rank has failed already, and abort the whole job."""
        first = not self._control.Iprobe(MPI.ANY_SOURCE, _FAILED)
        self._tell_all(_FAILED, b"")
        end = time.monotonic() + HESITATION_SECONDS
        while first and self.rank != 0 and time.monotonic() < end:
            first = not self._lower_rank_failed()
            time.sleep(HESITATION_SECONDS / 50)
        if first:
            print(f"error: rank {self.rank}: {message}", file=sys.stderr, flush=True)
            time.sleep(FORWARDING_SECONDS)
        else:
            time.sleep(10 * FORWARDING_SECONDS)  # It aborts the job meanwhile.
        MPI.COMM_WORLD.Abort(status)
        raise SystemExit(status)

    def began(self, wait: Wait, blocked: AbstractContextManager[None], help_: Help) -> None:
        """An operation is under way until `wait` has returned, which may block.

        Parameters
        ----------
        wait : callable
        blocked : context manager
            What surrounds it if nobody but the job waits.
        help_ : {"none", "soon", "late"}
            What it needs to make progress.
        """
        self._under_way[wait] = blocked
        if help_ != "none":
            self.progress.began(help_)

    def ended(self, wait: Wait, help_: Help) -> None:
        """The operation is complete, or given up."""
        del self._under_way[wait]
        if help_ != "none":
            self.progress.ended(help_)

    def close(self) -> None:
        """Leave after all ranks have come here or have ended."""
        self._say_farewell()
        self._complete()
        self.leave()

    def leave(self) -> None:
        """Leave without waiting for the others, but not without a word."""
        if not self._left:
            with suppress(CommunicationError):
                for ring in self.rings:
                    ring.compare()
        self._say_farewell()
        self.progress.stop()

    def end(self) -> None:
        """MPI is about to be finalised, which waits for the others in any case."""
        self.leave()
        try:
            self._complete()
        except CommunicationError as error:
            self.fail(str(error))

    def _complete(self) -> None:
        """See to it that nothing is on its way when MPI is finalised: that would never end."""
        if self._is_complete:
            return
        self._is_complete = True
        for wait, blocked in list(self._under_way.items()):
            with blocked:
                wait()
        self.poll(lambda: len(self._farewells) == self.size - 1, self._are_silent, patient=True)
        try:
            self.poll(self._are_silent)
        except TimeoutError:
            raise CommunicationError(
                f"waited {self.timeout:g} s for other ranks at the end of the job"
            ) from None

    def _are_silent(self) -> bool:
        silent = [ring.is_silent(self._farewells) for ring in self.rings]
        return all(silent) and all(request.Test() for request in self._sent)

    def _say_farewell(self) -> None:
        if not self._left:
            self._left = True
            self._tell_all(_ENDED, self.farewell().encode())

    def _tell_all(self, tag: int, words: bytes) -> None:
        others = (peer for peer in range(self.size) if peer != self.rank)
        self._sent += [self._control.Isend([words, MPI.BYTE], peer, tag) for peer in others]

    def _listen(self) -> None:
        status = MPI.Status()
        while self._control.Iprobe(MPI.ANY_SOURCE, _ENDED, status):
            words = bytearray(status.Get_count(MPI.BYTE))
            self._control.Recv([words, MPI.BYTE], status.Get_source(), _ENDED)
            self._farewells.add(words.decode())
        if self.waiting is not None:
            ended = self._farewells.missing_in(self.waiting)
            if ended is not None:
                raise CommunicationError(ended_before(ended, self.waiting))

    def _lower_rank_failed(self) -> bool:
        status = MPI.Status()
        while self._control.Iprobe(MPI.ANY_SOURCE, _FAILED, status):
            source = status.Get_source()
            self._control.Recv([bytearray(), MPI.BYTE], source, _FAILED)
            if source < self.rank:
                return True
        return False


class Progress:
    """A thread that lets MPI work while this rank computes between begin and wait.

    MPI moves long messages only inside its calls. Any call will do; the thread makes one now and
    then while something is under way and nobody waits for it. For what is hidden behind a product
    it does so often; for what nobody will wait for soon rarely: every call costs the computation.
    """

    SOON_SECONDS, LATE_SECONDS = 1e-4, 5e-3

    def __init__(self, poke: Callable[[], object]) -> None:
        self._poke = poke
        self._under_way: dict[Help, int] = {"soon": 0, "late": 0}
        self._needed, self._in_haste = threading.Event(), threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._possible = MPI.Query_thread() == MPI.THREAD_MULTIPLE

    @property
    def needed(self) -> Help:
        """How much help is needed with what is under way, and nobody waits for."""
        if not self._needed.is_set():
            return "none"
        return "soon" if self._in_haste.is_set() else "late"

    def began(self, help_: Help) -> None:
        """An operation is under way."""
        self._under_way[help_] += 1
        if self._possible:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mpi-progress", daemon=True)
                self._thread.start()
            self._judge()

    def pause(self) -> None:
        """Somebody waits, and polls."""
        self._needed.clear()

    def resume(self) -> None:
        """Nobody waits any more."""
        if self._possible:
            self._judge()

    def ended(self, help_: Help) -> None:
        """An operation is complete."""
        self._under_way[help_] -= 1
        self._judge()

    def stop(self) -> None:
        """End the thread: MPI must not be called once it is finalised."""
        self._stopped = True
        for event in (self._needed, self._in_haste):
            event.set()
        if self._thread is not None:
            self._thread.join()

    def _judge(self) -> None:
        soon, late = self._under_way["soon"] > 0, self._under_way["late"] > 0
        for event, wanted in ((self._in_haste, soon), (self._needed, soon or late)):
            event.set() if wanted else event.clear()

    def _run(self) -> None:
        while not self._stopped:
            self._needed.wait()
            if self._in_haste.is_set():
                time.sleep(self.SOON_SECONDS)
            else:
                self._in_haste.wait(self.LATE_SECONDS)
            if self._needed.is_set() and not self._stopped:
                self._poke()
