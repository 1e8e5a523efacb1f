from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.rights import OWNER_CALLER
from openclaw.tools.base import ToolContext
from openclaw.tools.process import ProcessRegistry


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def context(workspace: Path) -> ToolContext:
    return ToolContext(agent_id="main", session_key="agent:main:main", workspace=workspace, caller=OWNER_CALLER)


@pytest.fixture
async def processes() -> AsyncIterator[ProcessRegistry]:
    registry = ProcessRegistry()
    yield registry
    await registry.close()
