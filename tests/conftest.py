"""Settings all tests share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.support.shared_servers import begin_run

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

# What tests write need not outlive a power cut. In memory a folder costs a quarter less, and nobody waits for a disk.
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30
if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

if "PYTEST_XDIST_WORKER" not in os.environ:
    begin_run()

_WHOLE_GATEWAY = {"browser", "flows", "gateway", "interop"}
"""Folders whose tests have a whole Gateway in their own event loop."""


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A Gateway runs on uvloop in its own process; in a test's process it does so, too."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return {"uvloop": uvloop.new_event_loop} if folder in _WHOLE_GATEWAY else {"asyncio": asyncio.new_event_loop}


_READ_THE_SOURCE = {
    *("config/test_unsupported.py", "gateway/test_bombs.py", "security/test_text_sources.py"),
    *("test_imports.py", "test_patterns.py"),
}
"""Files whose tests need the trees of the whole package, which are made once in a process."""
_SECONDS = {
    "browser/": 2.5,
    "faults/": 1.0,
    "mcp/": 0.8,
    "models/local/": 0.8,
    "tools/browser/": 0.6,
    "cluster/": 0.5,
    "models/test_oracle.py": 0.4,
    "flows/": 0.4,
    "cli/": 0.2,
    "storage/": 0.2,
    "channels/": 0.1,
    "the source": 0.03,
}
"""Units whose tests wait for processes and timers or load much, and how long a test takes there on average."""


def _unit(item: pytest.Item) -> str:
    """Tests of one unit begin in one process: those of a file, and all that share a browser or trees of the source."""
    file = item.nodeid.removeprefix("tests/").split("::")[0]
    if file in _READ_THE_SOURCE:
        return "the source"
    return "browser/" if file.startswith("browser/") else file


def _deal(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Orders the tests so that every worker begins with its share of those that wait, and the longest come first.

    ``--dist worksteal`` gives every worker an equal run of this list. A worker that is done takes from the end of
    another's run, where only short tests are.
    """
    waiting: list[tuple[float, list[pytest.Item]]] = []
    short: list[pytest.Item] = []
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(_unit(item), []).append(item)
    for name, unit in units.items():
        if each := next((seconds for folder, seconds in _SECONDS.items() if name.startswith(folder)), 0):
            waiting.append((each * len(unit), unit))
        else:
            short += unit
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    load = [0.0] * workers
    for seconds, unit in sorted(waiting, key=lambda one: -one[0]):
        least = load.index(min(load))
        load[least] += seconds
        shares[least] += unit
    dealt: list[pytest.Item] = []
    for place, share in enumerate(shares):
        room = max(0, (len(items) - len(dealt)) // (workers - place) - len(share))
        dealt += share + short[:room]
        del short[:room]
    return dealt + short


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With PostgreSQL, tests that are about files are left out. Pytest counts them as deselected."""
    if os.environ.get("OPENCLAW_TEST_STORAGE") == "postgres":
        about_files = [item for item in items if item.get_closest_marker("files_only") is not None]
        items[:] = [item for item in items if item not in about_files]
        config.hook.pytest_deselected(items=about_files)
    if (workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))) > 1:
        items[:] = _deal(items, workers)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Looks for no garbage while ten thousand tests are loaded: almost half of the time went there, and all stays.

    Afterwards it looks for it less often: most of what a test makes is gone when nobody refers to it.
    """
    gc.disable()
    try:
        _load(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


def _load(config: pytest.Config) -> None:
    """Loads the files of tests, and each worker begins with other ones.

    In a fresh checkout pytest compiles every file to show what an assertion compared. One worker does it, and the
    others find what it wrote.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1 or sys.dont_write_bytecode:
        return
    asked = [config.invocation_params.dir / path for path in config.args]
    files = [file for path in asked for file in sorted(path.rglob("test_*.py"))]
    first = len(files) * int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) // workers
    for file in files[first:] + files[:first]:
        # Whoever collects the file tells what is wrong with it.
        with contextlib.suppress(Exception):
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))
