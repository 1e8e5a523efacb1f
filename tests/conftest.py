"""Settings all tests share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

# A busy machine is slow, not wrong: properties are about results, and speed is measured elsewhere.
# A change must not fail because of an example that it has nothing to do with: every run tries the same ones, and
# ``OPENCLAW_TEST_EXPLORE=1`` tries others.
settings.register_profile(
    "steady",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("OPENCLAW_TEST_EXPLORE"),
)
settings.load_profile("steady")

# A shell that runs the suite in the background has it ignore Ctrl-C; programs that the tests start would inherit that.
with contextlib.suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# `openclaw update` looks whether a checkout is behind. In a test git asks no other machine for that.
os.environ["GIT_ALLOW_PROTOCOL"] = "file"

_WHOLE_GATEWAY = {"browser", "flows", "gateway", "interop"}
"""Folders whose tests have a whole Gateway in their own event loop."""


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A Gateway runs on uvloop in its own process; in a test's process it does so, too."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return {"uvloop": uvloop.new_event_loop} if folder in _WHOLE_GATEWAY else {"asyncio": asyncio.new_event_loop}


_LONGEST_FIRST = ("faults/", "cluster/", "browser/", "flows/", "channels/", "models/local/", "tools/", "mcp/", "cli/")
"""Folders whose tests wait for processes and timers. At the end of a run only short ones should be left."""


def _place(item: pytest.Item) -> int:
    inside = item.nodeid.removeprefix("tests/")
    return next(
        (place for place, folder in enumerate(_LONGEST_FIRST) if inside.startswith(folder)), len(_LONGEST_FIRST)
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With PostgreSQL, tests that are about files are left out. Pytest counts them as deselected."""
    items.sort(key=_place)
    if os.environ.get("OPENCLAW_TEST_STORAGE") == "postgres":
        about_files = [item for item in items if item.get_closest_marker("files_only") is not None]
        items[:] = [item for item in items if item not in about_files]
        config.hook.pytest_deselected(items=about_files)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage while ten thousand tests are loaded: almost half of the time went there, and all stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
