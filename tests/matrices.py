"""Matrices, layouts of rows, and memory behind them that the distributed tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn import CSR, RowLayout

# Different memory behind the same numbers [n, f].
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda t: t.clone(),
    "transposed": lambda t: t.t().contiguous().t(),
    "every other column": lambda t: t.repeat_interleave(2, 1)[:, ::2],
    "every other row": lambda t: t.repeat_interleave(2, 0)[::2],
    "rows of a longer one": lambda t: torch.cat((t, t, t))[len(t) : 2 * len(t)],
}


@contextmanager
def unchanged(*tensors: Tensor) -> Iterator[None]:
    """All memory behind these tensors holds afterwards what it held before."""

    def memory() -> list[Tensor]:
        whole = (t.detach().untyped_storage() for t in tensors)
        return [torch.empty(0, dtype=torch.uint8).set_(each).clone() for each in whole]

    before, versions = memory(), [t._version for t in tensors]
    yield
    for old, new in zip(before, memory(), strict=True):
        assert torch.equal(old, new)
    assert versions == [t._version for t in tensors]


def random_matrix(n: int, density: float, seed: int, *, weighted: bool) -> sp.csr_array:
    """A directed n × n matrix with an isolated vertex, a full row and a full column."""
    rng = np.random.default_rng(seed)
    dense = (rng.random((n, n)) < density).astype(np.float64)
    if n > 3:
        dense[n // 2, :] = 1
        dense[:, n // 3] = 1
        dense[n - 2, :] = 0
        dense[:, n - 2] = 0
    if weighted:
        dense *= rng.standard_normal((n, n))
    A = sp.csr_array(dense)
    return A if weighted else A.astype(np.bool_)


def uneven_layout(n: int, parts: int, seed: int) -> RowLayout:
    """Random cuts, so that sizes differ and some parts are empty."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, n + 1, parts - 1))
    return RowLayout(np.concatenate(([0], cuts, [n])))


def block_row(A: sp.csr_array, first: int, last: int) -> CSR:
    """Rows [first, last) as a CSR block, float64 if weighted."""
    return CSR.from_scipy(A[first:last])
