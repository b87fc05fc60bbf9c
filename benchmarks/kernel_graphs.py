"""The graphs of the kernel benchmark, symmetrised and with self-loops, as SciPy matrices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

REAL = ("ribosome-4v5a", "reddit-sayit", "cnr-2000-llp", "uk-2007-05-100k", "wave")
GENERATED = ("rmat-20-8", "sbm-20-16")


def names() -> Iterator[str]:
    """Those that can be had: the real ones need the environment variable SPGNN_DATA."""
    folder = os.environ.get("SPGNN_DATA")
    if folder:
        yield from (name for name in REAL if (Path(folder) / f"{name}.npz").exists())
    yield from GENERATED


def load(name: str) -> sp.csr_array:
    """A symmetric 0/1 matrix with a full diagonal, boolean, canonical."""
    if name == "rmat-20-8":
        n = 2**20
        source, target = rmat(20, 8 * n, seed=1)
    elif name == "sbm-20-16":
        n = 2**20
        source, target = block_model(n, 16 * n, blocks=256, inside=0.8, seed=1)
    elif name == "half-row":
        return half_row(2**19)
    else:
        with np.load(Path(os.environ["SPGNN_DATA"]) / f"{name}.npz", allow_pickle=False) as file:
            n = int(file["shape"][0])
            source = np.repeat(np.arange(n), np.diff(file["indptr"]))
            target = file["indices"]
    loops = np.arange(n)
    rows = np.concatenate((source, target, loops))
    cols = np.concatenate((target, source, loops))
    return sp.coo_array((np.ones(len(rows), dtype=bool), (rows, cols)), shape=(n, n)).tocsr()


def half_row(n: int) -> sp.csr_array:
    """One full row, which is half of all nonzeros; each other row has one, at random."""
    indices = np.concatenate((np.arange(n), np.random.default_rng(1).integers(0, n, n - 1)))
    indptr = np.concatenate(([0], np.arange(n, 2 * n)))
    return sp.csr_array((np.ones(2 * n - 1, bool), indices.astype(np.int32), indptr), shape=(n, n))


def rmat(scale: int, edges: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """R-MAT with the parameters of Graph500 and its random numbering of the vertices."""
    rng = np.random.default_rng(seed)
    source, target = np.zeros(edges, np.int64), np.zeros(edges, np.int64)
    for _ in range(scale):
        quadrant = np.searchsorted([0.57, 0.76, 0.95], rng.random(edges, dtype=np.float32))
        source = 2 * source + (quadrant >= 2)
        target = 2 * target + (quadrant % 2)
    numbering = rng.permutation(2**scale)
    return numbering[source], numbering[target]


def block_model(
    n: int, edges: int, *, blocks: int, inside: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Equal blocks, a share `inside` of all edges within them, vertices numbered at random."""
    rng = np.random.default_rng(seed)
    source = rng.integers(0, n, edges)
    size = n // blocks
    near = source // size * size + rng.integers(0, size, edges)
    target = np.where(rng.random(edges) < inside, near, rng.integers(0, n, edges))
    numbering = rng.permutation(n)
    return numbering[source], numbering[target]
