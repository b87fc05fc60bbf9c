"""What holds for every test."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# No test is timed, and none draws other examples today than it did yesterday.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")
# Among what it draws are constants of whatever modules of ours are imported by then: those depend
# on which tests this process has run before. There is no setting for it.
providers.is_local_module_file = lambda file: False  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draws without a seed of their own do not depend on the tests that this process ran before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (libraries draw from it)
    torch.default_generator.manual_seed(0)
