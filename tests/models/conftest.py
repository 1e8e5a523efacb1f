from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from openclaw.models.calls import ModelCalls
from tests.models.streams import model_calls
from tests.support.model_server import ModelServer


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ModelServer]:
    """A strict model server."""
    async with ModelServer() as running:
        yield running


@pytest_asyncio.fixture
async def calls() -> AsyncIterator[ModelCalls]:
    made = model_calls()
    yield made
    await made.close()
