"""RowCounts against the plain arithmetic of their lists."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from spgnn import InputError
from spgnn.comm import RowCounts

SEND, RECV = [3, 0, 2, 0], [0, 1, 2, 5]


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_what_a_call_needs(kind):
    counts = RowCounts(kind(SEND), kind(RECV), 5)
    assert counts.send.dtype == counts.recv.dtype == np.int64
    assert (counts.send.tolist(), counts.recv.tolist(), counts.largest) == (SEND, RECV, 5)
    assert (counts.send_list, counts.recv_list) == (SEND, RECV)
    assert (counts.sent, counts.received) == (5, 8)
    assert counts.targets == [(0, 0, 3), (2, 3, 5)]
    assert counts.sources == [(1, 0, 1), (2, 1, 3), (3, 3, 8)]


def test_nothing_is_worked_out_twice():
    counts = RowCounts(SEND, RECV, 5)
    for name in ("send_list", "recv_list", "targets", "sources"):
        assert getattr(counts, name) is getattr(counts, name)
    assert counts.reversed() is counts.reversed()
    assert counts.reversed().reversed() is counts
    assert counts.reversed() == RowCounts(RECV, SEND, 5)


def test_equal_if_all_numbers_are():
    counts = RowCounts(SEND, RECV, 5)
    assert counts == RowCounts(np.array(SEND), tuple(RECV), 5)
    assert hash(counts) == hash(RowCounts(np.array(SEND), tuple(RECV), 5))
    assert counts != RowCounts(RECV, SEND, 5)
    assert counts != RowCounts(SEND, RECV, 6)
    assert counts != (SEND, RECV, 5)


def test_pickled_with_all_that_was_worked_out():
    counts = RowCounts(SEND, RECV, 5)
    assert counts.reversed().targets
    again = pickle.loads(pickle.dumps(counts))
    assert again == counts
    assert again.reversed() == counts.reversed()
    assert not again.send.flags.writeable


def test_cannot_be_changed_from_outside():
    mine = np.array(SEND)
    counts = RowCounts(mine, RECV, 5)
    mine[0] = 4
    assert counts.send.tolist() == SEND
    with pytest.raises(ValueError, match="read-only"):
        counts.send[0] = 4


@pytest.mark.parametrize(
    ("send", "recv", "largest", "words"),
    [
        ([1, 2], [1], 2, "2.* peers but received from .*1"),
        ([1, -1], [1, 1], 2, "-1 to 1"),
        ([1, 3], [1, 1], 2, r"\[0, 2\], got 1 to 3"),
        ([1, 1], [3, 1], 2, r"\[0, 2\], got 1 to 3"),
    ],
)
def test_refused(send, recv, largest, words):
    with pytest.raises(InputError, match=words):
        RowCounts(send, recv, largest)
