from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.kill_schedules import KillSchedule
from tests.support.model_server import ModelServer


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def schedule(tmp_path: Path, models: ModelServer) -> AsyncIterator[KillSchedule]:
    """A state directory whose Gateway the test starts itself; whatever still runs at the end is killed."""
    made = KillSchedule(tmp_path, models, seed=0)
    yield made
    with contextlib.suppress(AssertionError):
        made.kill()
