"""The bytes of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn.parts.table import as_bytes


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bfloat16])
def test_bytes_of_one_number_of_any_stride(dtype):
    """A matrix of which one nonzero is in a part."""
    one = torch.tensor(3, dtype=dtype).expand(1)
    assert one.stride() == (0,)
    assert np.array_equal(as_bytes(one), as_bytes(torch.tensor([3], dtype=dtype)))
    assert not len(as_bytes(torch.empty(0, dtype=dtype)))
