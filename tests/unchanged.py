"""Whatever is multiplied, sent or summed belongs to the caller: it stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, islice, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn import DistMatrix, Mesh, RowLayout
from spgnn.attention import attend
from spgnn.autograd import all_reduced
from spgnn.comm import Communicator
from spgnn.comm.traffic import RowCounts
from spgnn.exchange import Algorithm, Codec
from spgnn.exchange.codec import CodecSetting, Errors
from spgnn.exchange.needs import COVERS
from spgnn.nn import BatchNorm, GraphNorm, LayerNorm, PairNorm
from spgnn.nn.loss import CrossEntropy, count_labelled
from spgnn.nn.metrics import (
    accuracies,
    f1_scores,
    hits,
    mean_reciprocal_rank,
    regression_scores,
    roc_aucs,
)
from tests.exchange.coded import begin, with_codec
from tests.matrices import LAYOUTS, block_row, random_matrix, unchanged

N, WIDTH = 22, 3

WIRES: list[dict[str, Any]] = [
    {"bits": 4},
    {"bits": 4, "feedback": True},
    {"delay": 1},
    {"delay": 2, "bins": 2, "smoothing": 0.5, "exact_means": True},
    {"delay": 1, "exact_means": True},
    {"delay": None},
    {"fresh": 0.1},
    {"sampling": 0.5},
    {"sampling": 0.5, "exact_means": True},
]


def algorithms(ranks: int) -> Iterator[Algorithm]:
    """Schemes and covers whose rows attention takes, as far as these ranks can be arranged."""
    yield Algorithm(exchange="oblivious")
    yield from (Algorithm(a, cover=cover) for a in ("1d", "vertex-cut") for cover in COVERS)
    if ranks % 2 == 0:
        yield Algorithm("1.5d", 2, "oblivious")
        yield from (Algorithm(a, 2, cover=cover) for a in ("1.5d", "2d") for cover in COVERS)


def check_rows(comm: Communicator, each: int) -> int:
    """Halos and attention, of two orders; `each` layouts of every matrix. Products: `products`."""
    checked, turns = 0, cycle(LAYOUTS.values())
    for algorithm in algorithms(comm.size):
        layout = RowLayout.even(N, comm.size)
        mesh = Mesh.build(comm, algorithm.axes(comm.size))
        own = slice(*layout.range(mesh.rank))
        A = random_matrix(N, 0.3, 1, weighted=True)
        block = block_row(A, own.start, own.stop)
        matrix = DistMatrix.build(block, layout, mesh, algorithm=algorithm)
        H, G = torch.from_numpy(np.random.default_rng(2).standard_normal((2, N, WIDTH)))[:, own]
        for laid in islice(turns, each):
            if algorithm.algo == "1d" and algorithm.cover == "column":
                check_halo(matrix, laid(H), laid)
            check_attention(matrix, laid(H), laid(G), laid)
            checked += 1
    return checked


def check_wires(comm: Communicator) -> None:
    """Approximate messages of several epochs: neither operands nor earlier results change."""
    layout = RowLayout.even(N, comm.size)
    schemes = [Algorithm(), Algorithm("vertex-cut"), Algorithm("1.5d", 2), Algorithm(node_size=2)]
    for algorithm, asked in product(schemes[: 4 if comm.size % 2 == 0 else 2], WIRES):
        mesh = Mesh.build(comm, algorithm.axes(comm.size))
        first, last = layout.range(mesh.rank)
        block = block_row(random_matrix(N, 0.3, 1, weighted=True), first, last)
        exact = DistMatrix.build(block.to(torch.float32), layout, mesh, algorithm=algorithm)
        setting = CodecSetting(Codec.of(**asked), Errors())
        matrix = with_codec(exact, setting, torch.arange(first, last))
        H, G = (torch.randn(last - first, WIDTH) for _ in range(2))
        H, G = H.requires_grad_(), G.t().contiguous().t()
        made: list[Tensor] = []
        for epoch in range(4):
            begin(matrix, epoch)
            with unchanged(H, G, *made):
                Z = matrix @ H
                made += [Z.detach(), *torch.autograd.grad(Z, H, G)]
                if algorithm == Algorithm():
                    halo = matrix.halo(H)
                    given = torch.ones_like(halo)
                    with unchanged(given):
                        made += [halo.detach(), *torch.autograd.grad(halo, H, given)]


def check_halo(matrix: DistMatrix, H: Tensor, laid: Callable[[Tensor], Tensor]) -> None:
    """Both ways, and beside another branch that the same gradient reaches."""
    rows = matrix.own_rows + matrix.volume.receive
    of_halo = laid(torch.arange(rows * WIDTH, dtype=torch.float64).view(rows, WIDTH))
    H.requires_grad_()
    beside = torch.zeros_like(of_halo).requires_grad_()
    with unchanged(H, of_halo, beside):
        summed = matrix.halo_sum(of_halo)
        halo = matrix.halo(H) + beside
        dH, d_beside = torch.autograd.grad(halo, (H, beside), of_halo)
    assert torch.equal(d_beside, of_halo)
    assert torch.equal(dH, summed)
    # One number, seen at every place: the gradient of a sum.
    one = torch.ones(1, 1, dtype=torch.float64).expand(rows, WIDTH)
    with unchanged(one):
        summed = matrix.halo_sum(one)
        (dH,) = torch.autograd.grad(matrix.halo(H).sum(), H)
    assert torch.equal(dH, summed)


def check_attention(
    matrix: DistMatrix, Z: Tensor, G: Tensor, laid: Callable[[Tensor], Tensor]
) -> None:
    """Rows and all gradients, of scores of both kinds."""
    a = laid(torch.linspace(-1, 1, WIDTH, dtype=torch.float64).view(1, WIDTH)).requires_grad_()
    Z = Z.detach().requires_grad_()
    for joint, width in ((False, 1), (True, WIDTH)):
        ends = laid(torch.ones(matrix.rows, width, dtype=torch.float64)).requires_grad_()
        with unchanged(Z, a, ends, G):
            torch.autograd.grad(attend(matrix, Z, a, ends, joint=joint), (Z, a, ends), G)


def check_collectives(comm: Communicator) -> None:
    """Operations of a communicator: what is only read stays, also where autograd follows it."""
    size, rank = comm.size, comm.rank
    ones, mine = RowCounts([1] * size, [1] * size, 1), torch.full((2, 3), rank + 1.0)
    rows = (torch.arange(size * 3.0).view(size, 3) + rank).requires_grad_()
    total = size * (size + 1) / 2
    for operand in (mine.clone(), mine.clone().requires_grad_(), mine.clone().requires_grad_() * 1):
        for root in range(size):
            if rank == root:
                with unchanged(operand):
                    comm.broadcast(operand.clone(), root).wait()
                    comm.reduce(operand.clone(), root).wait()
                    comm.broadcast(operand, root).wait()
                buffer = operand.detach().clone()
                comm.reduce(buffer, root).wait()
                assert (buffer == total).all()
            else:
                landed = torch.zeros_like(mine)
                comm.broadcast(landed.clone(), root).wait()
                with unchanged(operand):
                    comm.reduce(operand, root).wait()
                    comm.broadcast(landed, root).wait()
                    comm.reduce(operand, root).wait()
                assert (landed == root + 1).all()
        everyone, part = torch.empty(size * 2, 3), torch.empty(1, 3)
        with unchanged(operand, rows):
            comm.all_gather(operand, everyone, [2] * size)
            comm.alltoallv(rows, torch.empty(size, 3), ones).wait()
            comm.scatter(rows, part, [1] * size)
        comm.all_reduce(operand).wait()
        assert (operand == total).all()


def check_readouts(comm: Communicator) -> None:
    """Sums, norms, losses and metrics, and their gradients of two orders."""
    rows = 4 + comm.rank
    x = torch.from_numpy(np.random.default_rng(comm.rank).standard_normal((rows, WIDTH)))
    y = torch.arange(rows) % WIDTH
    mask = torch.arange(rows) % 3 > 0
    for laid in LAYOUTS.values():
        t, G, V = (laid(x).requires_grad_() for _ in range(3))
        shared = torch.ones(WIDTH, WIDTH, dtype=torch.float64)[:, :1].expand(WIDTH, WIDTH)
        with unchanged(t, G, V, shared):
            total = all_reduced(t.t() @ G, comm)
            (dt,) = torch.autograd.grad(total, t, shared, create_graph=True)
            torch.autograd.grad(dt, G, V)
        for norm in (
            BatchNorm(WIDTH),
            LayerNorm(WIDTH),
            GraphNorm(WIDTH),
            PairNorm(),
            PairNorm(scale_individually=True),
        ):
            with unchanged(t, G, V):
                (dt,) = torch.autograd.grad(norm.double()(t, comm), t, G, create_graph=True)
                torch.autograd.grad(dt, G, V)
        targets = laid(x + 1)
        with unchanged(t, y, mask, targets):
            (counted,) = count_labelled([mask], y, comm)
            CrossEntropy().share(t, y, mask, counted).backward()
            scores = t.detach()
            accuracies(scores, y, [mask], [counted], comm)
            f1_scores(scores, y, [mask], comm)
            roc_aucs(scores, y, [mask], comm)
            regression_scores(scores, targets, [mask], comm)
            hits(scores[:, 0], scores[:, 1:], [1, 3], counted, comm)
            mean_reciprocal_rank(scores[:, 0], scores[:, 1:], counted, comm)


def check_all(comm: Communicator, each: int = 1) -> int:
    """All of it on the ranks of one communicator; returns how many matrices attended."""
    check_collectives(comm)
    check_readouts(comm)
    check_wires(comm)
    return check_rows(comm, each)


def views(comm: Communicator) -> list[str]:
    """What in-place operations say of memory that is not one stretch."""
    whole = torch.zeros(2 * comm.size, 4)
    said = []
    for view in (whole[:, ::2], whole[0, ::2], whole[:1, :1].expand(comm.size, 2), whole.t()):
        for operation in (
            comm.all_reduce,
            lambda view: comm.broadcast(view, 0),
            lambda view: comm.reduce(view, 0),
            lambda view: comm.scatter(view, view, [1] * comm.size),
        ):
            try:
                operation(view)
            except ValueError as error:
                said.append(str(error))
    return said
