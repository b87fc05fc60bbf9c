"""What one rank looks up or decides for all: files, and what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from spgnn.comm.base import Communicator
from spgnn.errors import InputError

Made = TypeVar("Made")


def on_rank_zero(comm: Communicator, work: Callable[[], Made]) -> Made | None:
    """Do something on rank 0 alone; ``None`` on the others. Collective.

    Raises
    ------
    InputError
        On all ranks, if the work raises it.
    """
    made, trouble = None, ""
    if comm.rank == 0:
        try:
            made = work()
        except InputError as error:
            trouble = str(error)
    _raise_told(broadcast_value(comm, trouble))
    return made


def from_rank_zero(comm: Communicator, look: Callable[[], Any]) -> Any:
    """What rank 0 finds, on all ranks; something that JSON can carry. Collective.

    Raises
    ------
    InputError
        On all ranks, if looking raises it.
    """
    return broadcast_value(comm, on_rank_zero(comm, look))


def on_every_rank(comm: Communicator, work: Callable[[], Made]) -> Made:
    """Do something on all ranks; if it is refused on some, it is on all. Collective.

    Raises
    ------
    InputError
        On all ranks: their own, or that of another.
    """
    made, trouble = None, None
    try:
        made = work()
    except InputError as error:
        trouble = error
    troubled = comm.agree(-1 if trouble is None else comm.rank)
    if troubled >= 0:
        said = broadcast_value(comm, str(trouble), troubled)
        raise trouble or InputError(f"on rank {troubled}: {said}")
    return made  # type: ignore[return-value]


def broadcast_value(comm: Communicator, value: Any, root: int = 0) -> Any:
    """The value of one rank, on all of them; something that JSON can carry. Collective."""
    text = json.dumps(value).encode() if comm.rank == root else b""
    buffer = torch.zeros(comm.agree(len(text)), dtype=torch.uint8)
    if comm.rank == root:
        buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    comm.broadcast(buffer, root).wait()
    return json.loads(buffer.numpy().tobytes())


def _raise_told(trouble: str) -> None:
    if trouble:
        raise InputError(trouble)
