"""One browser for each module, and a Gateway and a tab for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser

from tests.browser.support import Tab, WebGateway, chromium, new_tab


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(tmp_path: Path) -> AsyncIterator[WebGateway]:
    async with WebGateway(tmp_path / "state") as running:
        assert isinstance(running, WebGateway)
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def tab(browser: Browser, gateway: WebGateway) -> AsyncIterator[Tab]:
    """A tab that is signed in and shows the chat. The test fails if its console had an error."""
    opened = await (await new_tab(browser, gateway)).open("/chat")
    yield opened
    await opened.page.context.close()
    assert opened.errors == []
