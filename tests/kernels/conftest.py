"""Random blocks and tensors for the kernel tests."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from spgnn import _native
from spgnn.kernels import extremes
from spgnn.pattern import Pattern
from spgnn.sparse import CSR, SUM_DTYPE

from . import oracle

DTYPES = list(SUM_DTYPE)
PARTS = [(), ("values",), ("row_scale", "col_scale"), ("values", "row_scale", "col_scale")]
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-14, torch.bfloat16: 4e-3}
# Of a softmax's sums, and of what its result is rounded to in the end.
EPSILON = {torch.float32: 6e-8, torch.float64: 1.1e-16, torch.bfloat16: 6e-8}
LAST = {torch.float32: 0, torch.float64: 0, torch.bfloat16: 4e-3}


@pytest.fixture(params=_native.instruction_sets())
def instruction_set(request):
    """Run a test on every instruction set this machine has."""
    before = _native.instruction_set()
    _native.use_instruction_set(request.param)
    yield request.param
    _native.use_instruction_set(before)


def setter(get, set_):
    """A fixture: a function that sets a number, which is what it was again after the test."""

    @pytest.fixture
    def undone():
        before = get()
        yield set_
        set_(before)

    return undone


# Bytes of X up to which it is read without fetching ahead, and beyond which it is read in blocks.
use_near_bytes = setter(_native.near_bytes, _native.use_near_bytes)
use_last_cache_bytes = setter(_native.last_cache_bytes, _native.use_last_cache_bytes)
threads = setter(torch.get_num_threads, torch.set_num_threads)


def work_by(monkeypatch, implementation):
    """Have operators on CPU tensors done by other functions than the CPU's."""
    for name, module in list(sys.modules.items()):
        if name.startswith("spgnn.kernels.") and hasattr(module, "kernels_for"):
            monkeypatch.setattr(module, "kernels_for", lambda _: implementation)
    monkeypatch.setattr(extremes, "adds_in_order", lambda _: False)


def random_block(
    rows, cols, lengths, seed, *, dtype=torch.float32, parts=(), index=torch.int32
) -> CSR:
    """A block with the given row lengths; `parts` names its values and scalings."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(np.asarray(lengths), cols)
    indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    columns = [np.sort(rng.choice(cols, n, replace=False)) for n in lengths if n]
    indices = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
    sizes = {"values": len(indices), "row_scale": rows, "col_scale": cols}
    arrays = {
        name: torch.from_numpy(rng.standard_normal(sizes[name])).to(SUM_DTYPE[dtype])
        for name in sizes  # in an order that parts, which may be a set, do not have
        if name in parts
    }
    # Wide indices where narrow ones would do, to test kernels for them.
    pattern = Pattern.trusted(
        torch.from_numpy(indptr), torch.from_numpy(indices).to(index), (rows, cols)
    )
    return CSR(pattern, **arrays)


def random_dense(rows, columns, seed, dtype=torch.float32, padding=0) -> torch.Tensor:
    """Normal numbers [rows, columns] with a row stride of columns + padding."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.randn(rows, columns + padding, generator=generator, dtype=torch.float64)
    return wide.to(dtype)[:, :columns]


def random_heads(rows, heads, columns, seed, dtype=torch.float32, padding=0) -> torch.Tensor:
    """Normal numbers [rows, heads, columns], with gaps of `padding` behind heads and rows."""
    wide = random_dense(rows, (heads + padding) * (columns + padding), seed, dtype)
    return wide.view(rows, heads + padding, columns + padding)[:, :heads, :columns]


def assert_close(actual, expected, magnitude, dtype, slack=1) -> None:
    """Whole arrays agree to the rounding of the dtype; `magnitude` is the sum of absolute terms."""
    assert (actual.dtype, actual.shape) == (dtype, expected.shape)
    error = (actual.double() - expected).abs()
    assert bool((error <= slack * ROUNDING[dtype] * magnitude + 1e-30).all()), float(error.max())


def assert_product(Y, A, X, added=0.0) -> None:
    expected, size = oracle.spmm(A, X), oracle.spmm(oracle.absolute(A), X.abs())
    assert_close(Y, expected + added, size + abs(added), X.dtype)


def assert_sddmm(products, A, G, X) -> None:
    size = oracle.sddmm(oracle.absolute(A), G.abs(), X.abs())
    assert_close(products, oracle.sddmm(A, G, X), size, SUM_DTYPE[X.dtype])


def assert_softmax(weights, pattern, scores, terms=60) -> None:
    assert (weights.dtype, weights.shape) == (scores.dtype, scores.shape)
    expected = oracle.edge_softmax(pattern, scores)
    # The distance to the largest score is rounded before the exponential is taken.
    distance = -expected.clamp_min(1e-300).log()
    allowed = EPSILON[scores.dtype] * (terms + 4 * distance) + LAST[scores.dtype]
    assert bool(((weights.double() - expected).abs() <= allowed * expected + 1e-37).all())
