"""Random numbers that are functions of a vertex."""

from __future__ import annotations

import numpy as np
import pytest

from spgnn.hashing import uniform, uniform_rows


@pytest.mark.parametrize("threads", [1, 3])
def test_many_columns_at_once(threads):
    ids = np.random.default_rng(0).integers(0, 2**40, 9001)
    columns = [("a", 0), ("a", 3), ("b", 7)]
    expected = [uniform(ids, 5, purpose, column + 1)[:, column] for purpose, column in columns]
    found = uniform_rows(ids, 5, columns, threads)
    np.testing.assert_array_equal(found, np.stack(expected, axis=1).astype(np.float32))
    assert uniform_rows(ids[:0], 5, columns, threads).shape == (0, 3)
