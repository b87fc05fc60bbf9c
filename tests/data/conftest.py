from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test here is timed: a loaded machine must not fail one.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
