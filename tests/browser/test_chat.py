"""Chat, as a person uses it."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.browser.support import Tab

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_answer_streams_in_as_markdown(tab: Tab) -> None:
    hold = tab.gateway.model.held("# Title\n\nSome **bold** words and `code`.\n\n- one\n- two\n\n" + "tail " * 20)
    await tab.say("Hello there")
    await tab.sees("Hello there")
    await expect(tab.log.get_by_role("heading", name="Title")).to_be_visible()
    await expect(tab.button("Stop")).to_be_visible()
    hold.set()
    await expect(tab.button("Stop")).to_have_count(0)
    await expect(tab.log.locator("strong")).to_have_text("bold")
    await expect(tab.log.get_by_role("listitem")).to_have_text(["one", "two"])
    await expect(tab.log.get_by_role("article")).to_have_count(2)
