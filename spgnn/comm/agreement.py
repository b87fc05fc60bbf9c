"""Whether all ranks say the same, and who says what if they do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spgnn.comm.job import Call, CommunicationError, shown_ranks
from spgnn.errors import InputError, shortened
from spgnn.files import digest

if TYPE_CHECKING:
    from spgnn.comm.counts import RowCounts
    from spgnn.comm.transport import Transport

LONGEST_FACT = 60
_ABSENT = "nothing"


def _outside_transforms(check: Callable[..., None]) -> Callable[..., None]:
    """What ranks tell each other is no part of a function that `torch.func` transforms."""

    @wraps(check)
    def outside(*args: Any) -> None:
        with torch._C._DisableFuncTorch():
            check(*args)

    return outside


@_outside_transforms
def check_facts(comm: Transport, what: str, facts: dict[str, Any]) -> None:
    """See :meth:`Communicator.check_agreement`."""
    described = {name: _described(value) for name, value in facts.items()}
    said = _differing(comm, json.dumps([what, described]))
    if said is None:
        return
    told = [json.loads(text) for text in said]
    _raise_if_different(comm, "which check comes next", [place for place, _ in told])
    differing = [
        name
        for name in sorted({name for _, these in told for name in these})
        if len({these.get(name) for _, these in told}) > 1
    ]
    more = f" (and on {', '.join(differing[1:])})" if len(differing) > 1 else ""
    values = [these.get(differing[0], _ABSENT) for _, these in told]
    _raise_if_different(comm, f"{differing[0]} of {what}{more}", values)


@_outside_transforms
def check_call(comm: Transport, call: Call) -> None:
    """Compare a call with those of all other ranks before it starts (``SPGNN_DEBUG=1``).

    Raises
    ------
    CommunicationError
        On all ranks, naming who calls what.
    """
    said = _differing(comm, f"{call.number} {call.what}")
    if said is not None:
        what = f"call {call.number} of group {call.group.name}"
        line = _line(comm, what, [text.partition(" ")[2] for text in said])
        raise CommunicationError(line)


@_outside_transforms
def check_counts(comm: Transport, call: Call, counts: RowCounts) -> None:
    """Compare what this rank expects of its peers with what they send (``SPGNN_DEBUG=1``).

    Raises
    ------
    CommunicationError
        On all ranks.
    """
    coming = np.stack([_table(comm, counts.send), _table(comm, counts.recv).T])
    wrong = np.argwhere(coming[0] != coming[1])
    if len(wrong):
        source, target = wrong[0]
        sent, expected = coming[:, source, target]
        names = [shown_ranks([comm.group.ranks[rank]]) for rank in (source, target)]
        raise CommunicationError(
            f"{names[0]} sends {sent} rows to {names[1]}, which expects {expected}, in {call}"
        )


def _table(comm: Transport, mine: Sequence[int] | np.ndarray[Any, Any]) -> Any:
    """Everyone's numbers, one rank a row."""
    row = torch.from_numpy(np.array(mine, dtype=np.int64))
    return comm.gather_uncounted(row).numpy()


def _differing(comm: Transport, text: str) -> list[str] | None:
    """Everyone's text if any two differ, else ``None``; one small all-reduce if none do."""
    raw = text.encode()
    number = int(digest(raw)[:14], 16)
    bounds = torch.tensor([number, -number, len(raw)])
    comm.maximise_uncounted(bounds)
    if bounds[0] == -bounds[1]:
        return None
    padded = torch.zeros(int(bounds[2]), dtype=torch.uint8)
    padded[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    rows = comm.gather_uncounted(padded).numpy()
    return [row.tobytes().rstrip(b"\0").decode() for row in rows]


def _raise_if_different(comm: Transport, what: str, values: list[str]) -> None:
    if len(set(values)) > 1:
        raise InputError(_line(comm, what, values))


def _line(comm: Transport, what: str, values: list[str]) -> str:
    held: dict[str, list[int]] = {}
    for rank, value in zip(comm.group.ranks, values, strict=True):
        held.setdefault(value, []).append(rank)
    shown = [f"{value} on {shown_ranks(ranks)}" for value, ranks in held.items()]
    return f"ranks do not agree on {what}: {'; '.join(shown)}"


def _described(value: Any) -> str:
    """A short text that two values share only if they are equal."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        value = value.view(torch.uint8).numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if isinstance(value, np.ndarray):
        content = digest(np.ascontiguousarray(value).tobytes())[:8]
        return f"{value.dtype} {list(value.shape)} #{content}"
    text = repr(value)
    if len(text) <= LONGEST_FACT:
        return text
    return f"{shortened(text, LONGEST_FACT)} #{digest(text.encode())[:8]}"
