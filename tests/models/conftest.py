from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from openclaw.models import http
from tests.support.model_server import ModelServer


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ModelServer]:
    """A strict model server, and afterwards a closed client session."""
    async with ModelServer() as running:
        yield running
        await http.close()
