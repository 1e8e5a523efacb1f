"""Makes the pictures of the docs: ``python -m tests.browser.pictures``. They show the page as it is now."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from playwright.async_api import expect

from openclaw.messages import ToolCall
from tests.browser.support import Tab, WebGateway, chromium, new_tab
from tests.support.scripted_model import Answer

DOCS = Path(__file__).parents[2] / "docs"
SIZE = {"width": 1180, "height": 740}
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


async def make(folder: Path) -> None:
    async with chromium() as browser, WebGateway(folder / "home" / "state") as gateway:
        assert isinstance(gateway, WebGateway)
        tab: Tab = await (await new_tab(browser, gateway, viewport=SIZE, color_scheme="light")).open("/chat")
        for said, answers in TALK:
            gateway.model.queue(*answers)
            await tab.say(said)
            last = answers[-1]
            await tab.sees((last if isinstance(last, str) else last.text)[:12].strip("*| "))
            await expect(tab.button("Stop")).to_have_count(0)
        await tab.box.evaluate("(box) => box.blur()")
        await tab.page.screenshot(path=DOCS / "web-chat.png")
        await tab.link("Context").click()
        await expect(tab.page.get_by_text("Since the run before")).to_be_visible()
        await tab.page.screenshot(path=DOCS / "web-context.png")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make(Path(folder)))


if __name__ == "__main__":
    main()
