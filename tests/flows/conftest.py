from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess, model_config
from tests.support.model_server import ModelServer


@pytest.fixture
async def models() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer) -> AsyncIterator[GatewayProcess]:
    async with GatewayProcess(tmp_path / "state", model_config(models.base_url, models.api_key)) as process:
        yield process
