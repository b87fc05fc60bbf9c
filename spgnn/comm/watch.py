"""How ranks that meet in a store learn that the job has failed, or that one of them has ended."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NoReturn

from torch.distributed import DistError

from spgnn.comm.job import Call, Farewells, Job, ended_before
from spgnn.comm.lifeline import Lifelines
from spgnn.signals import TERMINATED

FAILED_KEY = "spgnn/failed"
ENDED_KEY = "spgnn/ended"
OVER_KEY = "spgnn/over"
READ_KEY = "spgnn/read"
SAID_KEY = "spgnn/said"
POLL_SECONDS = 0.25
# A rank that has not written its line by then, on however busy a machine, will not.
SAY_SECONDS = 10.0
# A rank that has not looked by then, on however busy a machine, will not.
READ_SECONDS = 3.0
# Other ranks leave it to rank 0 to say that all were terminated.
FIRST_SECONDS = 1.0
_STORE_ERRORS = (RuntimeError, DistError)


class Watch:
    """One key in the job's store: the first rank that fails writes it, all others end on it.

    A rank blocked inside a collective cannot look, so a thread looks for it. Without this, ranks
    that do not talk to the failed one would run, or wait, on. Ranks that die before they can write
    are noticed by their :class:`Lifelines`. Ranks that end leave a farewell, so that nobody waits
    for them.

    Parameters
    ----------
    store : torch.distributed.Store
    host : str
        Where rank 0 runs.
    job : Job
    patience : float
        Seconds within which a launcher that sees a rank die ends the others, and says so better
        than they can.
    """

    def __init__(self, store: Any, host: str, job: Job, patience: float) -> None:
        self._job = job
        self._patience = patience
        self._store = store
        # A store serialises its requests per connection; ours must not wait behind a collective's.
        self._own_store = store.clone()
        self._lifelines = Lifelines(self._own_store, host, job.rank, job.size)
        self._farewells = Farewells()
        self._number = 0
        self._lost = ""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="failure-watch", daemon=True)
        self._thread.start()

    def announce(self, message: str, status: int) -> NoReturn:
        """Be the first to say why the job ends; if another rank was first, end in silence."""
        self.stop()
        message = f"rank {self._job.rank}: {message}"
        if self._first(message):
            print(f"error: {message}", file=sys.stderr, flush=True)
            with suppress(*_STORE_ERRORS):
                self._own_store.set(SAID_KEY, "1")
            self._wait_for_readers()
        else:
            self._wait_until_said()
        os._exit(status)

    def announce_termination(self) -> NoReturn:
        """SIGTERM: torchrun sends it when a rank dies, batch systems when the time is over.

        All ranks get it. Rank 0 speaks first, because it knows whether a rank is lost.
        """
        self.stop()
        lost = self._lifelines.lost()
        if lost is not None and not self._lost:
            self._lost = _lost_contact(lost)
        end = time.monotonic() + FIRST_SECONDS
        with suppress(*_STORE_ERRORS):
            while self._job.rank != 0 and time.monotonic() < end:
                if self._own_store.check([FAILED_KEY]):
                    break
                time.sleep(0.02)
        self.announce(self._lost or "terminated (SIGTERM)", TERMINATED)

    def announce_late(self, message: str) -> NoReturn:
        """Say it only if neither another rank nor the launcher has ended the job by then."""
        self._lost = message
        time.sleep(self._patience)
        self.announce(message, status=1)

    def missing_in(self, call: Call) -> int | None:
        """A rank that has ended before it came to this call, if this rank can know."""
        try:
            with self._lock:
                ended = self._own_store.add(ENDED_KEY, 0)
                while len(self._farewells) < ended:
                    farewell = self._own_store.get(f"{ENDED_KEY}/{len(self._farewells) + 1}")
                    self._farewells.add(farewell.decode())
                return self._farewells.missing_in(call)
        except _STORE_ERRORS:
            return 0 if self._lifelines.over and 0 in call.group.ranks else None

    def wait_for_all(self) -> None:
        """Return when all ranks have said farewell."""
        try:
            if self._say_farewell() == self._job.size:
                self._store.set(OVER_KEY, "1")
            self._store.wait([OVER_KEY])
        except _STORE_ERRORS:
            # Either rank 0, which hosts the store, has left, or the thread ends this rank.
            while not self._lifelines.over:
                time.sleep(POLL_SECONDS)

    def leave(self) -> None:
        """Stop watching: this rank has ended. The others learn that it is not lost."""
        with suppress(*_STORE_ERRORS):  # Rank 0 may have left first.
            self._say_farewell()
        self.stop()
        self._lifelines.leave()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _say_farewell(self) -> int:
        """Leave this rank's farewell, once; returns how many ranks have ended."""
        if self._number == 0:
            self._number = int(self._own_store.add(ENDED_KEY, 1))
            self._own_store.set(f"{ENDED_KEY}/{self._number}", self._job.farewell())
        return self._number

    def _wait_until_said(self) -> None:
        """A launcher that sees any rank end ends the others: the first one has to speak before."""
        end = time.monotonic() + SAY_SECONDS
        with suppress(*_STORE_ERRORS):
            while not self._own_store.check([SAID_KEY]) and time.monotonic() < end:
                time.sleep(0.02)

    def _wait_for_readers(self) -> None:
        """Rank 0 may host the store: let the others read why before it goes away."""
        time.sleep(2 * POLL_SECONDS)
        if self._job.rank != 0:
            return
        readers, end = self._lifelines.connected(), time.monotonic() + READ_SECONDS
        with suppress(*_STORE_ERRORS):
            while self._lifelines.connected() and time.monotonic() < end:
                if self._own_store.add(READ_KEY, 0) >= readers:
                    return
                time.sleep(0.02)

    def _first(self, message: str) -> bool:
        try:
            said = self._own_store.compare_set(FAILED_KEY, "", message)
            return bool(said == message.encode())
        except _STORE_ERRORS:
            return True

    def _watch(self) -> None:
        before = None
        while not self._stopped.wait(POLL_SECONDS):
            try:
                failed, store_lost = self._own_store.check([FAILED_KEY]), False
            except _STORE_ERRORS:
                failed, store_lost = False, True
            if failed:
                with suppress(*_STORE_ERRORS):
                    self._own_store.add(READ_KEY, 1)
                # Launchers report whoever exits first; that should be the rank with the message.
                self._wait_until_said()
                time.sleep(3 * POLL_SECONDS)
                os._exit(1)
            lost = self._lifelines.lost()
            if lost is not None:
                self.announce_late(_lost_contact(lost))
            if store_lost:
                if self._lifelines.over or self._stopped.is_set():
                    return
                self.announce_late("lost contact with the job's store")
            call = self._job.waiting
            if call is not None and call is before:
                ended = self.missing_in(call)
                if ended is not None and self._job.waiting is call:
                    self.announce(ended_before(ended, call), status=1)
            before = call


def _lost_contact(rank: int) -> str:
    return f"lost contact with rank {rank}"
