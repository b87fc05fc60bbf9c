"""Delayed rows and exact means, against oracles that remember every epoch."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from spgnn.comm import connect
from spgnn.comm.traffic import RowCounts
from spgnn.exchange import Codec, Step
from spgnn.exchange.codec import CodecSetting
from spgnn.exchange.compression import ExactMeans
from spgnn.exchange.delay import SendNothing
from spgnn.exchange.transport import Route, Transport
from spgnn.testing import run_ranks
from tests.exchange.coded import ALONE, alone, begin, land

F, EPOCHS, HALF = 3, 12, ALONE // 2


def rows_of(epoch: int, adjoint: bool = False, n: int = ALONE) -> np.ndarray:
    """Rows that have more in common than not, and what that is changes."""
    rng = np.random.default_rng(2 * epoch + adjoint)
    return rng.standard_normal((n, F)) + 10 * rng.standard_normal(F)


def arrives(codec: Codec, message, epoch: int) -> np.ndarray:
    """What arrives of a message in an epoch, where ``message(e)`` are its rows in epoch e."""
    now = message(epoch)
    if codec.exact_last and epoch >= EPOCHS - codec.exact_last:
        return now

    def sent(e: int) -> np.ndarray:
        # What travels late is how rows differ from the mean, which is of now.
        return message(e) - message(e).mean(axis=0) if codec.sends_means else message(e)

    late = np.zeros_like(now)
    for row in range(len(now) if codec.delay is not None else 0):
        last = epoch - codec.delay
        epochs = [0, *(e for e in range(1, last + 1) if e % codec.bins == row % codec.bins)]
        weights = (codec.smoothing or 1e-300) ** np.arange(len(epochs))[::-1]
        late[row] = weights @ np.stack([sent(e)[row] for e in epochs]) / weights.sum()
    if codec.sends_means and len(now):
        late += now.mean(axis=0) - late.mean(axis=0)
    return late


LATE = [
    Codec(delay=1, exact_means=False),
    Codec(delay=3, exact_means=False),
    Codec(delay=2, bins=2, exact_means=False),
    Codec(delay=4, bins=3, exact_last=1, exact_means=False),
    Codec(delay=1, smoothing=0.9, exact_means=False),
    Codec(delay=3, bins=3, smoothing=0.8, exact_means=False),
    Codec(delay=2, bins=4, smoothing=0.3, exact_last=2, exact_means=False),
    Codec(delay=1),
    Codec(delay=1, bins=2, smoothing=0.7, exact_means=True),
    Codec(delay=1, exact_means=True, exact_last=3),
    Codec(delay=None, exact_last=1),
    Codec(delay=None, exact_means=True),
]


@pytest.mark.parametrize("codec", LATE, ids=str)
def test_rows_are_those_of_the_epochs_they_should_be(codec):
    """Both ways, through autograd; two products an epoch; landing in between changes nothing."""
    A = alone(replace(codec, epochs=EPOCHS))
    for epoch in range(EPOCHS):
        begin(A, epoch)
        for product in (0, 100):
            X, G = (rows_of(epoch + product, adjoint) for adjoint in (False, True))
            H = torch.from_numpy(X).requires_grad_()
            Z = A @ H
            if epoch % 3 == 1:
                land(A)
            (dH,) = torch.autograd.grad(Z, H, torch.from_numpy(G))
            for found, own, adjoint in ((Z.detach(), X, False), (dH, G, True)):

                def message(e: int, adjoint=adjoint, product=product) -> np.ndarray:
                    return rows_of(e + product, adjoint)[HALF:]

                np.testing.assert_array_equal(found[:HALF], own[:HALF])
                expected = arrives(codec, message, epoch)
                np.testing.assert_allclose(found[HALF:], expected, atol=1e-11)
        moved = list(A.executor.carried(F, torch.float64, Step(epoch)))
        if codec.delay is None and not codec.exact_means:
            assert sum(int(c.sent.sum()) for c in moved) == (epoch == EPOCHS - 1) * HALF * F * 8


def test_errors_compare_rows_that_arrive_with_stale_ones():
    setting = CodecSetting(Codec(delay=2, exact_means=False))
    A = alone(setting)
    for epoch in range(6):
        A.forward(torch.from_numpy(rows_of(epoch)), Step(epoch))
    rows = [rows_of(epoch)[HALF:] for epoch in range(6)]
    error = sum(np.square(new - old).sum() for old, new in pairwise(rows[:4]))
    norm = sum(np.square(new).sum() for new in rows[1:4])
    np.testing.assert_allclose(setting.errors.sums[0, False, "delay"].numpy(), [error, norm])


def test_a_copy_begins_anew():
    """Of what was kept of rows nothing is shared, for a copy may be on another device."""
    A = alone(Codec(delay=2, bins=2, exact_means=False))
    for epoch in range(3):
        A.forward(torch.from_numpy(rows_of(epoch)), Step(epoch))
    (codec,), (other,) = A.codecs.hops, copy.deepcopy(A).codecs.hops
    assert codec.state()
    assert codec._bins
    assert not other.state()
    assert not other._bins


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_other_dtypes_come_back(dtype):
    """The first rows of a line are those of now, up to a few roundings."""
    A = alone(Codec(delay=2, exact_means=True)).to(dtype)
    H = torch.from_numpy(rows_of(0)).to(dtype)
    found = A.forward(H, Step())
    torch.testing.assert_close(found, H, rtol=0, atol=4 * torch.finfo(dtype).eps * 16)


def test_rows_that_are_not_drawn_arrive_as_the_mean():
    A, H = alone(Codec(sampling=((0, 0.25),))), torch.from_numpy(rows_of(0))
    sent = H[HALF:].numpy()
    found = A.forward(H, Step())[HALF:].numpy()
    rest = found - found.mean(axis=0)
    left_out = np.isclose(rest, np.median(rest, axis=0)).all(axis=1)
    assert HALF / 2 < left_out.sum() < HALF
    drawn = 4 * (sent - sent.mean(axis=0)) * ~left_out[:, None]
    np.testing.assert_allclose(found, sent.mean(axis=0) + drawn - drawn.mean(axis=0), atol=1e-12)


def test_schedules_end_in_rows_as_they_are():
    """Where nothing is lost, nothing is taken off and added again."""
    A = alone(Codec(((0, 8), (2, 32)), exact_means=True))
    for epoch in range(4):
        H = torch.from_numpy(rows_of(epoch))
        moved = list(A.executor.carried(F, torch.float64, Step(epoch)))
        assert torch.equal(A.forward(H, Step(epoch)), H) == (epoch >= 2)
        assert (sum(int(one.sent.sum()) for one in moved) == HALF * F * 8) == (epoch >= 2)


def messages_of(sender: int) -> list[np.ndarray]:
    """Rows to each of four ranks; that of rank 0 to itself is empty."""
    rng = np.random.default_rng(sender)
    return [rng.standard_normal((3 * (sender + peer), F)) for peer in range(4)]


def check_messages(rank: int) -> None:
    comm, peers = connect(), range(4)
    sizes = [3 * (rank + peer) for peer in peers]
    setting = CodecSetting(Codec(delay=None, exact_means=True))
    codec = ExactMeans(SendNothing(Transport(), setting), setting)
    route = Route(RowCounts(sizes, sizes, 3 * 6))
    rows, before = torch.from_numpy(np.concatenate(messages_of(rank))), comm.ledger.copy()
    out = torch.full_like(rows, torch.nan)
    codec.begin(rows, out, route, comm, Step()).wait()
    blocks = [messages_of(peer)[rank] for peer in peers if sizes[peer]]
    means = [block.mean(axis=0, keepdims=True).repeat(len(block), axis=0) for block in blocks]
    np.testing.assert_allclose(out, np.concatenate(means), atol=1e-14)
    sent, received = codec.bytes(route, F, torch.float64, Step())
    assert sent.tolist() == received.tolist() == [F * 8 * (size > 0) for size in sizes]
    moved = comm.ledger.since(before).of("alltoall")
    assert moved.sent_bytes == moved.received_bytes == sum(sent) - sent[rank]


def test_each_message_has_its_own_mean():
    run_ranks(check_messages, 4)
