"""Connections that carry nothing: the operating system closes them when a rank dies."""

from __future__ import annotations

import secrets
import select
import socket
import time
from contextlib import suppress
from typing import Any

from spgnn.comm.job import StartError, shown_ranks

KEY = "spgnn/lifeline"
CONNECT_SECONDS = 120.0
_GOODBYE = b"\x01"
_TOKEN_BYTES, _RANK_BYTES = 16, 8


class Lifelines:
    """A TCP connection between rank 0 and every other rank.

    A rank that is killed can announce nothing, and ranks that do not talk to it notice nothing.
    Its connections end all the same, and without the word that an orderly leave sends first. No
    heartbeat, hence no time-out that a busy machine could miss.

    Who connects to rank 0 must know a secret that only the job's store tells; anybody else is
    turned away.

    Parameters
    ----------
    store : torch.distributed.Store
        Tells the others where rank 0 listens.
    host : str
        Where rank 0 runs.
    rank, size : int

    Attributes
    ----------
    over : bool
        Rank 0 has left in good order, and with it perhaps the job's store.
    """

    def __init__(self, store: Any, host: str, rank: int, size: int) -> None:
        self.over = False
        self._lines: dict[int, tuple[socket.socket, int]] = {}
        self._poll = select.poll()
        if rank != 0:
            port, token = store.get(KEY).decode().split()
            try:
                line = socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
                line.sendall(bytes.fromhex(token) + rank.to_bytes(_RANK_BYTES))
            except OSError as error:
                raise StartError(
                    f"rank {rank} cannot connect to rank 0 at {host}:{port} ({error}); does a "
                    "firewall close all ports but the store's?"
                ) from None
            self._add(line, 0)
            return
        token = secrets.token_bytes(_TOKEN_BYTES)
        with _listen(size) as server:
            store.set(KEY, f"{server.getsockname()[1]} {token.hex()}")
            for peer, line in _welcome(server, token, size).items():
                self._add(line, peer)

    def lost(self) -> int | None:
        """A rank that died since the last call, or ``None``; does not wait."""
        for descriptor, _ in self._poll.poll(0):
            line, peer = self._lines.pop(descriptor)
            self._poll.unregister(descriptor)
            try:
                word = line.recv(1)
            except OSError:
                word = b""
            line.close()
            if not word:
                return peer
            self.over |= peer == 0
        return None

    def connected(self) -> int:
        """How many of those that this rank is connected with have neither died nor left."""
        while self.lost() is not None:
            pass
        return len(self._lines)

    def leave(self) -> None:
        """Close all connections in good order."""
        for line, _ in self._lines.values():
            with suppress(OSError):  # The other side may have left first.
                line.sendall(_GOODBYE)
            line.close()
        self._lines.clear()

    def _add(self, line: socket.socket, peer: int) -> None:
        self._lines[line.fileno()] = line, peer
        self._poll.register(line, select.POLLIN)


def _welcome(server: socket.socket, token: bytes, size: int) -> dict[int, socket.socket]:
    """Accept one connection of every other rank, whatever strangers do meanwhile."""
    welcome: dict[int, socket.socket] = {}
    words: dict[int, tuple[socket.socket, bytearray]] = {}
    poll = select.poll()
    poll.register(server, select.POLLIN)
    end = time.monotonic() + CONNECT_SECONDS
    while len(welcome) < size - 1:
        for descriptor, _ in poll.poll(1000):
            if descriptor == server.fileno():
                line, _ = server.accept()
                line.setblocking(False)
                words[line.fileno()] = line, bytearray()
                poll.register(line, select.POLLIN)
                continue
            line, said = words[descriptor]
            heard = _hear(line, len(token) + _RANK_BYTES - len(said))
            said += heard
            if heard and len(said) < len(token) + _RANK_BYTES:
                continue
            poll.unregister(descriptor)
            del words[descriptor]
            peer = int.from_bytes(said[len(token) :])
            if secrets.compare_digest(said[: len(token)], token) and 0 < peer < size:
                line.setblocking(True)
                welcome[peer] = line
            else:
                line.close()
        if time.monotonic() > end:
            missing = shown_ranks(set(range(1, size)) - set(welcome))
            raise StartError(f"rank 0 waited {CONNECT_SECONDS:g} s for {missing} to connect to it")
    for line, _ in words.values():
        line.close()
    return welcome


def _hear(line: socket.socket, most: int) -> bytes:
    try:
        return line.recv(most)
    except OSError:
        return b""


def _listen(backlog: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=backlog, dualstack_ipv6=dual)
