"""A real browser before a real Gateway: what a person sees, with a model that plays a script."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, async_playwright, expect

from tests.support.gateway import TOKEN, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.scripted_model import ScriptedModel

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium") or "/usr/bin/chromium"
LIMIT_MS = 45_000
"""How long a test waits for what it expects to see. A loaded machine is slow, not wrong."""
ELSEWHERE = "claw.test"
expect.set_options(timeout=LIMIT_MS)


def require_chromium() -> None:
    """Skips the test where there is no browser. With ``OPENCLAW_TEST_REQUIRE_ALL`` it fails instead."""
    if not Path(CHROMIUM).exists():
        if os.environ.get("OPENCLAW_TEST_REQUIRE_ALL"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")


@asynccontextmanager
async def chromium() -> AsyncGenerator[Browser]:
    require_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                # A name that is not this machine's own, so that the page is no secure context.
                f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
            ],
        )
        try:
            yield browser
        finally:
            await browser.close()


class WebGateway(InProcessGateway):
    """A Gateway whose every model call is answered by ``model``."""

    def __init__(self, state_dir: Path, model: ScriptedModel | None = None, **config: Any) -> None:
        super().__init__(state_dir, model_config("http://127.0.0.1:9", **config))
        self.model = model or ScriptedModel()

    async def start(self) -> InProcessGateway:
        await super().start()
        self.gateway.runtime.models.calls.call = self.model.answer
        return self


class Tab:
    """One tab of a browser. ``errors`` are what its console and its scripts complained about."""

    def __init__(self, page: Page, gateway: WebGateway) -> None:
        self.page = page
        self.gateway = gateway
        self.errors: list[str] = []
        page.set_default_timeout(LIMIT_MS)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _heard(self, message: ConsoleMessage) -> None:
        # The browser itself reports every socket that could not be opened while a Gateway restarts.
        if message.type == "error" and "WebSocket connection to" not in message.text:
            self.errors.append(message.text)

    async def open(self, path: str = "/", *, signed_in: bool = True) -> Tab:
        """Opens a path of the page. The first time, the address signs in as ``openclaw dashboard`` does."""
        fragment = f"#token={TOKEN}" if signed_in else ""
        await self.page.goto(f"{self.gateway.url}{path}{fragment}")
        if signed_in:
            await expect(self.page.locator(".frame")).to_be_visible()
        return self

    async def go(self, name: str) -> None:
        """Goes to a page by the links behind "Manage", or back to the chat."""
        pages = self.page.get_by_role("navigation", name=re.compile("^(Manage|Administrar)$"))
        conversations = self.page.get_by_role("navigation", name=re.compile("^(Conversations|Conversaciones)$"))
        await expect(pages.or_(conversations)).to_be_visible()
        if await conversations.count():
            await self.page.get_by_role("button", name=re.compile("^(Manage|Administrar)$")).click()
        await pages.get_by_role("link", name=name, exact=True).click()

    def conversation(self, title: str) -> Locator:
        """The conversation in the left column."""
        return self.page.get_by_role("navigation", name="Conversations").get_by_role("link", name=title)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    @property
    def log(self) -> Locator:
        return self.page.get_by_role("log")

    @property
    def box(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message")

    async def say(self, text: str) -> None:
        await self.box.fill(text)
        await self.button("Send").click()

    async def sees(self, text: str | re.Pattern[str]) -> None:
        await expect(self.log).to_contain_text(text)


async def new_tab(browser: Browser, gateway: WebGateway, context: BrowserContext | None = None, **settings: Any) -> Tab:
    """A tab in a browser profile of its own, or in that of another tab."""
    context = context or await browser.new_context(locale="en-US", **settings)
    return Tab(await context.new_page(), gateway)
