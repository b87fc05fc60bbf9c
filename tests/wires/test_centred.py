"""Means of messages, exact and of now, under what is done to what rows are beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from spgnn import DistMatrix
from spgnn.comm import RowCounts, connect
from spgnn.exchange import Codec, CodecSetting, Exact, Route, Step
from spgnn.exchange.approximation import Errors
from spgnn.exchange.compression import ExactMeans
from spgnn.exchange.delay import Never
from spgnn.testing import run_ranks
from tests.wires.single import N, begin, diagonal, sending_to_itself, with_codec

F, EPOCHS, HALF = 3, 8, N // 2


def rows_of(epoch: int, adjoint: bool = False) -> np.ndarray:
    """Rows that have more in common than not, and what that is changes."""
    rng = np.random.default_rng(2 * epoch + adjoint)
    return rng.standard_normal((N, F)) + 10 * rng.standard_normal(F)


def on_wires(asked: Codec) -> DistMatrix:
    setting = CodecSetting(replace(asked, epochs=EPOCHS), Errors(), seed=3)
    return with_codec(sending_to_itself(diagonal()), setting, torch.arange(N))


def sent(epoch: int, adjoint: bool) -> np.ndarray:
    """The rows of the one message."""
    return rows_of(epoch, adjoint)[HALF:]


def beside(rows: np.ndarray) -> np.ndarray:
    return rows - rows.mean(axis=0)


def epochs_of(asked: Codec, epoch: int, row: int) -> list[int]:
    """The epochs whose rows are in what is held of a row."""
    return [0, *(e for e in range(1, epoch) if e % asked.bins == row % asked.bins)]


@pytest.mark.parametrize(
    "asked",
    [
        Codec(delay=1),
        Codec(delay=1, bins=3, exact_means=True),
        Codec(delay=1, bins=2, smoothing=0.7, exact_means=True),
        Codec(delay=1, exact_means=True, exact_last=3),
        Codec(delay=None, exact_means=True),
    ],
    ids=str,
)
def test_late_rows_have_the_mean_of_now(asked):
    """Both ways, through autograd; the mean alone, if nothing else is ever sent."""
    A = on_wires(asked)
    for epoch in range(EPOCHS):
        begin(A, epoch)
        H = torch.from_numpy(rows_of(epoch)).requires_grad_()
        Z = A @ H
        (dH,) = torch.autograd.grad(Z, H, torch.from_numpy(rows_of(epoch, True)))
        for found, adjoint in ((Z.detach(), False), (dH, True)):
            arrived = found.numpy()[HALF:]
            now = sent(epoch, adjoint)
            np.testing.assert_allclose(arrived.mean(axis=0), now.mean(axis=0), atol=1e-12)
            if asked.exact_last and epoch >= EPOCHS - asked.exact_last:
                np.testing.assert_array_equal(arrived, now)
                continue
            late = np.zeros_like(now)
            for row in range(HALF if asked.delay else 0):
                epochs = epochs_of(asked, epoch, row)
                known = [beside(sent(e, adjoint)) for e in epochs]
                weights = (asked.smoothing or 1e-300) ** np.arange(len(epochs))[::-1]
                late[row] = weights @ np.stack([rows[row] for rows in known]) / weights.sum()
            expected = beside(late) + now.mean(axis=0)
            np.testing.assert_allclose(arrived, expected, atol=1e-12)


def test_rows_that_are_not_drawn_arrive_alike():
    asked = Codec(sampling=((0, 0.25),))
    A, H = on_wires(asked), torch.from_numpy(rows_of(0))
    rest = beside(A.forward(H, Step())[HALF:].numpy())
    mean = H[HALF:].numpy().mean(axis=0)
    left_out = np.isclose(rest, np.median(rest, axis=0)).all(axis=1)
    assert HALF / 2 < left_out.sum() < HALF
    drawn = 4 * beside(H[HALF:].numpy()) * ~left_out[:, None]
    np.testing.assert_allclose(A.forward(H, Step())[HALF:], mean + beside(drawn), atol=1e-12)
    assert not A.codecs.hops[0].remembers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_other_dtypes_come_back(dtype):
    """The first rows of a line are those of now, up to a few roundings."""
    A = on_wires(Codec(delay=2, exact_means=True)).to(dtype)
    H = torch.from_numpy(rows_of(0)).to(dtype)
    found = A.forward(H, Step())
    torch.testing.assert_close(found, H, rtol=0, atol=4 * torch.finfo(dtype).eps * 16)


def test_schedules_end_in_rows_as_they_are():
    """Where nothing is lost, nothing is taken off and added again."""
    A = on_wires(Codec(((0, 8), (2, 32)), exact_means=True))
    for epoch in range(4):
        H = torch.from_numpy(rows_of(epoch))
        moved = list(A.executor.carried(F, torch.float64, Step(epoch)))
        sent_bytes = sum(int(one.sent.sum()) for one in moved)
        assert torch.equal(A.forward(H, Step(epoch)), H) == (epoch >= 2)
        assert (sent_bytes == HALF * F * 8) == (epoch >= 2)


def messages_of(sender: int) -> list[np.ndarray]:
    """Rows to each of four ranks; that of rank 0 to itself is empty."""
    rng = np.random.default_rng(sender)
    return [rng.standard_normal((3 * (sender + peer), F)) for peer in range(4)]


def check_messages(rank: int) -> None:
    comm, peers = connect(), range(4)
    sizes = [3 * (rank + peer) for peer in peers]
    setting = CodecSetting(Codec(delay=None, exact_means=True), Errors())
    wire = ExactMeans(Never(Exact(), setting), setting)
    route = Route(RowCounts(sizes, sizes, 3 * 6))
    rows, before = torch.from_numpy(np.concatenate(messages_of(rank))), comm.ledger.copy()
    out = torch.full_like(rows, torch.nan)
    wire.begin(rows, out, route, comm, Step()).wait()
    blocks = [messages_of(peer)[rank] for peer in peers]
    means = [
        block.mean(axis=0, keepdims=True).repeat(len(block), axis=0)
        for block in blocks
        if len(block)
    ]
    np.testing.assert_allclose(out, np.concatenate(means), atol=1e-14)
    sent, received = wire.bytes(route, F, torch.float64, Step())
    assert sent.tolist() == received.tolist() == [F * 8 * (size > 0) for size in sizes]
    moved = comm.ledger.since(before).of("alltoall")
    others = sum(sent) - sent[rank]
    assert moved.sent_bytes == moved.received_bytes == others


def test_each_message_has_its_own_mean():
    run_ranks(check_messages, 4)
