"""The probability of a visit: exact on a tree, a dense reference everywhere."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn.errors import InputError
from spgnn.sparse import CSR
from spgnn.store import POLICIES, policy_for, uses, visit_probability, visits


def csr(dense):
    return CSR.from_scipy(sp.csr_array(dense.astype(np.float32)))


def dense_reference(A, fan_outs, seeds, batch_size):
    p = np.zeros(len(A))
    p[seeds] = min(1, batch_size / len(seeds))
    for k in fan_outs:
        degree = (A != 0).sum(1)
        drawn = np.ones(len(A)) if k < 0 else np.minimum(1, k / np.maximum(degree, 1))
        p = 1 - (1 - p) * np.where(A != 0, (1 - drawn * p)[:, None], 1).prod(0)
    return p


@pytest.mark.parametrize("fan_outs", [[], [0], [2], [-1], [3, 2], [1, -1, 2]])
def test_probabilities_are_those_of_the_formula(fan_outs, monkeypatch):
    monkeypatch.setattr(visits, "_PIECE", 50)  # several pieces; one row has more nonzeros
    rng = np.random.default_rng(0)
    A = rng.random((80, 80)) < 0.05
    A[7] = rng.random(80) < 0.9
    A[3] = A[:, 5] = False
    seeds = np.flatnonzero(rng.random(80) < 0.3)
    for batch_size in (1, 10, 1000):
        expected = dense_reference(A, fan_outs, seeds, batch_size)
        mask = torch.zeros(80, dtype=torch.bool)
        mask[seeds] = True
        for given in (torch.from_numpy(seeds), mask):
            found = visit_probability(csr(A), fan_outs, given, batch_size)
            assert found.dtype == torch.float32
            assert np.allclose(found, expected, rtol=0, atol=1e-6)
    assert np.array_equal(uses(csr(A)), A.sum(0))


def test_on_a_tree_it_is_the_share_of_all_draws():
    # Vertex 0 has children 1, 2, 3; vertex 1 has 4, 5, 6; vertex 2 has 7, 8.
    children = {0: [1, 2, 3], 1: [4, 5, 6], 2: [7, 8]}
    A = np.zeros((9, 9))
    for parent, these in children.items():
        A[parent, these] = 1
    draws = 0
    seen = np.zeros(9)
    pairs = [list(itertools.combinations(range(3), 2))] * 3
    # Vertex 0 draws two children, then two again, as does vertex 1 if it was found at first.
    for first, second, third in itertools.product(*pairs):
        batch = {0, *(children[0][i] for i in first)}
        batch |= {children[1][i] for i in third} if 1 in batch else set()
        batch |= set(children[2]) if 2 in batch else set()
        batch |= {children[0][i] for i in second}
        seen[list(batch)] += 1
        draws += 1
    found = visit_probability(csr(A), [2, 2], torch.tensor([0]), 1)
    assert np.allclose(found, seen / draws, atol=1e-6)


def test_what_cannot_be_analysed():
    A = csr(np.eye(4))
    with pytest.raises(InputError, match=r"seeds must be in \[0, 4\), got 1 to 4"):
        visit_probability(A, [2], torch.tensor([1, 4]), 1)
    with pytest.raises(InputError, match=r"a mask of seeds must be bool \[4\]"):
        visit_probability(A, [2], torch.ones(3, dtype=torch.bool), 1)
    with pytest.raises(InputError, match=r"num_neighbors\[1\] must be an integer of at least -1"):
        visit_probability(A, [2, -2], torch.tensor([1]), 1)
    with pytest.raises(InputError, match="batch_size must be an integer of at least 1"):
        visit_probability(A, [2], torch.tensor([1]), 0)


def test_rules_get_the_scores_that_suit_them():
    A, seeds = csr(np.random.default_rng(0).random((50, 50)) < 0.1), torch.arange(0, 50, 3)
    visited = visit_probability(A, [3, 2], seeds, 4)
    expected = {"degree": uses(A), "vip": visited, "belady": visited}
    for name in POLICIES:
        policy = policy_for(name, A, [3, 2], seeds, 4)
        scores = expected.get(name)
        assert policy.name == name
        assert policy.scores is None if scores is None else torch.equal(policy.scores, scores)
    with pytest.raises(InputError, match="cache policy random: choose one of"):
        policy_for("random", A, [3, 2], seeds, 4)
