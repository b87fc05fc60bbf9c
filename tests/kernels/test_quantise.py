"""Packed rows are those of the definition, bit for bit, and unbiased."""

import pytest
import torch

from spgnn.kernels import dequantise_rows, packed_bytes, packed_size, quantise_reference
from spgnn.kernels import quantise_rows as quantise

from .conftest import DTYPES, random_dense

BITS = (16, 8, 4, 2, 1)
WIDTHS = (1, 3, 16, 17, 64, 129, 300)


def some_ids(count):
    return torch.arange(count) * 1_000_003 + 2**40


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", WIDTHS)
def test_packed_rows_are_those_of_the_definition(instruction_set, dtype, columns):
    X, ids = random_dense(70, columns, 1, dtype, padding=3), some_ids(70)
    for bits in BITS:
        for stochastic in (True, False):
            packed = quantise(X, bits, ids, -5, stochastic=stochastic)
            expected, arrived, _ = quantise_reference.quantise_rows(
                X, bits, ids, -5, stochastic=stochastic
            )
            assert packed.shape == (70, packed_bytes(columns, bits))
            assert torch.equal(packed.flatten(), expected)
            assert torch.equal(dequantise_rows(packed, bits, columns, dtype), arrived)
    each = torch.tensor(BITS, dtype=torch.uint8).repeat(14)
    packed = quantise(X, each, ids, 7)
    expected, arrived, _ = quantise_reference.quantise_rows(X, each, ids, 7)
    assert packed.shape == (packed_size(columns, each),)
    assert torch.equal(packed, expected)
    assert torch.equal(dequantise_rows(packed, each, columns, dtype), arrived)
