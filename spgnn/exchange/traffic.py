"""What exchanges move: rows, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, eq=False)
class Carried:
    """Bytes that one exchange moves between a rank and its peers along an axis.

    Attributes
    ----------
    axis : str
    sent, received : int64 [peers]
        Bytes to and from each of them.
    """

    axis: str
    sent: Int64Array
    received: Int64Array

    def traffic(self, peers: npt.NDArray[np.bool_] | None = None) -> Traffic:
        """Bytes and messages; of some peers only, if they are given [peers]."""
        sent, received = self.sent, self.received
        if peers is not None:
            sent, received = sent[peers], received[peers]
        return Traffic(int(sent.sum()), int(received.sum()), int(np.count_nonzero(sent)))


@dataclass(frozen=True, eq=False)
class Messages:
    """Rows that one exchange moves between a rank and its peers along an axis.

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

    def carried(self, dtype: torch.dtype) -> Carried:
        """The bytes of these rows as they are."""
        row_bytes = self.width * dtype.itemsize
        return Carried(self.axis, self.sent * row_bytes, self.received * row_bytes)

    def traffic(self, dtype: torch.dtype) -> Traffic:
        """Bytes and messages of these rows as they are."""
        return self.carried(dtype).traffic()
