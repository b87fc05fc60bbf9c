import numpy as np
import pytest
import torch

from spgnn import CSR
from spgnn.errors import InputError
from spgnn.kernels import native, ordering, reorder, spmm

from .conftest import DTYPES, SUM_DTYPE, random_block, random_dense


@pytest.fixture
def hidden_communities(monkeypatch) -> CSR:
    """40 communities of 50 vertices, numbered at random, with nearly all edges inside."""
    monkeypatch.setattr(ordering, "WINDOW", 1000)
    monkeypatch.setattr(ordering, "LARGEST_CLUSTER", 100)
    rng = np.random.default_rng(0)
    n, degree = 2000, 12
    community = rng.permutation(n) // 50
    members = np.argsort(community, kind="stable").reshape(40, 50)
    inside = np.take_along_axis(
        members[community], np.argsort(rng.random((n, 50)), axis=1)[:, :degree], axis=1
    )
    indptr = torch.arange(0, n * degree + 1, degree)
    indices = torch.from_numpy(np.sort(inside, axis=1).ravel()).int()
    return CSR.of(indptr, indices, (n, n))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reordering_changes_no_bit(hidden_communities, dtype):
    generator = torch.Generator().manual_seed(1)
    B = hidden_communities
    sizes, wide = (B.nnz, B.shape[0], B.shape[1]), SUM_DTYPE[dtype]
    A = CSR(B.pattern, *(torch.rand(s, generator=generator).to(wide) for s in sizes))
    X = random_dense(B.shape[1], 33, 2, dtype)
    before = spmm(A, X)
    found = reorder(A)
    assert found.kept
    assert found.far_after < 0.5 * found.far_before
    assert torch.equal(spmm(A, X), before)
    out = torch.ones_like(before)
    expected = spmm(A.to("cpu"), X, out=torch.ones_like(before), accumulate=True)
    assert torch.equal(spmm(A, X, out=out, accumulate=True), expected)


def test_order_is_a_permutation(hidden_communities):
    order = native.cluster_order(hidden_communities, 100, 4)
    assert torch.equal(order.long().sort().values, torch.arange(hidden_communities.shape[0]))


def test_far_share_counts_columns_unseen_for_a_window():
    A = CSR.of(torch.tensor([0, 2, 4, 6]), torch.tensor([0, 1, 0, 1, 1, 2]).int(), (3, 3))
    # Uses at times 0..5: columns 0, 1 and 2 are new; all others recur within 2.
    assert native.far_share(A, None, 2) == pytest.approx(3 / 6)
    assert native.far_share(A, None, 1) == pytest.approx(5 / 6)


def test_a_good_order_is_left_alone():
    n = 3000
    A = CSR.of(torch.arange(0, 3 * n + 1, 3), (torch.arange(3 * n) // 3).int(), (n, n))
    found = reorder(A)
    assert not found.kept
    assert found.far_after == found.far_before


def test_long_and_empty_rows_survive(monkeypatch):
    monkeypatch.setattr(ordering, "WORTH_A_LOOK", 0.0)
    monkeypatch.setattr(ordering, "WORTH_KEEPING", 2.0)
    lengths = np.random.default_rng(1).integers(0, 9, 3000)
    lengths[[3, 700, 2999]] = 3000
    A = random_block(3000, 3000, lengths, 2, parts=("values",))
    X = random_dense(3000, 20, 3)
    before = spmm(A, X)
    assert reorder(A).kept
    assert torch.equal(spmm(A, X), before)


def test_bad_input_is_named():
    with pytest.raises(InputError, match="square"):
        reorder(random_block(3, 4, [1, 1, 1], 0))
