from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.inbound.commands.desk import Desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    await desk.store.close()
