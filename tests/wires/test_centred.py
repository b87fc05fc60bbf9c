"""Means and directions of messages, exact and of now, under what is done to the rest of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import DistMatrix
from spgnn.comm import RowCounts, connect
from spgnn.exchange import Step
from spgnn.testing import run_ranks
from spgnn.wires import Approximation, Dials, Errors, Setting, directions
from tests.wires.single import N, diagonal, sending_to_itself

F, EPOCHS, HALF = 3, 8, N // 2


@pytest.fixture(autouse=True)
def short_messages(monkeypatch):
    """Messages of these tests have directions as well."""
    monkeypatch.setattr(directions, "ROWS_A_DIRECTION", 10)


def rows_of(epoch: int, adjoint: bool = False) -> np.ndarray:
    """Rows that have more in common than not, and what that is changes."""
    rng = np.random.default_rng(2 * epoch + adjoint)
    return rng.standard_normal((N, F)) + 10 * rng.standard_normal(F)


def on_wires(asked: Approximation) -> DistMatrix:
    setting = Setting(Dials(asked, EPOCHS), Errors(), seed=3)
    return sending_to_itself(diagonal()).approximated(setting, torch.arange(N))


def sent(epoch: int, adjoint: bool) -> np.ndarray:
    """The rows of the one message."""
    return rows_of(epoch, adjoint)[HALF:]


def beside(rows: np.ndarray) -> np.ndarray:
    return rows - rows.mean(axis=0)


def projection(A: DistMatrix, *, adjoint: bool) -> np.ndarray:
    """Onto the mean, and onto the directions that the wire of a matrix has chosen."""
    found = np.full((HALF, HALF), 1 / HALF)
    state = A.wires[0].state()
    name = f"0{'t' if adjoint else ''}"
    if f"{name}.near" in state:
        V = state[f"{name}.near"].numpy()
        assert torch.equal(state[f"{name}.near"], state[f"{name}.far"])
        np.testing.assert_allclose(V.T @ V, np.eye(V.shape[1]), atol=1e-12)
        np.testing.assert_allclose(V[:, 0], 1 / np.sqrt(HALF))
        found = V @ V.T
    return found


def held(asked: Approximation, epoch: int, row: int) -> list[int]:
    """The epochs whose rows are in what is held of a row."""
    return [0, *(e for e in range(1, epoch) if e % asked.bins == row % asked.bins)]


@pytest.mark.parametrize(
    "asked",
    [
        Approximation(delay=1, centred=True),
        Approximation(delay=1, bins=3, centred=True),
        Approximation(delay=1, bins=2, smoothing=0.7, centred=True),
        Approximation(delay=1, centred=True, exact_last=3),
        Approximation(delay=None, centred=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("along", [0, 2])
def test_late_rows_have_the_mean_of_now(asked, along):
    """Both ways, through autograd, and along directions; nothing else, if it is never sent."""
    asked = replace(asked, directions=along)
    A = on_wires(asked)
    for epoch in range(EPOCHS):
        A.begin_epoch(epoch)
        H = torch.from_numpy(rows_of(epoch)).requires_grad_()
        Z = A @ H
        (dH,) = torch.autograd.grad(Z, H, torch.from_numpy(rows_of(epoch, True)))
        for found, adjoint in ((Z.detach(), False), (dH, True)):
            arrived = found.numpy()[HALF:]
            now = sent(epoch, adjoint)
            P = projection(A, adjoint=adjoint)
            assert np.isclose(np.trace(P), 1 + along)
            np.testing.assert_allclose(arrived.mean(axis=0), now.mean(axis=0), atol=1e-12)
            np.testing.assert_allclose(P @ arrived, P @ now, atol=1e-12)
            if asked.exact_last and epoch >= EPOCHS - asked.exact_last:
                np.testing.assert_array_equal(arrived, now)
                continue
            late = np.zeros_like(now)
            for row in range(HALF if asked.delay else 0):
                epochs = held(asked, epoch, row)
                known = [(now - P @ now) for now in (sent(e, adjoint) for e in epochs)]
                weights = (asked.smoothing or 1e-300) ** np.arange(len(epochs))[::-1]
                late[row] = weights @ np.stack([rows[row] for rows in known]) / weights.sum()
            expected = late - P @ late + P @ now
            np.testing.assert_allclose(arrived, expected, atol=1e-12)


def test_rows_that_are_not_drawn_arrive_alike():
    asked = Approximation(sampling=((0, 0.25),), centred=True)
    A, H = on_wires(asked), torch.from_numpy(rows_of(0))
    rest = beside(A.forward(H, Step())[HALF:].numpy())
    mean = H[HALF:].numpy().mean(axis=0)
    left_out = np.isclose(rest, np.median(rest, axis=0)).all(axis=1)
    assert HALF / 2 < left_out.sum() < HALF
    drawn = 4 * beside(H[HALF:].numpy()) * ~left_out[:, None]
    np.testing.assert_allclose(A.forward(H, Step())[HALF:], mean + beside(drawn), atol=1e-12)
    assert not A.wires[0].remembers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_other_dtypes_come_back(dtype):
    """The first rows of a line are those of now, up to a few roundings."""
    A = on_wires(Approximation(delay=2, centred=True, directions=2)).to(dtype)
    H = torch.from_numpy(rows_of(0)).to(dtype)
    found = A.forward(H, Step())
    torch.testing.assert_close(found, H, rtol=0, atol=4 * torch.finfo(dtype).eps * 16)


def test_schedules_end_in_rows_as_they_are():
    """Where nothing is lost, nothing is taken off and added again."""
    A = on_wires(Approximation(((0, 8), (2, 32)), centred=True))
    for epoch in range(4):
        H = torch.from_numpy(rows_of(epoch))
        moved = list(A.executor.carried(F, torch.float64, Step(epoch)))
        sent_bytes = sum(int(one.sent.sum()) for one in moved)
        assert torch.equal(A.forward(H, Step(epoch)), H) == (epoch >= 2)
        assert (sent_bytes == HALF * F * 8) == (epoch >= 2)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 200),
    f=st.integers(0, 12),
    k=st.integers(1, 8),
    rank=st.integers(0, 4),
    scale=st.sampled_from([1e-30, 1.0, 1e20]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_directions_hold_what_rows_are_beside_the_mean(n, f, k, rank, scale, dtype):
    """All of it, if they are as many as it has dimensions; orthonormal whatever rows are."""
    rng, k = np.random.default_rng(n * f), min(k, n - 1)
    rank = min(rank, k)
    rows = scale * (rng.standard_normal((n, rank)) @ rng.standard_normal((rank, f)) + 3)
    V = directions.longest(torch.from_numpy(rows).to(dtype), k, key=2**64 - 1).double().numpy()
    assert V.shape == (n, k)
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(V.T @ V, np.eye(k), atol=20 * eps)
    np.testing.assert_allclose(V.sum(axis=0), 0, atol=20 * eps * n)
    rest = beside(rows)
    limit = 1e3 * eps * np.linalg.norm(rows)
    assert np.linalg.norm(rest - V @ (V.T @ rest)) <= limit


def test_of_many_directions_the_longest_are_chosen():
    rng = np.random.default_rng(0)
    lengths = np.array([30.0, 20.0, 10.0, *np.full(5, 0.5)])
    rows = rng.standard_normal((500, 8)) * lengths @ np.linalg.qr(rng.standard_normal((8, 8)))[0]
    V = directions.longest(torch.from_numpy(rows), 3, key=7).numpy()
    rest, singular = beside(rows), np.linalg.svd(beside(rows))[1]
    left = np.linalg.norm(rest - V @ (V.T @ rest))
    assert left < 1.05 * np.linalg.norm(singular[3:])


def rows_to(sender: int, sizes: np.ndarray) -> list[np.ndarray]:
    """Messages of a rank, whose rows have two dimensions beside their mean."""
    rng = np.random.default_rng(sender)
    return [
        rng.standard_normal((n, 2)) @ rng.standard_normal((2, F)) + rng.standard_normal(F)
        for n in sizes
    ]


def rebuilt(rank: int) -> None:
    comm, peers = connect(), np.arange(4)
    # The first message is empty, and others are too short for two directions.
    sizes = 7 * (rank + peers)
    counts = RowCounts(sizes, sizes, 7 * 6)
    rows = torch.from_numpy(np.concatenate(rows_to(rank, sizes)))
    found = directions.Directions.chosen(rows, counts, comm, asked=2, epoch=0, key=5)
    near, far = (directions.Frame(sizes, each) for each in (found.sent, found.received))
    own = near.coordinates(rows)
    arriving = torch.empty(int(far.sizes.sum()), F, dtype=torch.float64)
    comm.alltoallv(own, arriving, directions.coordinates_of(counts, 2)).wait()
    out = torch.zeros(int(sizes.sum()), F, dtype=torch.float64)
    far.moved(out, arriving, out, sign=1)
    for peer, block in zip(peers, out.split(sizes.tolist()), strict=True):
        expected = rows_to(peer, 7 * (peer + peers))[rank]
        if len(block) >= 20:
            np.testing.assert_allclose(block, expected, atol=1e-10)
        elif len(block):
            np.testing.assert_allclose(block.mean(0), expected.mean(axis=0), atol=1e-10)


def test_receivers_rebuild_rows_from_what_they_are_along_directions():
    run_ranks(rebuilt, 4)
