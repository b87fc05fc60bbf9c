"""Exact probabilities, and whether counts agree with them."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import torch
from scipy import stats

from spgnn.pattern import Pattern

LEAST = 1e-3  # a p-value


def small_graph(n: int = 12, seed: int = 3) -> Pattern:
    """Rows of 2 to n − 1 columns."""
    rng = np.random.default_rng(seed)
    dense = rng.random((n, n)) < 0.45
    np.fill_diagonal(dense, False)
    dense[:, 0] = True
    dense[0, 1:] = True
    dense[0, 0] = False
    indptr = torch.from_numpy(np.concatenate(([0], np.cumsum(dense.sum(axis=1)))))
    return Pattern(indptr, torch.from_numpy(np.nonzero(dense)[1]), (n, n))


def agree(counts, chances) -> None:
    """A chi-square test of counts against probabilities."""
    counts, chances = np.asarray(counts, float), np.asarray(chances, float)
    assert abs(chances.sum() - 1) < 1e-9
    assert stats.chisquare(counts, chances * counts.sum()).pvalue > LEAST


def successive(weights, k: int) -> dict[tuple[int, ...], float]:
    """Chances of the sets of k that are drawn one by one, in proportion to what is left."""
    weights = np.asarray(weights, float) / np.sum(weights)
    chances: dict[tuple[int, ...], float] = {}
    for order in permutations(range(len(weights)), k):
        left, chance = 1.0, 1.0
        for v in order:
            chance *= weights[v] / left
            left -= weights[v]
        key = tuple(sorted(order))
        chances[key] = chances.get(key, 0) + chance
    return chances


def unbiased(estimates, exact, weights=None) -> None:
    """The mean is right within its error; heavy tails (hidden entries) are allowed more."""
    error = estimates.std() / np.sqrt(len(estimates))
    bound = 4 if weights is None or max(weights) < 1e3 else 6
    assert abs(estimates.mean() - exact) < bound * error + 1e-6 * abs(exact)
