"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test is timed, and none draws other examples today than it did yesterday.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")
