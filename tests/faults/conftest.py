from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.ordeal import Ordeal
from tests.support.model_server import ModelServer


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def ordeal(tmp_path: Path, models: ModelServer) -> AsyncIterator[Ordeal]:
    """A state directory whose Gateway the test starts itself; whatever still runs at the end is killed."""
    made = Ordeal(tmp_path, models, seed=0)
    yield made
    with contextlib.suppress(AssertionError):
        made.kill()
