"""Examples of halos: the same losses on any number of ranks, and they learn."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.halo import molecules, weather
from spgnn import connect
from spgnn.testing import run_ranks


@pytest.mark.parametrize("example", [molecules, weather], ids=["molecules", "weather"])
def test_losses_do_not_depend_on_the_number_of_ranks(example):
    (alone,) = run_ranks(lambda rank: list(example.losses(connect())), 1)
    assert alone[-1] < 0.8 * alone[0]
    for losses in run_ranks(lambda rank: list(example.losses(connect())), 3):
        np.testing.assert_allclose(losses, alone, rtol=1e-9)
