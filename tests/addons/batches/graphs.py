"""Graphs, tables of rows, traces and checks that the tests of this room share."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import scipy.sparse as sp
import torch
from scipy import stats
from torch import Tensor

from spgnn import CSR
from spgnn.addons.batches import DiskRows
from spgnn.pattern import Pattern
from tests.matrices import random_matrix

N, F_IN, CLASSES = 60, 7, 4


def directed(seed: int = 0, *, weighted: bool = False, loops: bool = True) -> sp.csr_array:
    """N vertices, some with self-loops, some without in-edges."""
    rng = np.random.default_rng(seed)
    dense = (rng.random((N, N)) < 0.07).astype(np.float32)
    np.fill_diagonal(dense, rng.random(N) < 0.3 if loops else 0)
    dense[5] = 0
    if weighted:
        dense *= rng.random((N, N)).astype(np.float32) + 0.5
    A = sp.csr_array(dense)
    return A if weighted else A.astype(np.bool_)


def attributes(A: CSR) -> Tensor:
    """Three numbers an edge."""
    return torch.sin(torch.arange(3.0 * A.nnz)).view(-1, 3)


# Samples.


def random_graph(n: int, density: float, seed: int, *, weighted: bool = False) -> CSR:
    """With an isolated vertex, a full row and a full column."""
    A = random_matrix(n, density, seed, weighted=weighted)
    if weighted:
        A.data = np.abs(A.data).astype(np.float32) + 0.01
    return CSR.from_scipy(A)


def arrays(sample) -> list[torch.Tensor]:
    """Everything that a sample says."""
    found = [sample.nodes]
    for hop in sample.hops:
        found += [hop.indptr, hop.indices, torch.tensor(hop.sources)]
        found += [a for a in (hop.edge_ids, hop.weights) if a is not None]
    return found + ([] if sample.batch is None else [sample.batch])


def assert_equal(a, b) -> None:
    """Two samples are the same, bit by bit."""
    left, right = arrays(a), arrays(b)
    assert len(left) == len(right)
    assert all(torch.equal(x, y) for x, y in zip(left, right, strict=True))


# Exact probabilities, and whether counts agree with them.

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


# Tables of rows, and what is asked of them.


def table(rows, width, dtype, seed=0):
    torch.manual_seed(seed)
    return torch.randint(-999, 999, (rows, width)).to(dtype)


def written(path, rows, offset=0, after=b""):
    """A file of rows that begin at some byte."""
    noise = np.random.default_rng(1).bytes(offset)
    path.write_bytes(noise + rows.view(-1).view(torch.uint8).numpy().tobytes() + after)
    return path


def some_ids(rows, k, seed=2):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, rows, k))


def skewed_trace(seed, rows=200, batches=60, size=30):
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, rows + 1)
    return [rng.choice(rows, size, replace=False, p=weight / weight.sum()) for _ in range(batches)]


def batches(seed, repeats=False):
    """A skewed trace as tensors, with an empty batch in it."""
    trace = [torch.from_numpy(batch) for batch in skewed_trace(seed)]
    if repeats:
        trace = [torch.cat((batch, batch[:5], batch[2:9])) for batch in trace]
    return [*trace[:20], torch.arange(0), *trace[20:]]


def on_disk(tmp_path, x, offset=0):
    """The table in a file of that directory."""
    return DiskRows(written(tmp_path / "x", x, offset), offset, *x.shape, x.dtype)
