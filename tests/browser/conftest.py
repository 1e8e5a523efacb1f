"""One browser and one profile for all, and a Gateway and a tab for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext

from tests.browser.support import Tab, WebGateway, chromium, new_tab


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="package")
async def gateway(tmp_path: Path) -> AsyncIterator[WebGateway]:
    async with WebGateway(tmp_path / "state") as running:
        assert isinstance(running, WebGateway)
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def profile(browser: Browser) -> AsyncIterator[BrowserContext]:
    """Where the tabs are opened. An empty one stays, so that the next one need not start a process.

    What a page keeps belongs to its origin, and every test's Gateway has a port and so an origin of its own.
    """
    context = await browser.new_context(locale="en-US")
    await context.new_page()
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="package")
async def tab(browser: Browser, profile: BrowserContext, gateway: WebGateway) -> AsyncIterator[Tab]:
    """A tab that is signed in and shows the chat. The test fails if its console had an error."""
    opened = await (await new_tab(browser, gateway, profile)).open("/chat")
    yield opened
    for page in profile.pages[1:]:
        await page.close()
    await profile.clear_cookies()
    assert opened.errors == []
