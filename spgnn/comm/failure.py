"""The end of a job, and the one way in which its ranks learn that one of them has ended.

Rank 0 holds a TCP connection to every other rank, its lifeline. A thread on each rank reads it, for
the main thread may be blocked in a collective or busy elsewhere. Whatever becomes of a rank is a
line there, or that there will be no more:

==================  ================================================================================
``["failed"]``      a rank has an error to report; rank 0 answers
``["speak", true]`` to the first, which prints its message, and ``false`` to all later ones
``["spoken", s]``   the message is printed; rank 0 tells all others
``["over", s]``     upon which they end without a word, with the speaker's exit status
``["ended", …]``    a rank leaves in good order, after so many calls in each group; rank 0 passes it
                    on, so that all know for certain which calls wait for it in vain
``["where", …]``    a rank has waited too long in a call; rank 0 passes it to whom it waits for
``["at", …]``       their answers, which rank 0 passes to who asked: a hung rank has none, or says
                    where it waits itself
end of connection   the rank is dead: the system closes its connections however it ends. Ranks send
                    no heartbeat, which a busy one could miss; systems of machines do, in TCP
==================  ================================================================================

So it is under every launcher and with every backend. A launcher that sees its processes end (ours,
torchrun's, mpiexec) ends the others and knows more ("was killed by SIGKILL"), so ranks that have
lost one give it `patience` seconds to speak first. If rank 0 itself is lost, all others know.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile, pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from weakref import WeakSet

import torch

from spgnn.comm.place import seconds
from spgnn.comm.traffic import Ledger
from spgnn.errors import InputError
from spgnn.signals import ENDINGS, TERMINATED, AskedToEnd, endings_prevail, termination_raises

if TYPE_CHECKING:
    from spgnn.comm.communicator import Communicator

# Rank 0 may read and partition a large graph for hours while the others wait in a collective.
SETUP_SECONDS = 24 * 3600.0
# Afterwards ranks differ by less than an epoch; whoever is not there by then will not come.
TIMEOUT_SECONDS = 600.0
CONNECT_SECONDS = 120.0
# How long a call has to wait for a rank that has ended before somebody says so.
LOOK_SECONDS = 0.25
# Where a call is ordered on a stream, no time-out is raised in it: after so long more, the
# lifelines' thread says what it would have said.
STREAM_SECONDS = 1.0
# Rank 0 answers at once, unless something computes there without letting Python's threads run.
ANSWER_SECONDS = 5.0
# A rank that has not written its line by then, on however busy a machine, will not.
SAY_SECONDS = 10.0
# Launchers report whoever exits first; that should be the rank with the message.
SPEAKER_SECONDS, OTHERS_SECONDS = 0.5, 0.75
# What rank 1 and the launcher take to end a job that has lost rank 0.
SPOKESMAN_SECONDS = 3.0
# Other ranks leave it to rank 0 to say that all were terminated.
FIRST_SECONDS = 1.0
_TOKEN_BYTES = 16
# A machine that is silent for 30 s is lost: after 15 s this one asks every 5 s, and the kernel of
# the other, not its ranks, would answer.
_KEEP_ALIVE = (
    (socket.TCP_KEEPIDLE, 15),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 30_000),
)


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
    """The ranks of a communicator."""

    key: str  # tells it from all other groups of the job, and is the same on all its ranks
    name: str  # for people
    ranks: Sequence[int]  # numbers in the whole job
    patient: bool = False  # nobody waits soon for what is long and begun there


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of one communicator: its number there, from 1, and what all ranks share."""

    group: Group
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.what}, call {self.number} of group {self.group.name}"


class StreamCall(NamedTuple):
    """A call that this rank has waited for on a stream of its device, where nothing raises."""

    call: Call
    begun: Any  # torch.cuda.Event: all before the call is done
    ended: Any  # and the call itself


class Job:
    """A rank's share in its job; all its communicators have one and the same."""

    lifelines: Lifelines | None = None  # None in a job of one rank, and in that of a guest
    is_guest = False  # the process is a program's that made the ranks' group, and stays as it is
    left = False  # this rank has left, and may call nothing more

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None) -> None:
        self.rank, self.size = rank, size
        self.device = torch.device("cpu") if device is None else device
        self.ledger = Ledger()
        # Seconds that a call may wait for other ranks.
        self.timeout = seconds("SPGNN_SETUP_SECONDS", SETUP_SECONDS)
        self._settled_timeout = seconds("SPGNN_TIMEOUT_SECONDS", TIMEOUT_SECONDS)
        # Compare every call with the other ranks' before it starts.
        self.debug = os.environ.get("SPGNN_DEBUG", "0") not in ("", "0")
        self.begun: dict[str, int] = {}  # calls so far, by the key of their group
        # For the lifelines' thread: in which this rank is blocked, and what its device has to do.
        self.waiting: Call | None = None
        self.on_stream: deque[StreamCall] = deque()
        self.streams = False  # whether calls are ordered on streams, and that thread has a clock

    def unfinished(self) -> list[StreamCall]:
        """The calls on a stream that are not over, which end in this order."""
        with suppress(RuntimeError):  # of a device that has failed, which the main thread says
            return list(dropwhile(lambda each: each.ended.query(), list(self.on_stream)))
        return []

    def everyone(self) -> Group:
        """The group of all ranks."""
        return Group("world", "world", range(self.size))

    def settle(self) -> None:
        """Set-up is over: wait minutes from now on, not hours."""
        self.timeout = min(self.timeout, self._settled_timeout)

    def explained(self, call: Call, error: ConnectionError) -> CommunicationError:
        """The reason why a call broke off: its peer has ended in good order, or is lost."""
        if self.lifelines is None:
            return CommunicationError(f"lost contact with a peer in {call}; its log says why")
        for _ in range(3):
            ended = self.lifelines.missing_in(call)
            if ended is not None:
                return CommunicationError(ended_before(ended, call))
            time.sleep(LOOK_SECONDS)  # Its farewell may still be on its way.
        return LostPeerError(f"lost contact with a peer in {call} ({error})")

    def waited_in(self, call: Call) -> str:
        """The line for a call whose time is over, and whom it waits for; asks them."""
        whom = "; SPGNN_DEBUG=1 names the first call that not all ranks make"
        if self.lifelines is not None:
            late = self.lifelines.ask_where(call)
            whom = ", which all its ranks have begun: do messages get through?"
            if late:
                whom = f" for {', '.join(f'{who} ({why})' for who, why in late.items())}"
        return f"waited {self.timeout:g} s in {call}{whom}"

    def place_in(self, key: str, number: int) -> str:
        """The reason why this rank is not in a call of a group; empty if it has come to it."""
        unfinished = self.unfinished()
        if self.begun.get(key, 0) < number:
            waiting = self.waiting or (unfinished[0].call if unfinished else None)
            return "has not begun it" if waiting is None else f"waits in {waiting}"
        for before, (call, _, _) in enumerate(unfinished):
            if (call.group.key, call.number) == (key, number):
                if not unfinished[0].begun.query():
                    return "its device has not come to it"
                return f"its device waits in {unfinished[0].call}" if before else ""
        return ""

    def fail(self, message: str, status: int = 1) -> NoReturn:
        """End every rank, promptly, with this rank's message on stderr; a guest raises it."""
        if self.is_guest:
            raise CommunicationError(message)
        if self.lifelines is not None:
            self.lifelines.announce(message, status)
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(status)

    def terminated(self) -> NoReturn:
        """End because of SIGTERM: torchrun sends it when a rank dies, batch systems at the end."""
        lost = None
        if self.lifelines is not None:
            time.sleep(FIRST_SECONDS if self.rank else LOOK_SECONDS / 5)
            lost = self.lifelines.lost
        self.fail("terminated (SIGTERM)" if lost is None else lost_contact_with(lost), TERMINATED)

    def close(self) -> None:
        """Wait until all ranks have come here or have ended, then leave."""
        if self.lifelines is not None:
            self.lifelines.say_farewell()
            self.lifelines.all_ended.wait()
        self.leave()

    def leave(self) -> None:
        """Leave without waiting for the others, which learn of it."""
        if self.lifelines is not None:
            self.lifelines.leave()

    def end(self) -> None:
        """The process ends: leave, and complete whatever else must be complete by then."""
        self.leave()


def ended_before(rank: int, call: Call) -> str:
    """The line for a call that waits for a rank which has ended."""
    return f"rank {rank} ended while others wait for it in {call}"


def lost_contact_with(rank: int) -> str:
    """The line for a rank that has ended without a word."""
    return f"lost contact with rank {rank}"


def shown_ranks(ranks: Iterable[int]) -> str:
    """``rank 3`` or ``ranks 0, 2-5``."""
    numbers = sorted(ranks)
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(shown)}"


class Lifelines:
    """Connections of this rank, and the thread that reads them; see the head of this module."""

    def __init__(
        self, job: Job, host: str, publish: Callable[[str | None], str], patience: float
    ) -> None:
        self.patience = patience
        # Calls begun by each rank that has ended in good order, by the key of their group.
        self.ended: dict[int, dict[str, int]] = {}
        # All ranks have said farewell, or rank 0 has, and nothing more will be heard.
        self.all_ended = threading.Event()
        self.lost: int | None = None  # a rank that has died
        self._job = job
        self._lines: dict[int, socket.socket] = {}
        self._unread: dict[socket.socket, bytearray] = {}
        self._selector = selectors.DefaultSelector()
        self._server: socket.socket | None = None
        self._lock, self._announcing = threading.RLock(), threading.Lock()
        self._speaker: int | None = None  # known on rank 0
        self._may_speak, self._answered = True, threading.Event()
        self._all_here = threading.Event()
        self._left = threading.Event()
        self._places: dict[int, str] = {}  # of those that this rank waits for
        if job.rank == 0:
            self._token = secrets.token_hex(_TOKEN_BYTES)
            # What all ranks reach on this machine, no other machine need.
            local = host == "127.0.0.1"
            dual = socket.has_dualstack_ipv6() and not local
            family = socket.AF_INET6 if dual else socket.AF_INET
            self._server = socket.create_server(
                (host if local else "", 0), family=family, backlog=job.size, dualstack_ipv6=dual
            )
            self._selector.register(self._server, selectors.EVENT_READ)
            publish(f"{self._server.getsockname()[1]} {self._token}")
        else:
            port, self._token = publish(None).split()
            try:
                line = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
            except OSError as error:
                raise StartError(
                    f"rank {job.rank} cannot connect to rank 0 at {host}:{port} ({error}): is "
                    "there a firewall between them?"
                ) from None
            line.settimeout(None)
            self._welcome(line)
            self._lines[0] = line
            self._send(0, "here", self._token, job.rank)
            self._all_here.set()
        self._thread = threading.Thread(target=self._read, name="lifelines", daemon=True)
        self._thread.start()
        if not self._all_here.wait(CONNECT_SECONDS):
            missing = shown_ranks(set(range(1, job.size)) - set(self._lines))
            raise StartError(f"rank 0 waited {CONNECT_SECONDS:g} s for {missing} to connect to it")

    def announce(self, message: str, status: int = 1) -> NoReturn:
        """Print why the job ends and end it, unless another rank is first; then in silence."""
        if threading.current_thread() is threading.main_thread():
            for ending in ENDINGS:
                signal.signal(ending, signal.SIG_IGN)
        # Another thread of this rank may have begun: then it ends the process.
        if not self._announcing.acquire(timeout=2 * SAY_SECONDS):
            os._exit(status)
        # The line of the first must be there before a launcher sees any rank end, and ends others:
        # until then this one asks again, for the first may die.
        end = time.monotonic() + SAY_SECONDS
        while not self._is_first():
            if time.monotonic() > end:
                if self.lost == 0 and status != TERMINATED:
                    break  # Rank 1 is not there either.
                os._exit(status)
            time.sleep(LOOK_SECONDS)
        print(f"error: rank {self._job.rank}: {message}", file=sys.stderr, flush=True)
        first = self._job.rank == 0
        self._pass_on("over", status) if first else self._send(0, "spoken", status)
        time.sleep(SPEAKER_SECONDS)
        os._exit(status)

    def missing_in(self, call: Call) -> int | None:
        """A rank that has ended before it came to this call, which hence waits in vain."""
        for rank, begun in list(self.ended.items()):
            if rank in call.group.ranks and begun.get(call.group.key, 0) < call.number:
                return rank
        return None

    def ask_where(self, call: Call) -> dict[str, str]:
        """The ranks that are not in a call, and their reasons."""
        me, where = self._job.rank, (call.group.key, call.number)
        others = [rank for rank in call.group.ranks if rank != me]
        self._places = {me: self._job.place_in(*where)}
        if me == 0:
            self._ask(me, *where, others)
        else:
            self._send(0, "where", me, *where, others)
        end = time.monotonic() + ANSWER_SECONDS
        while len(self._places) <= len(others) and time.monotonic() < end:
            time.sleep(0.01)
        ranks_at: dict[str, list[int]] = {}
        for rank in call.group.ranks:
            ranks_at.setdefault(self._places.get(rank, "no answer"), []).append(rank)
        return {shown_ranks(ranks): why for why, ranks in ranks_at.items() if why}

    def _ask(self, asker: int, key: str, number: int, others: list[int]) -> None:
        """Rank 0 passes a question on, or answers it."""
        for rank in others:
            if rank == 0:
                self._send(asker, "at", asker, 0, self._job.place_in(key, number))
            else:
                self._send(rank, "where", asker, key, number)

    def say_farewell(self) -> None:
        """Let all ranks know that this one ends, and after which calls; once is enough."""
        if self._job.rank not in self.ended:
            mine = {self._job.rank: dict(self._job.begun)}
            self._note_ended(mine)
            self._pass_on("ended", mine) if self._job.rank == 0 else self._send(0, "ended", mine)

    def leave(self) -> None:
        """Close all lifelines in good order."""
        if not self._left.is_set():
            self.say_farewell()
            self._left.set()
            for line in list(self._lines.values()):
                with suppress(OSError):  # The other side may have left first.
                    line.shutdown(socket.SHUT_RDWR)
            self._thread.join()

    def _is_first(self) -> bool:
        if self._job.rank == 0:
            return self._grant(0)
        self._may_speak = True
        self._answered.clear()
        if self._send(0, "failed"):
            self._answered.wait(ANSWER_SECONDS)
        # Without rank 0 nobody says who is first. If there is a launcher, one is enough: rank 1, if
        # it is there.
        if 0 not in self._lines and self.patience > 1 and self._job.rank > 1:
            if self.lost == 0:
                return False
            time.sleep(SPOKESMAN_SECONDS)
        return self._may_speak

    def _grant(self, rank: int) -> bool:
        with self._lock:
            if self._speaker is None:
                self._speaker = rank
            return self._speaker == rank

    def _send(self, peer: int, *words: object) -> bool:
        """False if the line is broken."""
        with self._lock:
            try:
                self._lines[peer].sendall(json.dumps(words).encode() + b"\n")
            except (OSError, KeyError):
                return False
        return True

    def _pass_on(self, *words: object, but: Iterable[int] = ()) -> None:
        for peer in set(self._lines).difference(but):
            self._send(peer, *words)

    def _note_ended(self, farewells: dict[Any, dict[str, int]]) -> None:
        self.ended |= {int(rank): begun for rank, begun in farewells.items()}
        if len(self.ended) == self._job.size:
            self.all_ended.set()

    # The rest runs on the thread.

    def _read(self) -> None:
        call, since = None, 0.0
        # All others may have ended in good order while this rank waits for them.
        while self._server is not None or self._lines or not self._left.is_set():
            news: dict[int, dict[str, int]] = {}
            looks = self.ended or self._job.streams
            if self._server is None and not self._lines:
                self._left.wait(LOOK_SECONDS)  # Others have nothing more to say.
                ready = []
            else:
                ready = self._selector.select(LOOK_SECONDS if looks else None)
            for key, _ in ready:
                line = key.fileobj
                assert isinstance(line, socket.socket)
                if line is self._server:
                    with suppress(OSError):
                        self._welcome(line.accept()[0])
                else:
                    self._hear(line, news)
            if news and self._job.rank == 0:
                self._pass_on("ended", news)
            self._note_ended(news)
            now = time.monotonic()
            waiting = self._job.waiting
            if waiting is None and (unfinished := self._job.unfinished()):
                waiting = unfinished[0].call
            if waiting is not call:
                call, since = waiting, now
            elif call is not None and now - since >= LOOK_SECONDS:
                missing = self.missing_in(call)
                late = self._job.streams and now - since > self._job.timeout + STREAM_SECONDS
                if missing is not None:
                    self._announce_later(partial(ended_before, missing, call), 0.0)
                elif late:
                    self._announce_later(partial(self._job.waited_in, call), 0.0)
                if missing is not None or late:
                    since = now + 10 * SAY_SECONDS
        self._selector.close()

    def _welcome(self, line: socket.socket) -> None:
        # A machine that loses power or its network closes nothing: then no system answers for it.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            line.setsockopt(socket.IPPROTO_TCP, option, value)
        self._unread[line] = bytearray()
        self._selector.register(line, selectors.EVENT_READ)

    def _hear(self, line: socket.socket, news: dict[int, dict[str, int]]) -> None:
        """Read what has come on a line; farewells are added to `news`."""
        unread = self._unread.get(line)
        if unread is None:  # turned away a moment ago
            return
        try:
            heard = line.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        unread += heard
        peer = next((peer for peer, one in list(self._lines.items()) if one is line), None)
        if peer is None:
            # Who has not said where it belongs, in a short line, may be anyone.
            if heard and len(unread) < 100 and b"\n" not in unread:
                return
            first, _, rest = bytes(unread).partition(b"\n")
            peer = self._recognised(first)
            if peer is None:
                self._turn_away(line)
                return
            self._lines[peer] = line
            unread[:] = rest
            if len(self._lines) == self._job.size - 1:
                self._shut_the_door()
        *lines, unread[:] = unread.split(b"\n")
        for words in lines:
            self._act(peer, json.loads(bytes(words)), news)
        if not heard:
            with self._lock:
                del self._lines[peer]
            self._turn_away(line)
            self._hang_up(peer, peer in self.ended or peer in news)

    def _turn_away(self, line: socket.socket) -> None:
        del self._unread[line]
        self._selector.unregister(line)
        line.close()

    def _recognised(self, words: bytes) -> int | None:
        with suppress(ValueError):
            match json.loads(words):
                case ["here", str(token), int(rank)]:
                    ours = secrets.compare_digest(token.encode(), self._token.encode())
                    if ours and 0 < rank < self._job.size and rank not in self._lines:
                        return rank
        return None

    def _shut_the_door(self) -> None:
        """All ranks are here."""
        for stranger in set(self._unread).difference(self._lines.values()):
            self._turn_away(stranger)
        assert self._server is not None
        self._selector.unregister(self._server)
        self._server.close()
        self._server = None
        self._all_here.set()

    def _act(self, peer: int, words: list[Any], news: dict[int, dict[str, int]]) -> None:
        match words:
            case ["ended", farewells]:
                news |= {int(rank): begun for rank, begun in farewells.items()}
            case ["failed"]:
                self._send(peer, "speak", self._grant(peer))
            case ["where", asker, key, number, others]:
                self._ask(asker, key, number, others)
            case ["where", asker, key, number]:
                self._send(0, "at", asker, self._job.rank, self._job.place_in(key, number))
            case ["at", asker, rank, place]:
                if asker == self._job.rank:
                    self._places[rank] = place
                else:
                    self._send(asker, *words)
            case ["speak", may]:
                self._may_speak = may
                self._answered.set()
            case ["spoken" | "over", int(status)]:
                self._pass_on("over", status, but=[peer])
                time.sleep(OTHERS_SECONDS)
                os._exit(status)

    def _hang_up(self, peer: int, in_good_order: bool) -> None:
        """A connection has ended."""
        if self._job.rank != 0:
            self._answered.set()  # There will be no answer.
        if in_good_order or self._left.is_set():
            if self._job.rank != 0:
                self.all_ended.set()
            return
        self.lost = peer
        with self._lock:
            if self._speaker == peer:
                self._speaker = None
        self._announce_later(partial(lost_contact_with, peer), self.patience)

    def _announce_later(self, message: Callable[[], str], patience: float) -> None:
        """On a thread of its own, for this one has to hear the answers."""

        def announce() -> None:
            time.sleep(patience)
            self.announce(message())

        threading.Thread(target=announce, daemon=True).start()


# By process: a fork of one that has connected is a rank of its own.
_world: dict[int, Communicator] = {}
# Communicators of a guest, which live as long as somebody uses them.
guests: WeakSet[Communicator] = WeakSet()


def world() -> Communicator | None:
    """The communicator that :func:`spgnn.comm.connect` made, or ``None`` before that."""
    return _world.get(os.getpid())


@contextmanager
def guarded(comm: Communicator) -> Iterator[None]:
    """End all ranks, with this rank's message, if anything inside raises.

    Bad input and SIGTERM become one line; any other exception shows its traceback first. At the
    end, all ranks wait for each other.
    """
    with termination_raises(comm.job.terminated) as speaks:
        try:
            try:
                with endings_prevail():
                    yield
                    # Others may still fail while this rank waits for them to finish.
                    comm.close()
            except (Exception, KeyboardInterrupt) as error:
                _end_all(comm, error)
        except AskedToEnd:
            if not speaks:
                raise  # The local launcher asked, and says so.
            comm.job.terminated()
    _world.clear()


def join(comm: Communicator) -> None:
    """Make `comm` this process's :func:`world`, and see to the end of a user's program."""
    _world[os.getpid()] = comm
    if comm.size == 1:
        return
    show = sys.excepthook

    def end_all(
        kind: type[BaseException], error: BaseException, where: TracebackType | None
    ) -> None:
        if world() is comm:
            _end_all(comm, error)
        show(kind, error, where)

    def leave() -> None:
        if world() is comm:  # and this is not a fork
            comm.job.end()
            # torch frees nothing of a graph of autograd that is left now, and it may refer to this.
            comm.release()
            _world.clear()
            sys.excepthook = show

    sys.excepthook = end_all
    atexit.register(leave)


def _end_all(comm: Communicator, error: BaseException) -> NoReturn:
    match error:
        case InputError():
            comm.fail(str(error), status=2)
        case KeyboardInterrupt():
            comm.fail("interrupted", status=130)
        case MemoryError():
            what = f": {error}" if str(error) else ""
            comm.fail(f"out of memory{what}; use more ranks, or --c 1 if c was larger", status=2)
        case CommunicationError():
            # If a peer vanished, whoever knows why may speak first.
            if isinstance(error, LostPeerError) and comm.job.lifelines is not None:
                time.sleep(comm.job.lifelines.patience)
            comm.fail(str(error))
    traceback.print_exception(error)
    comm.fail(f"{type(error).__name__}: {error}")
