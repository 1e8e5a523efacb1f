"""The pictures of the docs show the page as it is now."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser

from tests.browser.pictures import DOCS, found_on, pictures
from tests.browser.support import LIMIT_MS, WebGateway

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_every_picture_shows_what_is_on_the_page_now(browser: Browser, gateway: WebGateway) -> None:
    taken: list[str] = []
    async for name, tab in pictures(browser, gateway):
        kept = (DOCS / f"{name}.txt").read_text("utf-8")
        now = ""
        for _ in range(LIMIT_MS // 200):
            # Buttons of a message appear a moment after its last word.
            if (now := await found_on(tab)) == kept:
                break
            await asyncio.sleep(0.2)
        assert now == kept, f"docs/{name}.png shows another page: run `make pictures`"
        taken.append(name)
    assert sorted(taken) == sorted(path.stem for path in DOCS.glob("*.png"))
