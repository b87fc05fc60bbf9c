"""Attention over ranks against a dense reference: rows, all gradients, bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from spgnn import CSR, DistMatrix, Mesh, RowLayout
from spgnn.attention import EdgeDropout, attend, attend_v2, pieces
from spgnn.comm import Communicator, connect
from spgnn.exchange import Algorithm, build
from spgnn.kernels.reference import dropout_keeps
from spgnn.testing import run_ranks
from tests.matrices import random_matrix, uneven_layout
from tests.products import moved

SLOPE = 0.3
KEY = 2**63 + 12345


@dataclass(frozen=True)
class Case:
    """One matrix in one layout, attended to in one way."""

    n: int
    algorithm: Algorithm
    heads: int = 1
    channels: int = 1
    joint: bool = False
    p: float = 0.0
    even: bool = True
    # Which rows are made: all, or those that some share of the vertices are.
    reach: bool = False
    dtype: torch.dtype = torch.float64
    weighted: bool = False


def grids(ranks: int) -> Iterator[Algorithm]:
    """Every cover of every scheme that attention works on."""
    for cover in ("column", "row", "minimum"):
        yield Algorithm(cover=cover)
    yield Algorithm(exchange="oblivious")
    for c in (2, 4):
        if ranks % c == 0:
            for cover in ("column", "minimum"):
                yield Algorithm("1.5d", c, cover=cover)
    if ranks == 8:
        yield Algorithm("1.5d", 2, "oblivious")
        yield Algorithm("2d", cover="row")
    yield Algorithm("vertex-cut")
    yield Algorithm("vertex-cut", cover="minimum")


def cases(ranks: int) -> Iterator[Case]:
    """All schemes; shapes and kinds of scores take turns."""
    shapes = [(1, 1, 8), (4, 3, 17), (3, 5, 1), (8, 8, 40)]
    for number, (algorithm, joint) in enumerate(product(grids(ranks), (False, True))):
        for turn in range(2):
            heads, channels, n = shapes[(number + turn) % 4]
            yield Case(
                n if turn else n + 3,
                algorithm,
                heads,
                channels,
                joint,
                0.4 if (number + turn) % 3 == 0 else 0.0,
                even=bool((number + turn) % 2),
                reach=(number + turn) % 5 < 2,
                weighted=(number + turn) % 7 == 0,
            )


@dataclass(frozen=True, eq=False)
class Operands:
    """Of the whole graph, float64; those that are differentiated require it."""

    Z: Tensor
    a: Tensor
    ends: Tensor
    G: Tensor
    ids: Tensor
    pattern: Tensor

    @classmethod
    def of(cls, case: Case) -> Operands:
        rng = np.random.default_rng(case.n)
        width = case.heads * case.channels
        A = random_matrix(case.n, 0.2, case.n, weighted=case.weighted)

        def drawn(*shape: int) -> Tensor:
            # Numbers that every dtype holds exactly.
            return torch.from_numpy(np.round(rng.standard_normal(shape) * 8) / 8)

        return cls(
            drawn(case.n, width).requires_grad_(),
            drawn(case.heads, case.channels).requires_grad_(),
            drawn(case.n, width if case.joint else case.heads).requires_grad_(),
            drawn(case.n, width),
            torch.from_numpy(rng.permutation(case.n)) + 2**33,
            torch.from_numpy(A.toarray() != 0),
        )


def dense(case: Case, whole: Operands) -> Tensor:
    """As the papers write it, [n, heads * channels]."""
    Z = whole.Z.view(case.n, case.heads, case.channels)
    if case.joint:
        ends = whole.ends.view(Z.shape)
        arguments = torch.nn.functional.leaky_relu(ends[:, None] + Z[None], SLOPE)
        scores = (arguments * whole.a).sum(-1)
    else:
        s = (Z * whole.a).sum(-1)
        scores = torch.nn.functional.leaky_relu(whole.ends[:, None] + s[None], SLOPE)
    scores = scores.masked_fill(~whole.pattern[:, :, None], -torch.inf)
    empty = ~whole.pattern.any(1)
    scores = torch.where(empty[:, None, None], 0.0, scores)
    weights = torch.softmax(scores, 1) * ~empty[:, None, None]
    if case.p:
        columns = whole.ids[:, None] * case.heads + torch.arange(case.heads)
        kept = dropout_keeps(whole.ids[:, None, None], columns[None], KEY, case.p)
        weights = weights * kept / (1 - case.p)
    return torch.einsum("ijh,jhc->ihc", weights, Z).flatten(1)


def check(comm: Communicator, case: Case) -> None:
    """Rows and gradients; and the bytes of both directions. Collective."""
    whole = Operands.of(case)
    expected = dense(case, whole)
    layout = RowLayout.even(case.n, comm.size) if case.even else uneven_layout(case.n, comm.size, 3)
    own = np.arange(*layout.range(comm.rank))
    chosen = np.random.default_rng(1).random(case.n) < (0.5 if case.reach else 1.0)
    made = own[chosen[own]]
    (expected * whole.G)[torch.from_numpy(chosen)].sum().backward()

    A = random_matrix(case.n, 0.2, case.n, weighted=case.weighted)
    mesh = Mesh.build(comm, case.algorithm.axes(comm.size))
    scheme = case.algorithm.scheme(CSR.from_scipy(A[made]), layout, comm.rank)
    matrix = DistMatrix(build(scheme, mesh).ready(), layout, mesh)

    Z = whole.Z.detach()[own].to(case.dtype).requires_grad_()
    a = whole.a.detach().to(case.dtype).requires_grad_()
    ends = whole.ends.detach()[made].to(case.dtype).requires_grad_()
    targets = torch.from_numpy(made - layout.range(comm.rank)[0]) if case.reach else None
    dropout = EdgeDropout(case.p, KEY, whole.ids[own], targets) if case.p else None
    if dropout is not None:
        matrix.attention.ids(dropout.sources, dropout.targets)
    how = attend_v2 if case.joint else attend
    before = comm.ledger.copy()
    out = how(matrix, Z, a, ends, slope=SLOPE, dropout=dropout)
    forward = moved(comm.ledger.since(before))
    before = comm.ledger.copy()
    (out * whole.G[made].to(case.dtype)).sum().backward()
    backward = moved(comm.ledger.since(before))

    total = a.grad.clone()
    comm.all_reduce(total).wait()
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 0.1}[case.dtype]
    for found, truth, name in (
        (out, expected.detach()[made], "rows"),
        (Z.grad, whole.Z.grad[own], "dZ"),
        (ends.grad, whole.ends.grad[made], "ends"),
        (total, whole.a.grad, "da"),
    ):
        assert found.dtype == case.dtype
        torch.testing.assert_close(
            found.detach().double(),
            truth,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{text} {case} {name}",
        )
    width = case.heads * case.channels
    for counted, adjoint in ((forward, False), (backward, True)):
        planned = [
            message.traffic(case.dtype)
            for message in pieces(matrix.plan).messages(
                width, case.heads, case.dtype, whole_rows=case.joint, adjoint=adjoint
            )
        ]
        bytes_ = sum(t.sent_bytes for t in planned), sum(t.received_bytes for t in planned)
        assert counted == bytes_, case


def check_cases(rank: int, every: int) -> int:
    comm = connect()
    chosen = list(cases(comm.size))[::every]
    for case in chosen:
        check(comm, case)
    return len(chosen)


@pytest.mark.parametrize(("ranks", "every"), [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1)])
def test_attention_is_that_of_one_dense_process(ranks, every):
    checked = run_ranks(check_cases, ranks, every)
    assert checked == [len(list(cases(ranks))[::every])] * ranks
