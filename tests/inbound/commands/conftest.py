from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inbound.commands.desk import Desk


@pytest.fixture
async def make_desk(tmp_path: Path) -> AsyncIterator[Callable[[dict[str, Any]], Desk]]:
    """Desks with a configuration of their own, closed when the test is over."""
    made: list[Desk] = []

    def make(config: dict[str, Any]) -> Desk:
        made.append(Desk(tmp_path / str(len(made)), config))
        return made[-1]

    yield make
    for desk in made:
        await desk.store.close()


@pytest.fixture
async def desk(make_desk: Callable[[dict[str, Any]], Desk]) -> Desk:
    return make_desk({})
