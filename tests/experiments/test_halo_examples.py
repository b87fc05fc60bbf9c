"""Examples of halos: the same losses on any number of ranks, and they learn."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.halo import molecules, weather
from spgnn import connect
from spgnn.testing import run_ranks


@pytest.mark.parametrize("example", [molecules, weather], ids=["molecules", "weather"])
@pytest.mark.parametrize(
    "ranks", [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4))]
)
def test_losses_do_not_depend_on_the_number_of_ranks(example, ranks):
    (alone,) = run_ranks(lambda rank: list(example.losses(connect())), 1)
    assert alone[-1] < 0.8 * alone[0]
    for found in run_ranks(lambda rank: list(example.losses(connect())), ranks):
        np.testing.assert_allclose(found, alone, rtol=1e-9)
