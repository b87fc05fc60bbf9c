"""The distributed product against a dense float64 reference, whole arrays, on real ranks."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from spgnn import DistMatrix, InputError, Mesh, RowLayout
from spgnn.comm import connect
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix
from tests.products import cases, check, check_algorithms, check_all, check_nodes, check_random


@pytest.mark.parametrize(("ranks", "every"), [(1, 1), (2, 2), (3, 2), (4, 3), (6, 5), (8, 7)])
def test_products_adjoints_and_bytes(ranks, every):
    counts = run_ranks(lambda rank: check_all(connect(), every=every), ranks)
    assert min(counts) >= 32


@pytest.mark.parametrize("c", [1, 2, 4, 8, 16])
def test_products_on_sixteen_ranks(c):
    counts = run_ranks(lambda rank: check_all(connect(), [c], every=5), 16)
    assert min(counts) >= 12


SHARED = {
    2: [("feature", 2)],
    3: [("feature", 3), ("2d", 1), ("3d", 1)],
    6: [("feature", 2), ("feature", 6), ("2d", 1), ("3d", 3)],
    8: [("feature", 4), ("3d", 1), ("3d", 4)],
    16: [("feature", 4), ("2d", 1), ("3d", 1)],
}


@pytest.mark.parametrize(("ranks", "every"), [(2, 5), (3, 11), (6, 13), (8, 13), (16, 23)])
def test_products_of_shares_of_the_columns(ranks, every):
    """Feature-parallel, 2D and 3D: everything that 1D has to fulfil, bytes to the last one."""
    counts = run_ranks(lambda rank: check_algorithms(connect(), SHARED[ranks], every), ranks)
    assert min(counts) >= 2 * len(SHARED[ranks])


def two_levels(rank: int, sizes: list[int], every: int) -> int:
    comm, checked = connect(), 0
    for size in sizes:
        comm.ledger.node_size = size
        checked += check_nodes(comm, size, every)
        if size == 4:
            checked += check_nodes(comm, size, 2 * every, c=2)
    return checked


@pytest.mark.parametrize(
    ("ranks", "sizes", "every"),
    [(4, [2], 5), (6, [2, 3], 9), (8, [4], 9), (12, [3], 17), (16, [4], 17)],
)
def test_products_in_two_levels(ranks, sizes, every):
    """Hierarchies of nodes: the same oracles, and the bytes of each level."""
    assert min(run_ranks(two_levels, ranks, sizes, every)) >= 2


def levels_of_broadcasts(rank: int) -> int:
    comm, checked = connect(), 0
    comm.ledger.node_size = 2
    for case in islice((c for c in cases(4) if c.exchange == "oblivious"), 0, None, 5):
        for c in (1, 2):
            check(case, comm, "1.5d", c)
            checked += 1
    return checked


def test_bytes_of_each_level_of_other_schemes():
    assert min(run_ranks(levels_of_broadcasts, 4)) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "size"), [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (12, 3), (12, 4), (16, 4)]
)
def test_all_products_in_two_levels(ranks, size):
    assert min(run_ranks(two_levels, ranks, [size], 1)) >= 24


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 16])
def test_all_products_adjoints_and_bytes(ranks):
    run_ranks(lambda rank: check_all(connect()), ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "every"), [(2, 1), (6, 1), (8, 1), (12, 2), (16, 3), (64, 13)])
def test_all_products_of_shares_of_the_columns(ranks, every):
    divisors = [c for c in range(1, ranks + 1) if ranks % c == 0]
    algorithms = [(algo, c) for algo in ("feature", "2d", "3d") for c in divisors]
    run_ranks(lambda rank: check_algorithms(connect(), algorithms, every), ranks)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(1, 13))
def test_random_products(ranks):
    """Twelve times 850 cases that nobody chose."""
    seeds = range(850 * ranks, 850 * (ranks + 1))
    assert min(run_ranks(lambda rank: check_random(connect(), seeds), ranks)) == 850


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "every"), [(64, 7), (256, 21)])
def test_products_on_many_ranks(ranks, every):
    run_ranks(lambda rank: check_all(connect(), [1, 4], every), ranks)


def test_wrong_shapes_are_refused_before_any_exchange():
    mesh = Mesh.grid(connect())
    A = random_matrix(6, 0.5, 0, weighted=False)
    with pytest.raises(InputError, match=r"rows are \(3, 6\), the layout asks for \(6, 6\)"):
        DistMatrix.build(block_row(A, 0, 3), RowLayout.even(6, 1), mesh)
    with pytest.raises(InputError, match="layout has 2 parts"):
        DistMatrix.build(block_row(A, 0, 6), RowLayout.even(6, 2), mesh)
    matrix = DistMatrix.build(block_row(A, 0, 6), RowLayout.even(6, 1), mesh)
    with pytest.raises(InputError, match=r"holds 6 rows, the operand has shape \[5, 2\]"):
        matrix.forward(torch.zeros(5, 2))
