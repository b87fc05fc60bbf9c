"""Ranks that must agree: on facts, on calls, on the rows of an exchange."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spgnn.comm.failure import Call, CommunicationError, shown_ranks
from spgnn.errors import InputError, shortened
from spgnn.files import digest
from spgnn.torch_internals import untraced

if TYPE_CHECKING:
    from spgnn.comm.communicator import Communicator
    from spgnn.comm.traffic import RowCounts

LONGEST_FACT = 60
_ABSENT = "nothing"


@untraced()
def check_facts(comm: Communicator, what: str, facts: dict[str, Any], refusal: str) -> None:
    """See :meth:`Communicator.check_agreement`; a rank that has a refusal goes no further."""
    texts_of = {name: _text_of(value) for name, value in facts.items()}
    records = _differing(comm, what, texts_of, refusal)
    if records is None:
        return
    places = [place for place, *_ in records]
    if len(set(places)) > 1:
        raise refused(_line(comm, "which check comes next", places))
    differing = [
        name
        for name in sorted({name for _, facts_there, _ in records for name in facts_there})
        if len({facts_there.get(name) for _, facts_there, _ in records}) > 1
    ]
    # What all have a value of says more than what some ranks know nothing of.
    shared = [name for name in differing if all(name in facts for _, facts, _ in records)]
    differing = shared or differing
    more = f" (and on {', '.join(differing[1:])})" if len(differing) > 1 else ""
    values = [facts_there.get(differing[0], _ABSENT) for _, facts_there, _ in records]
    raise refused(_line(comm, f"{differing[0]} of {what}{more}", values))


def refused(line: str) -> InputError:
    """The error of a line that all ranks have."""
    error = InputError(line)
    error.everywhere = True
    return error


@untraced()
def check_call(comm: Communicator, call: Call) -> None:
    """Compare a call with those of all other ranks before it starts (``SPGNN_DEBUG=1``)."""
    records = _differing(comm, call.what, call.number)
    if records is not None:
        what = f"call {call.number} of group {call.group.name}"
        raise CommunicationError(_line(comm, what, [place for place, *_ in records]))


@untraced()
def check_counts(comm: Communicator, call: Call, counts: RowCounts) -> None:
    """Compare what this rank expects of its peers with what they send (``SPGNN_DEBUG=1``)."""
    sent, expected = (
        comm.gather_uncounted(torch.from_numpy(mine.copy())).numpy()  # one rank a row
        for mine in (counts.send, counts.recv)
    )
    coming = np.stack([sent, expected.T])
    wrong = np.argwhere(coming[0] != coming[1])
    if len(wrong):
        source, target = wrong[0]
        rows, due = coming[:, source, target]
        names = [shown_ranks([comm.group.ranks[rank]]) for rank in (source, target)]
        raise CommunicationError(
            f"{names[0]} sends {rows} rows to {names[1]}, which expects {due}, in {call}"
        )


def _differing(comm: Communicator, place: str, facts: Any, refusal: str = "") -> list[Any] | None:
    """Everyone's record if any two differ, else ``None``; one small all-reduce if none do."""
    raw = json.dumps([place, facts, refusal]).encode()
    number = int(digest(raw)[:14], 16)
    bounds = torch.tensor([number, -number, len(raw)], device="cpu")
    comm.maximise_uncounted(bounds)
    if bounds[0] == -bounds[1]:
        return None
    padded = torch.zeros(int(bounds[2]), dtype=torch.uint8, device="cpu")
    padded[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    rows = comm.gather_uncounted(padded).numpy()
    records = [json.loads(row.tobytes().rstrip(b"\0")) for row in rows]
    refusals = [(rank, text) for rank, (*_, text) in enumerate(records) if text]
    if refusals:
        raise refused("on rank {}: {}".format(*refusals[-1]))
    if len({type(theirs) for _, theirs, _ in records}) > 1:  # numbers of calls, and facts
        places = [place for place, *_ in records]
        raise CommunicationError(_line(comm, "which call comes next", places))
    return records


def _line(comm: Communicator, what: str, values: list[str]) -> str:
    ranks_with: dict[str, list[int]] = {}
    for rank, value in zip(comm.group.ranks, values, strict=True):
        ranks_with.setdefault(value, []).append(rank)
    values_by_rank = [f"{value} on {shown_ranks(ranks)}" for value, ranks in ranks_with.items()]
    return f"ranks do not agree on {what}: {'; '.join(values_by_rank)}"


def _text_of(value: Any) -> str:
    """A short text that two values share only if they are equal."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        value = value.view(torch.uint8).numpy() if value.dtype == torch.bfloat16 else value.numpy()
    if isinstance(value, np.ndarray):
        content = digest(np.ascontiguousarray(value).tobytes())[:8]
        return f"{value.dtype} {list(value.shape)} #{content}"
    text = repr(value)
    if len(text) <= LONGEST_FACT:
        return text
    return f"{shortened(text, LONGEST_FACT)} #{digest(text.encode())[:8]}"
