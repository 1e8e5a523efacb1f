"""Settings all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is slow, not wrong: properties are about results, and speed is measured elsewhere.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
