"""Connections that carry nothing: the operating system closes them when a rank dies."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import Any

KEY = "spgnn/lifeline"
CONNECT_SECONDS = 300.0
_GOODBYE = b"\x01"
_RANK_BYTES = 8


class Lifelines:
    """A TCP connection between rank 0 and every other rank.

    A rank that is killed can announce nothing, and ranks that do not talk to it notice nothing.
    Its connections end all the same, and without the word that an orderly leave sends first. No
    heartbeat, hence no time-out that a busy machine could miss.

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
        Rank 0 has left in good order, so the job is done.
    """

    def __init__(self, store: Any, host: str, rank: int, size: int) -> None:
        self.over = False
        self._lines: dict[int, tuple[socket.socket, int]] = {}
        self._poll = select.poll()
        if rank != 0:
            port = int(store.get(KEY))
            line = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
            line.sendall(rank.to_bytes(_RANK_BYTES))
            self._add(line, 0)
            return
        with _listen(size) as server:
            server.settimeout(CONNECT_SECONDS)
            store.set(KEY, str(server.getsockname()[1]))
            for _ in range(size - 1):
                line, _ = server.accept()
                peer = int.from_bytes(line.recv(_RANK_BYTES, socket.MSG_WAITALL))
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


def _listen(backlog: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=backlog, dualstack_ipv6=dual)
