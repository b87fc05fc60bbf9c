"""Directions of a message: combinations of its rows, which travel as they are."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.layout import Int64Array
from spgnn.sparse import SUM_DTYPE

# A direction weighs as much as a row, so short messages have few.
ROWS_A_DIRECTION = 64


def directions_of(rows: Int64Array, asked: int) -> Int64Array:
    """How many directions beside the mean messages of so many rows have: no more than one in 64."""
    return np.minimum(asked, rows // ROWS_A_DIRECTION)


class Frame:
    """The mean of each message, and directions beside it, as sender or receiver sees them.

    Parameters
    ----------
    counts : int64 [peers]
        Rows of each message.
    vectors : Tensor [rows of messages that have directions, 1 + K], or None
        Orthonormal columns, message by message, the first of which is that of the mean; those of
        directions that a message does not have are zeros. ``None`` for the means alone.
    """

    def __init__(self, counts: Int64Array, vectors: Tensor | None = None) -> None:
        asked = 0 if vectors is None else vectors.shape[1] - 1
        many = directions_of(counts, asked)
        self.sizes: Int64Array = (counts > 0) + many
        """Coordinates of each message, rows of f elements."""
        filled = counts > 0
        self._rows, self._many = counts[filled].tolist(), many[filled].tolist()
        self._vectors: list[Tensor | None] = [None] * len(self._rows)
        if vectors is not None:
            begin = 0
            for place, (rows, k) in enumerate(zip(self._rows, self._many, strict=True)):
                if k:
                    self._vectors[place] = vectors[begin : begin + rows, : 1 + k]
                    begin += rows

    def coordinates(self, rows: Tensor) -> Tensor:
        """What each message's rows are along its directions, or, where it has none, their mean.

        Parameters
        ----------
        rows : Tensor [rows, f]

        Returns
        -------
        Tensor [coordinates, f]
        """
        found = rows.new_empty(int(self.sizes.sum()), rows.shape[1])
        for block, out, vectors in zip(
            self.messages(rows), self._coordinates_by_message(found), self._vectors, strict=True
        ):
            if vectors is None:
                out[0] = block.mean(0, dtype=SUM_DTYPE[rows.dtype])
            else:
                out.copy_(vectors.T @ block.to(vectors.dtype))
        return found

    def moved(self, rows: Tensor, coordinates: Tensor, out: Tensor, *, sign: int) -> None:
        """``rows + sign · (what has these coordinates)``, written to `out`, which may be `rows`.

        Parameters
        ----------
        rows : Tensor [rows, f]
        coordinates : Tensor [coordinates, f]
        out : Tensor [rows, f]
        sign : {1, -1}
        """
        for block, along, target, vectors in zip(
            self.messages(rows),
            self._coordinates_by_message(coordinates),
            self.messages(out),
            self._vectors,
            strict=True,
        ):
            if vectors is None:
                torch.add(block, along[0], alpha=sign, out=target)
            elif block.dtype == vectors.dtype:
                torch.addmm(block, vectors, along, alpha=sign, out=target)
            else:
                torch.add(block, vectors @ along.to(vectors.dtype), alpha=sign, out=target)

    def messages(self, rows: Tensor) -> list[Tensor]:
        """The rows of each message that is not empty."""
        return list(rows.split(self._rows))

    def _coordinates_by_message(self, coordinates: Tensor) -> list[Tensor]:
        return list(coordinates.split([1 + k for k in self._many]))


@dataclass(eq=False)
class Directions:
    """Of the messages of one product of each epoch, in one direction, chosen once.

    Attributes
    ----------
    epoch : int
        In which they were chosen.
    width : int
        Of the rows.
    sent, received : Tensor [rows of messages that have directions, 1 + K]
        As in :class:`Frame`, of messages to others, and from them.
    """

    epoch: int
    width: int
    sent: Tensor
    received: Tensor

    @classmethod
    def chosen(
        cls,
        rows: Tensor,
        counts: RowCounts,
        comm: Communicator,
        *,
        asked: int,
        epoch: int,
        key: int,
    ) -> Directions:
        """Those along which rows are longest, as they are now; receivers are told. Collective.

        Parameters
        ----------
        rows : Tensor [rows to send, f]
        counts : RowCounts
        comm : Communicator
        asked : int
            How many, at most.
        epoch : int
        key : int
            64 bits, for what is drawn.
        """
        dtype, travels = SUM_DTYPE[rows.dtype], told_of(counts, asked)
        sent, received = (
            torch.zeros(total, asked, dtype=dtype, device=rows.device)
            for total in (travels.sent, travels.received)
        )
        begin = 0
        many = directions_of(counts.send, asked).tolist()
        for block, k in zip(rows.split(counts.send.tolist()), many, strict=True):
            if k:
                sent[begin : begin + len(block), :k] = longest(block.to(dtype), k, key)
                begin += len(block)
        comm.alltoallv(sent, received, travels).wait()
        whole = (_with_mean(sent, travels.send), _with_mean(received, travels.recv))
        return cls(epoch, rows.shape[1], *whole)


def coordinates_of(counts: RowCounts, asked: int) -> RowCounts:
    """Means, and what rows are along directions, as rows of each message."""
    send, receive = ((each > 0) + directions_of(each, asked) for each in (counts.send, counts.recv))
    largest = min(counts.largest, 1) + min(asked, counts.largest // ROWS_A_DIRECTION)
    return RowCounts(send, receive, largest)


def told_of(counts: RowCounts, asked: int) -> RowCounts:
    """Rows of which receivers are told what they are along directions: those of long messages."""
    send, receive = (
        np.where(directions_of(each, asked) > 0, each, 0) for each in (counts.send, counts.recv)
    )
    return RowCounts(send, receive, counts.largest if counts.largest >= ROWS_A_DIRECTION else 0)


def longest(rows: Tensor, k: int, key: int) -> Tensor:
    """Orthonormal directions beside the mean that hold most of what rows are, nearly.

    A randomised range finder with one power iteration (Halko, Martinsson & Tropp, SIAM Review 53,
    2011, algorithm 4.4).

    Parameters
    ----------
    rows : Tensor [n, f]
    k : int
        Below n.
    key : int
        64 bits, for what is drawn.

    Returns
    -------
    Tensor [n, k]
        Columns add up to nought.
    """
    beside = rows - rows.mean(0)
    if beside.numel():
        # Third powers of small gradients are no numbers of float32.
        beside /= beside.abs().amax().clamp_min(torch.finfo(rows.dtype).tiny)
    draws = torch.Generator().manual_seed(key)
    start = torch.randn(rows.shape[1], k, generator=draws, dtype=rows.dtype).to(rows.device)
    found = beside @ (beside.T @ (beside @ start))
    common = rows.new_full((len(rows), 1), 1 / sqrt(len(rows)))
    orthonormal: Tensor = torch.linalg.qr(torch.cat((common, found), 1))[0]
    return orthonormal[:, 1:]


def _with_mean(vectors: Tensor, counts: Int64Array) -> Tensor:
    """Directions, and before them that of the mean of each message."""
    lengths = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)
    return torch.cat((torch.from_numpy(lengths).to(vectors)[:, None], vectors), 1)
