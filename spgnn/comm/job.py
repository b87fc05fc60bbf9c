"""What all communicators of one rank share: its account, its patience, and where it is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import torch

from spgnn.comm.launched import seconds
from spgnn.comm.ledger import Ledger
from spgnn.errors import InputError
from spgnn.signals import TERMINATED

# Rank 0 may read and partition a large graph for hours while the others wait in a collective.
SETUP_SECONDS = 24 * 3600.0
# Afterwards ranks differ by less than an epoch; whoever is not there by then will not come.
TIMEOUT_SECONDS = 600.0


class CommunicationError(RuntimeError):
    """Ranks that do not agree, or do not answer. One line; where it was raised says nothing."""


class LostPeerError(CommunicationError):
    """A connection broke. Whoever ended the peer, another rank or the launcher, may say why."""


class MismatchError(Exception):
    """Data of another size than was expected has arrived; a backend says so."""


class StartError(InputError):
    """A rank, perhaps alone, could not join its job."""


@dataclass(frozen=True)
class Group:
    """The ranks of a communicator.

    Attributes
    ----------
    key : str
        Tells it from all other groups of the job, and is the same on all its ranks.
    name : str
        For people.
    ranks : sequence of int
        Numbers in the whole job.
    patient : bool
        Nobody waits soon for what is long and begun there.
    """

    key: str
    name: str
    ranks: Sequence[int]
    patient: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of one communicator.

    Attributes
    ----------
    group : Group
    number : int
        Counted in the group, from 1.
    what : str
        The operation with whatever must be the same on all ranks.
    """

    group: Group
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.what}, call {self.number} of group {self.group.name}"


class Job:
    """A rank's share in its job; all its communicators have one and the same.

    Attributes
    ----------
    rank, size : int
    device : torch.device
        Where this rank's tensors should live.
    ledger : Ledger
    timeout : float
        Seconds that a call may wait for other ranks.
    debug : bool
        Compare every call with the other ranks' before it starts (``SPGNN_DEBUG=1``).
    begun : dict of str to int
        Calls begun so far, by the key of their group.
    waiting : Call, optional
        The one in which this rank is blocked, for threads that watch it.
    """

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size = rank, size
        self.device = torch.device("cpu") if device is None else device
        self.ledger = Ledger()
        self.timeout = seconds("SPGNN_SETUP_SECONDS", SETUP_SECONDS)
        self._settled_timeout = seconds("SPGNN_TIMEOUT_SECONDS", TIMEOUT_SECONDS)
        self.debug = os.environ.get("SPGNN_DEBUG", "0") not in ("", "0")
        self.begun: dict[str, int] = {}
        self.waiting: Call | None = None

    def everyone(self) -> Group:
        """The group of all ranks."""
        return Group("world", "world", range(self.size))

    def settle(self) -> None:
        """Set-up is over: wait minutes from now on, not hours."""
        self.timeout = min(self.timeout, self._settled_timeout)

    def farewell(self) -> str:
        """What a rank that ends leaves behind: how far it came in each group."""
        return json.dumps([self.rank, self.begun])

    # How it ends. These serve a job of one rank.

    def explained(self, call: Call, error: ConnectionError) -> CommunicationError:
        """Why a call broke off, as far as this rank can know."""
        return CommunicationError(f"{error} in {call}")

    def fail(self, message: str, status: int = 1) -> NoReturn:
        """End every rank, promptly, with this rank's message on stderr."""
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(status)

    def lost_contact(self, message: str) -> NoReturn:
        """End this rank after a peer vanished; whoever knows why may speak first."""
        self.fail(message)

    def terminated(self) -> NoReturn:
        """End because of SIGTERM, which batch systems and launchers send to all ranks."""
        self.fail("terminated (SIGTERM)", TERMINATED)

    def close(self) -> None:
        """Wait until all ranks have come here or have ended, then leave."""

    def leave(self) -> None:
        """Leave without waiting for the others, which learn of it."""

    def end(self) -> None:
        """The process ends: leave, and whatever else must be over by then."""
        self.leave()


class Farewells:
    """Which ranks have ended, and before which calls."""

    def __init__(self) -> None:
        self._begun: dict[int, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._begun)

    def add(self, farewell: str) -> None:
        """Take note of a :meth:`Job.farewell`."""
        rank, begun = json.loads(farewell)
        self._begun[rank] = begun

    def begun(self, rank: int, group: str) -> int:
        """How many calls of a group, named by its key, a rank began that has ended; else 0."""
        return self._begun.get(rank, {}).get(group, 0)

    def missing_in(self, call: Call) -> int | None:
        """A rank that ended before it came to this call, which hence waits in vain."""
        for rank, begun in self._begun.items():
            if rank in call.group.ranks and begun.get(call.group.key, 0) < call.number:
                return rank
        return None


def ended_before(rank: int, call: Call) -> str:
    """The line for a call that waits for a rank which has ended."""
    return f"rank {rank} ended while others wait for it in {call}"


def shown_ranks(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0, 2-5``."""
    numbers = sorted(ranks)
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(shown)}"
