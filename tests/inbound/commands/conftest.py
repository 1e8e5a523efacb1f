from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.inbound.commands.desk import Desk, MakeDesk, open_desk


@pytest.fixture
async def make_desk(tmp_path: Path) -> AsyncIterator[MakeDesk]:
    """Makes desks with a configuration of their own. They are closed when the test is over."""
    numbers = itertools.count()
    async with AsyncExitStack() as stack:

        async def make(config: dict[str, Any]) -> Desk:
            return await stack.enter_async_context(open_desk(tmp_path / str(next(numbers)), config))

        yield make


@pytest.fixture
async def desk(make_desk: MakeDesk) -> Desk:
    return await make_desk({})
