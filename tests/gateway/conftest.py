from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.support import Running, running_gateway


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_gateway(tmp_path) as gateway:
        yield gateway
