"""What ranks do not agree on is refused on all of them, by name, before anything is exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from spgnn import CSR, DistMatrix, Halo, InputError, Mesh, RowLayout
from spgnn.autograd import FIRST_COMPARED
from spgnn.comm import connect
from spgnn.comm.traffic import RowCounts
from spgnn.testing import run_ranks
from tests import unchanged
from tests.matrices import block_row, random_matrix

N, P = 12, 3


def built(rank: int, **options: Any) -> DistMatrix:
    """An even matrix; `weighted` and `layout` may differ between ranks too."""
    comm = connect()
    layout = options.pop("layout", RowLayout.even(N, P))
    weighted = options.pop("weighted", True)
    first, last = RowLayout.even(N, P).range(rank)
    block = block_row(random_matrix(N, 0.4, 3, weighted=weighted), first, last)
    block = options.pop("block", None) or block
    return DistMatrix.build(block, layout, Mesh.grid(comm), **options)


def lines(rank: int, cases: list[Any]) -> list[str]:
    """What each case is refused with."""
    found = []
    for case in cases:
        with pytest.raises(InputError) as refused:
            case(rank)
        found.append(str(refused.value))
    return found


def odd(rank: int, usual: Any, other: Any) -> Any:
    return other if rank == 1 else usual


WRONG_BLOCK = CSR.of(torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), (2, N))
EVEN, OTHER = RowLayout.even(N, P), RowLayout(np.array([0, 4, 9, N]))
# Options of ranks 0 and 2, and of rank 1.
WRONG_BUILDS: dict[str, dict[str, tuple[Any, Any]]] = {
    "cover of DistMatrix.build: 'column' on ranks 0, 2; 'row' on rank 1": {
        "cover": ("column", "row")
    },
    "exchange of DistMatrix.build: 'sparsity-aware' on ranks 0, 2; 'oblivious'": {
        "exchange": ("sparsity-aware", "oblivious")
    },
    "layout of DistMatrix.build: int64 [4] #": {"layout": (EVEN, OTHER)},
    "values of DistMatrix.build: torch.float64 on ranks 0, 2; None on rank 1": {
        "weighted": (True, False)
    },
    "column_scale of DistMatrix.build: None on ranks 0, 2; torch.float32": {
        "column_scale": (None, torch.ones(4))
    },
    "this rank's rows are (2, 12), the layout asks for (4, 12)": {
        "block": (None, WRONG_BLOCK),
        "weighted": (False, False),
    },
    "choose one of column, row, minimum; did you mean 'column'?": {"cover": ("colunm",) * 2},
    "choose one of sparsity-aware, oblivious; did you mean 'oblivious'?": {
        "exchange": ("oblivius",) * 2
    },
}


def test_matrices_are_built_of_the_same_facts():
    cases = [
        lambda rank, how=how: built(rank, **{name: odd(rank, *two) for name, two in how.items()})
        for how in WRONG_BUILDS.values()
    ]
    for found in run_ranks(lines, P, cases):
        for said, wanted in zip(found, WRONG_BUILDS, strict=True):
            assert wanted in said


def operand(width: int = 2, dtype: torch.dtype = torch.float64, grad: bool = False) -> torch.Tensor:
    return torch.ones(N // P, width, dtype=dtype, requires_grad=grad)


def multiply_differently(rank: int) -> list[str]:
    A = built(rank)
    for _ in range(FIRST_COMPARED):
        A @ operand()
    return lines(
        rank,
        [
            lambda rank: A @ operand(width=odd(rank, 3, 4)),
            lambda rank: A @ operand(3, odd(rank, torch.float64, torch.float32)),
            lambda rank: A @ operand(5, grad=rank == 1),
            lambda rank: A.halo(operand(5, grad=rank == 1)),
            lambda rank: A.adjoint(operand(width=odd(rank, 6, 7))),
        ],
    )


def test_operands_have_the_same_width_dtype_and_gradient():
    wanted = (
        "width of the operand of a product: 3 on ranks 0, 2; 4 on rank 1",
        "dtype of the operand of a product: torch.float64 on ranks 0, 2; torch.float32 on rank 1",
        "requires_grad of the operand of a product: False on ranks 0, 2; True on rank 1",
        "requires_grad of the operand of a product: False on ranks 0, 2; True on rank 1",
        "width of the operand of a product: 6 on ranks 0, 2; 7 on rank 1",
    )
    for found in run_ranks(multiply_differently, P):
        assert found == [f"ranks do not agree on {line}" for line in wanted]


def messages_of_products(rank: int) -> tuple[int, int]:
    """Calls that one product makes among the first ones, and later."""
    comm, A = connect(), built(rank)
    counts = []
    for _ in range(FIRST_COMPARED + 2):
        before = sum(comm.job.begun.values())
        A @ operand()
        counts.append(sum(comm.job.begun.values()) - before)
    return counts[0], counts[-1]


def test_only_the_first_products_cost_a_message():
    for early, late in run_ranks(messages_of_products, P):
        assert (early, late) == (2, 1)


SLOWLY = [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (("gloo", 4, 5), ("shm", 4, 5), ("shm", 2, 2))
]


@pytest.mark.parametrize(("backend", "ranks", "each"), [("gloo", 3, 1), ("shm", 1, 1), *SLOWLY])
def test_operands_stay_as_they_are(backend, ranks, each):
    """Every scheme, cover, schedule, halo, attention, norm, loss and metric; two orders."""
    counts = run_ranks(lambda rank: unchanged.check_all(connect(), each), ranks, backend=backend)
    assert min(counts) >= 7 * each


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_buffers_that_are_not_one_stretch_of_memory_are_refused(backend):
    """A transport would write between them, or beyond them."""
    for ranks in (1, 2):
        for said in run_ranks(lambda rank: unchanged.views(connect()), ranks, backend=backend):
            assert said == ["communication buffers must be contiguous"] * 16


def test_operands_without_data():
    """On the device meta; of some ranks alone, too."""
    calls = [
        lambda A, X: A @ X,
        lambda A, X: A.halo(X),
        lambda A, X: A.halo_sum(torch.empty(A.own_rows + A.volume.receive, 2, device=X.device)),
        lambda A, X: A.adjoint(X),
    ]

    def cases(rank: int) -> list[str]:
        A = built(rank)
        everywhere = torch.empty(A.own_rows, 2, dtype=torch.float64, device="meta")
        some = torch.empty(A.own_rows, 2, dtype=torch.float64, device=odd(rank, "cpu", "meta"))
        return lines(rank, [lambda _, c=c, X=X: c(A, X) for X in (everywhere, some) for c in calls])

    for said in run_ranks(cases, P):
        assert all("has no data" in line for line in said[: len(calls)])
        assert all("'meta' on rank 1" in line for line in said[len(calls) :])


def as_memory_has_them(width: int, rows: int) -> list[torch.Tensor]:
    """Operands [rows, width] that torch calls contiguous, or whose memory it has yet to negate."""
    plain = torch.arange(1.0, rows * width + 1, dtype=torch.float64).reshape(rows, width)
    return [
        plain.T.clone().T,
        torch._neg_view(plain),
        plain.to(torch.complex128).mul(1j).conj().imag,
        plain[:1].expand(rows, width),
        plain[:, :1].expand(rows, width),
        torch.cat((plain, plain))[::2],
        torch.from_numpy(plain.numpy()[:, 0][:, None]).expand(rows, width),
        plain.as_strided((rows, width), (1 if width == 1 else width, 0 if width == 1 else 1)),
    ]


def check_memory(rank: int) -> None:
    comm = connect()
    matrix = built(rank)
    ids = np.arange(4 * rank, 4 * rank + 4)
    halo = Halo.build(torch.from_numpy(np.stack(((ids + 4) % N, ids))), RowLayout.even(N, P), comm)
    one = RowCounts([1] * P, [1] * P, 1)
    for width in (1, 3):
        for operand in as_memory_has_them(width, 4):
            plain = operand.resolve_neg().clone(memory_format=torch.contiguous_format)
            for exchange in (halo, matrix.__matmul__, matrix.T.__matmul__, matrix.halo):
                outs = []
                for each in (operand, plain):
                    learnt = each.detach().requires_grad_()
                    out = exchange(learnt)
                    # A gradient of such a form as well.
                    (gradient,) = torch.autograd.grad(out, learnt, torch._neg_view(out.detach()))
                    outs.append((out.detach(), gradient))
                for ours, expected in zip(*outs, strict=True):
                    assert torch.equal(ours, expected)
        sent = torch._neg_view(torch.full((P, width), -1.0 - rank))
        received = torch._neg_view(torch.zeros(P, width))
        comm.alltoallv(sent, received, one).wait()
        assert received[:, 0].tolist() == [1.0, 2.0, 3.0]
        comm.all_reduce(received).wait()
        assert received[:, 0].tolist() == [3.0, 6.0, 9.0]
    with pytest.raises(InputError, match="has no data"):
        comm.all_reduce(torch.empty(2, device="meta"))


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_operands_of_any_strides_and_signs(backend):
    run_ranks(check_memory, P, backend=backend)
