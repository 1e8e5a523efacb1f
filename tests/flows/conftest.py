from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    async with InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key)) as gateway:
        yield gateway


@pytest.fixture
async def gateway_process(tmp_path: Path, models: ModelServer) -> AsyncIterator[ForkedGateway]:
    """For tests that kill the Gateway."""
    async with ForkedGateway(tmp_path / "state", model_config(models.base_url, models.api_key)) as process:
        yield process
