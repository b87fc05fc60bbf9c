"""Attention over ranks against a dense reference: rows, all gradients, bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn import CSR, DistMatrix, InputError, Mesh, RowLayout
from spgnn.attention import EdgeDropout, attend
from spgnn.attention.pieces import check_attention
from spgnn.attention.scores import head_scores
from spgnn.comm import Communicator, connect
from spgnn.exchange import Algorithm, Step, build
from spgnn.kernels.torch_kernels import dropout_keeps
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
    yield Algorithm(relays=True)
    for buffer in (1 << 11, 1 << 22):  # groups one after the other, or two under way
        yield Algorithm(schedule="peers", buffer=buffer)
    for c in (2, 4):
        if ranks % c == 0:
            for cover in ("column", "minimum"):
                yield Algorithm("1.5d", c, cover=cover, relays=cover == "column")
    if ranks == 8:
        yield Algorithm("1.5d", 2, "oblivious")
        yield Algorithm("2d", cover="row")
    if ranks > 1:
        yield Algorithm("feature", ranks)
    if ranks in (4, 8):
        yield Algorithm("feature", 2, cover="minimum")
        yield Algorithm("3d", 2, exchange="oblivious")
    yield Algorithm("vertex-cut")
    yield Algorithm("vertex-cut", cover="minimum")


def cases(ranks: int) -> Iterator[Case]:
    """All schemes; shapes and kinds of scores take turns."""
    shapes = [(1, 1, 8), (4, 3, 17), (3, 5, 1), (8, 8, 40)]
    for number, (algorithm, joint) in enumerate(product(grids(ranks), (False, True))):
        for turn in range(1 if ranks == 4 else 2):
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


def operands(case: Case) -> SimpleNamespace:
    """Of the whole graph, float64; those that are differentiated require it."""
    rng = np.random.default_rng(case.n)
    width = case.heads * case.channels

    def drawn(*shape: int) -> Tensor:
        # Numbers that every dtype holds exactly.
        return torch.from_numpy(np.round(rng.standard_normal(shape) * 8) / 8)

    return SimpleNamespace(
        Z=drawn(case.n, width).requires_grad_(),
        a=drawn(case.heads, case.channels).requires_grad_(),
        ends=drawn(case.n, width if case.joint else case.heads).requires_grad_(),
        G=drawn(case.n, width),
        ids=torch.from_numpy(rng.permutation(case.n)) + 2**33,
        pattern=torch.from_numpy(matrix_of(case).toarray() != 0),
    )


def matrix_of(case: Case) -> sp.csr_array:
    return random_matrix(case.n, 0.2, case.n, weighted=case.weighted)


def dense(case: Case, whole: SimpleNamespace) -> Tensor:
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
    whole = operands(case)
    expected = dense(case, whole)
    layout = RowLayout.even(case.n, comm.size) if case.even else uneven_layout(case.n, comm.size, 3)
    own = np.arange(*layout.range(comm.rank))
    chosen = np.random.default_rng(1).random(case.n) < (0.5 if case.reach else 1.0)
    made = own[chosen[own]]
    (expected * whole.G)[torch.from_numpy(chosen)].sum().backward()

    A = matrix_of(case)
    mesh = Mesh.build(comm, case.algorithm.axes(comm.size))
    scheme = case.algorithm.scheme(CSR.from_scipy(A[made]), layout, comm.rank)
    how = {"schedule": case.algorithm.schedule, "buffer": case.algorithm.buffer}
    matrix = DistMatrix(build(scheme, mesh).ready(), layout, mesh, **how)

    Z = whole.Z.detach()[own].to(case.dtype).requires_grad_()
    a = whole.a.detach().to(case.dtype).requires_grad_()
    ends = whole.ends.detach()[made].to(case.dtype).requires_grad_()
    targets = torch.from_numpy(made - layout.range(comm.rank)[0]) if case.reach else None
    dropout = EdgeDropout(case.p, KEY, whole.ids[own], targets) if case.p else None
    if dropout is not None:
        matrix.attention.ids(dropout.vertex_ids, dropout.row_columns)
    before = comm.ledger.copy()
    out = attend(matrix, Z, a, ends, joint=case.joint, slope=SLOPE, dropout=dropout)
    forward = moved(comm.ledger.since(before))
    before = comm.ledger.copy()
    loss = (out * whole.G[made].to(case.dtype)).sum()
    loss.backward(retain_graph=True)
    backward = moved(comm.ledger.since(before))
    leaves, again = (Z, ends, a), list[Tensor]()
    if comm.size > 1 and (case.algorithm.algo, case.algorithm.cover) != ("1d", "column"):
        with pytest.raises(InputError, match=r"and second derivatives, .* need --algo 1d and"):
            torch.autograd.grad(loss, leaves, create_graph=True)
    else:  # gradients to be differentiated are made another way
        again += torch.autograd.grad(loss, leaves, create_graph=True)
        total = again.pop().detach().contiguous()
        comm.all_reduce(total).wait()
        again += (total,)

    total = a.grad.clone()
    comm.all_reduce(total).wait()
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 0.1}[case.dtype]
    for found, truth, name in (
        (out, expected.detach()[made], "rows"),
        (Z.grad, whole.Z.grad[own], "dZ"),
        (ends.grad, whole.ends.grad[made], "ends"),
        (total, whole.a.grad, "da"),
        *zip(again, (whole.Z.grad[own], whole.ends.grad[made], whole.a.grad), "Zea", strict=False),
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
            message.traffic()
            for message in matrix.attention.carried(
                width, case.heads, case.dtype, Step(adjoint=adjoint), joint=case.joint
            )
        ]
        bytes_ = sum(t.sent_bytes for t in planned), sum(t.received_bytes for t in planned)
        assert counted == bytes_, case


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_attention_is_that_of_one_dense_process(ranks):
    chosen = list(cases(ranks))
    if ranks in (1, 4):
        # Other dtypes, in every direction that rows travel.
        grid = Algorithm("1.5d", 2) if ranks % 2 == 0 else Algorithm(cover="row")
        ways = Algorithm(), Algorithm(cover="minimum"), grid
        chosen += [
            Case(23, algorithm, 4, 4, joint, 0.3, dtype=dtype)
            for algorithm, joint in product(ways, (False, True))
            for dtype in (torch.float32, torch.bfloat16)
        ]
        # Of odd width: the one row that arrives has its scores at an odd place.
        chosen += [
            Case(n, Algorithm(cover=cover), heads, 5, joint, dtype=torch.bfloat16)
            for n, cover, joint in product((6, 9), ("row", "minimum"), (False, True))
            for heads in (1, 3)
        ]
    run_ranks(lambda rank: [check(connect(), case) for case in chosen], ranks)


def built(comm: Communicator, **how: object) -> DistMatrix:
    n = 24
    algorithm = Algorithm(**how)
    mesh = Mesh.build(comm, algorithm.axes(comm.size))
    layout = RowLayout.even(n, comm.size)
    A = random_matrix(n, 0.2, 1, weighted=False)
    block = CSR.from_scipy(A[slice(*layout.range(comm.rank))])
    return DistMatrix.build(block, layout, mesh, algorithm=algorithm)


def check_refused(comm: Communicator) -> None:
    """Each is said before anything moves, on all ranks alike."""
    cannot: list[dict[str, object]] = [
        {"node_size": 2},
        {"node_size": 2, "cover": "minimum"},
        {"schedule": "peers", "buffer": 1 << 20, "cover": "row"},
        {"schedule": "peers", "buffer": 1 << 20, "algo": "1.5d", "c": 2},
    ]
    for how in cannot:
        matrix = built(comm, **how)
        rows = torch.zeros(matrix.columns, 4)
        before = comm.ledger.copy()
        with pytest.raises(
            InputError, match=r"attention needs --algo 1d, 1\.5d, 2d, feature, 3d or vertex-cut"
        ):
            attend(matrix, rows, torch.zeros(2, 2), torch.zeros(matrix.rows, 2))
        with pytest.raises(InputError, match="--model gat needs --algo"):
            check_attention(Algorithm(**how), "--model gat")
        assert moved(comm.ledger.since(before)) == (0, 0)
    for how in ({"cover": "minimum"}, {"algo": "vertex-cut"}):
        with pytest.raises(InputError, match="--model gat needs --no-relays, or --cover column"):
            check_attention(Algorithm(relays=True, **how), "--model gat")
    matrix, ids = built(comm), torch.arange(6)
    Z, a, d = torch.zeros(6, 4), torch.zeros(2, 2), torch.zeros(6, 2)
    for operands, how, message in (
        ((Z, torch.zeros(3, 2), d), {}, "of equal size|vector"),
        ((Z, a, torch.zeros(6, 4)), {}, r"must be \[6, 2\]"),
        ((Z, a, d), {"joint": True}, r"must be \[6, 4\]"),
        ((Z.int(), a, d), {}, "takes float32"),
        ((Z, a, d), {"edges": torch.zeros(3, 2)}, "edges, there are"),
        ((Z, a, d), {"edges": torch.zeros(3, 1)}, r"\[edges, 2\]"),
        ((Z, a, d), {"dropout": EdgeDropout(1.0, 0, ids)}, r"in \[0, 1\)"),
        ((Z, a, d), {"dropout": EdgeDropout(0.5, 0, ids[:5])}, r"must be \[6\]"),
        # What differs between ranks is found, and named.
        ((Z, a, d), {"slope": 0.1 * comm.rank}, "slope"),
        ((Z.clone().requires_grad_(comm.rank == 1), a, d), {}, "gradients"),
    ):
        with pytest.raises(InputError, match=message):
            attend(matrix, *operands, **how)
    for how in ({"cover": "row"}, {"algo": "1.5d", "c": 2}, {"algo": "feature", "c": 2}):
        with pytest.raises(InputError, match="need --algo 1d and --cover column"):
            attend(built(comm, **how), Z, a, d, edges=torch.zeros(3, 2))


def check_once(comm: Communicator) -> None:
    """Ids of other ranks' vertices are fetched once, and what repeats repeats bit for bit."""
    for how in ({}, {"cover": "minimum"}, {"algo": "1.5d", "c": 2}, {"algo": "feature", "c": 2}):
        matrix = built(comm, **how)
        generator = torch.Generator().manual_seed(comm.rank)
        Z = torch.randn(6, 4, generator=generator)
        d, a = torch.randn(6, 2, generator=generator), torch.ones(2, 2)
        dropout = EdgeDropout(0.5, 7, torch.arange(6) + 6 * comm.rank)
        counted, found = [], []
        for _ in range(3):
            before = comm.ledger.copy()
            found.append(attend(matrix, Z, a, d, dropout=dropout))
            counted.append(moved(comm.ledger.since(before)))
        assert counted[0][0] > counted[1][0] == counted[2][0]
        assert torch.equal(found[0], found[1])
        # Without gradients nothing is kept, and the rows are the same.
        Z.requires_grad_()
        kept = attend(matrix, Z, a, d, dropout=dropout)
        assert torch.equal(kept.detach(), found[0])


def check_edges_in_groups(comm: Communicator) -> None:
    """Scores of edges, and their gradients, with a group of peers at a time as with all at once.

    Fetched rows are in memory a group at a time, and not from forward to backward.
    """
    results = []
    for how in ({}, {"schedule": "peers", "buffer": 1 << 7}, {"schedule": "peers", "buffer": 200}):
        matrix = built(comm, **how)
        generator = torch.Generator().manual_seed(comm.rank)
        operands = [
            torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
            for shape in ((6, 4), (6, 2), (matrix.attention.edges, 2))
        ]
        Z, d, edges = operands
        out = attend(matrix, Z, torch.ones(2, 2, dtype=torch.float64), d, edges=edges)
        out.square().sum().backward()
        results.append([out.detach(), *(each.grad for each in operands)])
        if how:
            held = matrix.executor.workspace.held("receive")
            assert 0 < held <= how["buffer"] < 32 * matrix.attention.pieces.fetched
    for one in results[1:]:
        torch.testing.assert_close(one, results[0], rtol=1e-12, atol=1e-12)
    matrix = built(comm, schedule="peers", buffer=8)
    with pytest.raises(InputError, match="--buffer 8: attention to rows of 32 bytes needs 64"):
        attend(matrix, Z, torch.ones(2, 2, dtype=torch.float64), d)


def check_compiled(comm: Communicator) -> None:
    """Compiled graphs see one operator."""
    matrix = built(comm, cover="minimum")
    generator = torch.Generator().manual_seed(comm.rank)
    a = torch.randn(2, 3, generator=torch.Generator().manual_seed(5)).requires_grad_()

    def layer(Z: Tensor, X: Tensor) -> Tensor:
        d = head_scores(Z, a)
        return attend(matrix, Z, a, d).relu() + attend(matrix, Z, a, X, joint=True)

    results = []
    Z0, X0 = torch.randn(2, matrix.rows, 6, generator=generator)
    for function in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        Z, X = Z0.clone().requires_grad_(), X0.clone().requires_grad_()
        a.grad = None
        out = function(Z, X)
        out.square().sum().backward()
        results.append((out.detach(), Z.grad, X.grad, a.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "check", [check_refused, check_once, check_edges_in_groups, check_compiled]
)
def test_refusals_ids_and_compiled_graphs(check, compiler):
    run_ranks(lambda rank: check(connect()), 2 if check is check_compiled else 4)
