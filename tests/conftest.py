"""Settings all tests share."""

from __future__ import annotations

import contextlib
import signal

from hypothesis import HealthCheck, settings

# A busy machine is slow, not wrong: properties are about results, and speed is measured elsewhere.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# A shell that runs the suite in the background has it ignore Ctrl-C; programs that the tests start would inherit that.
with contextlib.suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)
