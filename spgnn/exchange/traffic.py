"""What exchanges move: rows, and bytes as wires carry them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from spgnn.layout import Int64Array


@dataclass(frozen=True)
class Volume:
    """Rows one rank sends and receives in one forward product; the adjoint swaps them."""

    send: int = 0
    receive: int = 0

    def __add__(self, other: Volume) -> Volume:
        return Volume(self.send + other.send, self.receive + other.receive)


@dataclass(frozen=True)
class Traffic:
    """What one rank puts on one axis of the mesh in one product."""

    sent_bytes: int = 0
    received_bytes: int = 0
    messages: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.sent_bytes + other.sent_bytes,
            self.received_bytes + other.received_bytes,
            self.messages + other.messages,
        )


class Priced(Protocol):
    """What knows the bytes of rows that travel its way (a wire)."""

    def bytes(self, rows: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of so many rows [rows, width]."""


@dataclass(frozen=True, eq=False)
class Messages:
    """What one exchange moves between a rank and its peers along an axis.

    Attributes
    ----------
    axis : str
    sent, received : int64 [peers]
        Rows to and from each of them.
    width : int
    wired : bool
        Whether a wire carries them; else they travel as they are.
    """

    axis: str
    sent: Int64Array
    received: Int64Array
    width: int
    wired: bool = True

    def traffic(
        self,
        dtype: torch.dtype,
        wires: Mapping[str, Priced] | None = None,
        peers: npt.NDArray[np.bool_] | None = None,
    ) -> Traffic:
        """Bytes and messages; of some peers only, if they are given [peers]."""
        wire = EXACT if wires is None or not self.wired else wires.get(self.axis, EXACT)
        sent, received = self.sent, self.received
        if peers is not None:
            sent, received = sent[peers], received[peers]
        return Traffic(
            wire.bytes(int(sent.sum()), self.width, dtype),
            wire.bytes(int(received.sum()), self.width, dtype),
            int(np.count_nonzero(sent)) if self.width else 0,
        )


class AsTheyAre:
    """Rows that travel as they are: width × bytes of an element each."""

    def bytes(self, rows: int, width: int, dtype: torch.dtype) -> int:
        """Bytes of so many rows [rows, width]."""
        return rows * width * dtype.itemsize


EXACT = AsTheyAre()
