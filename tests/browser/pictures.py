"""Makes the pictures of the docs: ``python -m tests.browser.pictures``. They show the page as it is now.

Beside each picture stands what a person would find on it, as text (``web-chat.txt``: headings, links, buttons, fields,
tables). A test takes the same way through the page and compares that text, because pixels differ between machines.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

from playwright.async_api import Browser, expect

from openclaw.messages import ToolCall
from tests.browser.support import Tab, WebGateway, chromium, new_tab
from tests.support.scripted_model import Answer

DOCS = Path(__file__).parents[2] / "docs"
SIZE = {"width": 1180, "height": 740}
PHONE = {"width": 390, "height": 740}
TALK: list[tuple[str, list[Answer | str]]] = [
    ("Hello! Who are you?", ["I am your agent. I live on your own machine, and everything we say stays there."]),
    (
        "How much room is left on this disk?",
        [
            Answer("I look.", calls=[ToolCall(id="c1", name="exec", arguments={"command": "echo 182G of 480G free"})]),
            "There are **182 GB of 480 GB** free.\n\n| folder | size |\n|---|---|\n| Pictures | 96 GB |\n"
            "| Projects | 41 GB |\n\nShall I look for what could go?",
        ],
    ),
]
_SHOWN = re.compile(
    r"^ *- (?:heading|link|button|textbox|searchbox|combobox|checkbox|tab|table|columnheader|log|navigation|img)\b"
)
_OF_THE_MINUTE = '- heading "turn facts:"'
"""The time of day is a fact of a turn, so this part of the context page shows when a minute ended between two turns."""


async def pictures(browser: Browser, gateway: WebGateway) -> AsyncGenerator[tuple[str, Tab]]:
    """Goes through the page and stops where a picture is taken: its name, and the tab that shows it."""
    tab: Tab = await (await new_tab(browser, gateway, viewport=SIZE, color_scheme="light")).open("/chat")
    for said, answers in TALK:
        gateway.model.queue(*answers)
        await tab.say(said)
        last = answers[-1]
        await tab.sees((last if isinstance(last, str) else last.text)[:12].strip("*| "))
        await expect(tab.button("Stop")).to_have_count(0)
    await expect(tab.conversation(TALK[0][0])).to_be_visible()
    await tab.box.evaluate("(box) => box.blur()")
    yield "web-chat", tab
    await tab.go("Context")
    await expect(tab.page.get_by_text("Since the run before")).to_be_visible()
    yield "web-context", tab
    await tab.go("Messages")
    await tab.page.get_by_role("row").filter(has_text="How much room").get_by_role("link").click()
    await expect(tab.page.get_by_role("dialog")).to_contain_text("It called exec once")
    yield "web-why", tab
    await tab.page.context.close()
    phone = await (await new_tab(browser, gateway, viewport=PHONE, color_scheme="dark")).open("/chat")
    await phone.sees("Shall I look for what could go?")
    await expect(phone.page.locator(".conversation")).to_have_count(1)
    yield "web-phone", phone
    await phone.page.context.close()


async def found_on(tab: Tab) -> str:
    """What a person finds on the page: its parts by role and name, without numbers and times."""
    lines = (await tab.page.locator("body").aria_snapshot()).splitlines()
    plain = [
        re.sub(r"\d[\d.,:]*", "0", line.strip().replace(" [disabled]", ""))
        for line in lines
        if _SHOWN.match(line) and not line.strip().startswith(_OF_THE_MINUTE)
    ]
    return "\n".join(plain) + "\n"


async def make(folder: Path) -> None:
    async with chromium() as browser, WebGateway(folder / "home" / "state") as gateway:
        assert isinstance(gateway, WebGateway)
        async for name, tab in pictures(browser, gateway):
            await tab.page.screenshot(path=DOCS / f"{name}.png")
            (DOCS / f"{name}.txt").write_text(await found_on(tab), "utf-8")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make(Path(folder)))


if __name__ == "__main__":
    main()
