"""The graphs of the kernel benchmark, symmetrised and with self-loops, as SciPy matrices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from spgnn.data.generators import block_model, rmat

REAL = ("ribosome-4v5a", "reddit-sayit", "cnr-2000-llp", "uk-2007-05-100k", "wave")
GENERATED = ("rmat-20-8", "sbm-20-16")
HALF_ROWS = ("half-row", "half-row-million")
CACHED = 2**22  # numbers in an X that the third-level cache holds (16 MiB of float32)


def names() -> Iterator[str]:
    """Those that can be had: the real ones need the environment variable SPGNN_DATA."""
    folder = os.environ.get("SPGNN_DATA")
    if folder:
        yield from (name for name in REAL if (Path(folder) / f"{name}.npz").exists())
    yield from (*GENERATED, *HALF_ROWS)


def load(name: str, width: int) -> sp.csr_array:
    """A symmetric 0/1 matrix with a full diagonal, or `half_row`: boolean, canonical.

    ``rmat-S-D`` is an R-MAT graph of 2^S vertices and average degree D. Only "half-row" depends on
    the width of X: it has as many columns as let X stay in cache.
    """
    if name == "half-row":
        return half_row(CACHED // width // 16 * 16)
    if name == "half-row-million":
        return half_row(2**20)
    if made := re.fullmatch(r"rmat-(\d+)-(\d+)", name):
        matrix = rmat(int(made[1]), int(made[2]), seed=1).adjacency.to_scipy()
    elif name == "sbm-20-16":
        matrix = block_model(
            2**20, 2**25, classes=256, homophily=0.8, features=0, seed=1
        ).adjacency.to_scipy()
    else:
        with np.load(Path(os.environ["SPGNN_DATA"]) / f"{name}.npz", allow_pickle=False) as file:
            arrays = np.ones(len(file["indices"]), bool), file["indices"], file["indptr"]
            matrix = sp.csr_array(arrays, shape=tuple(file["shape"]))
    pattern = matrix.astype(bool)
    return sp.csr_array(pattern + pattern.T + sp.eye_array(matrix.shape[0], dtype=bool))


def half_row(n: int) -> sp.csr_array:
    """A block [n / 16 + 1, n]: one full row, which is half of all nonzeros; 16 in each other row.

    The other rows are of a usual length, so that writing Y costs little beside reading X. What is
    asked is whether the long row is shared out. Where X stays in cache ("half-row") nothing else
    limits the second thread. A long row of a million nonzeros has a million columns, whose X comes
    out of memory ("half-row-million"): there the gain can only be that of reading X.
    """
    rng = np.random.default_rng(1)
    others = np.sort(rng.integers(0, n // 16, (n // 16, 16)) + n // 16 * np.arange(16), axis=1)
    indices = np.concatenate((np.arange(n), others.ravel()))
    indptr = np.concatenate(([0], np.arange(n, 2 * n + 1, 16)))
    arrays = np.ones(2 * n, bool), indices.astype(np.int32), indptr
    return sp.csr_array(arrays, shape=(n // 16 + 1, n))
