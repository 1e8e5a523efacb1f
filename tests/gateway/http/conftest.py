from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.gateway.http.served import Served, served


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """One process for all tests of this folder: each uses sessions of its own."""
    async with served(tmp_path_factory.mktemp("http")) as running:
        yield running
