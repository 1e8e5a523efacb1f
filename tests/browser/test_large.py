"""Ten thousand messages and ten thousand sessions: the page loads and shows a little of them at a time."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, WebSocket, expect

from tests.browser.support import Tab, WebGateway, new_tab

pytestmark = pytest.mark.asyncio(loop_scope="package")

MANY = 10_000
FIRST_PAINT_BYTES = 300_000
MOST_NODES = 200
STARTED = 1_700_000_000_000


def write_state(state: Path) -> None:
    """A main session of ten thousand messages, and as many small sessions."""
    folder = state / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    session_id = str(uuid.UUID(int=1))
    lines: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": session_id, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"}
    ]
    before = None
    for number in range(MANY):
        # All of them together fit the model's window. What the page loads first is long.
        filling = "Some words to fill it. " * (40 if number > MANY - 100 else 1)
        text = {"type": "text", "text": f"Message number {number}. {filling}"}
        at = STARTED + number * 1000
        message: dict[str, Any] = {"role": "user", "content": [text], "timestamp": at}
        if number % 2:
            message = {**message, "role": "assistant", "model": "mock-1", "provider": "mock", "stopReason": "stop"}
        entry = {"type": "message", "id": f"{number:08x}", "parentId": before, "message": message}
        lines.append({**entry, "timestamp": "2026-01-01T00:00:00.000Z"})
        before = entry["id"]
    (folder / f"{session_id}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    store: dict[str, Any] = {"agent:main:main": {"sessionId": session_id, "updatedAt": STARTED + MANY}}
    for number in range(MANY):
        entry = {"sessionId": str(uuid.UUID(int=number + 2)), "updatedAt": STARTED + number, "label": f"Talk {number}"}
        store[f"agent:main:talk-{number}"] = entry
    (folder / "sessions.json").write_text(json.dumps(store))


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def large(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WebGateway]:
    state = tmp_path_factory.mktemp("large") / "state"
    await asyncio.to_thread(write_state, state)
    never = {"reset": {"mode": "idle", "idleMinutes": 100_000_000}}
    async with WebGateway(state, session=never) as running:
        assert isinstance(running, WebGateway)
        yield running


class Traffic:
    """The bytes that a tab receives: over HTTP as packed, over its sockets as sent."""

    def __init__(self, tab: Tab) -> None:
        self.sockets = 0
        self.files: list[Any] = []
        tab.page.on("websocket", self._opened)
        tab.page.on("response", lambda response: self.files.append(response))

    def _opened(self, socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: self._count(frame))

    def _count(self, frame: Any) -> None:
        self.sockets += len(frame if isinstance(frame, bytes) else frame.encode())

    async def total(self) -> int:
        sizes = [await one.request.sizes() for one in self.files]
        return self.sockets + sum(one["responseBodySize"] + one["responseHeadersSize"] for one in sizes)


async def test_ten_thousand_messages(browser: Browser, large: WebGateway) -> None:
    tab = await new_tab(browser, large)
    traffic = Traffic(tab)
    await tab.open("/chat")
    await tab.sees(f"Message number {MANY - 1}.")
    spent = await traffic.total()
    assert 0 < spent <= FIRST_PAINT_BYTES, spent
    nodes = tab.log.get_by_role("article")
    assert await nodes.count() <= MOST_NODES
    scroller = tab.log
    seen = MANY
    for _ in range(60):
        await scroller.evaluate("(box) => { box.scrollTop = 0 }")
        await expect(nodes.first).not_to_contain_text(f"Message number {seen}.")
        assert await nodes.count() <= MOST_NODES
        first = await nodes.first.inner_text()
        seen = int(first.split("Message number ")[1].split(".")[0])
        if seen < MANY - 600:
            break
    assert seen < MANY - 600
    await tab.button("Newest").click()
    await expect(nodes.last).to_contain_text(f"Message number {MANY - 1}.")
    assert await nodes.count() <= MOST_NODES
    large.model.queue("Still quick.")
    await tab.say("And one more")
    await tab.sees("Still quick.")
    assert tab.errors == []
    await tab.page.context.close()


async def test_ten_thousand_sessions(browser: Browser, large: WebGateway) -> None:
    tab = await (await new_tab(browser, large)).open("/sessions")
    rows = tab.page.get_by_role("row")
    await expect(rows).to_have_count(51)
    await expect(tab.page.get_by_text(f"1–50 of {MANY + 1:,}")).to_be_visible()
    await tab.button("Next").click()
    await expect(tab.page.get_by_text(f"51–100 of {MANY + 1:,}")).to_be_visible()
    await tab.page.get_by_role("searchbox").fill("talk 4711")
    await expect(rows).to_have_count(2)
    await rows.nth(1).get_by_role("link").click()
    await expect(tab.page.get_by_role("heading", name="Talk 4711")).to_be_visible()
    await tab.page.get_by_role("searchbox", name="Search conversations").fill("talk 424")
    await expect(tab.conversation("Talk 4242")).to_be_visible()
    assert tab.errors == []
    await tab.page.context.close()


async def test_the_tree_of_ten_thousand_entries(browser: Browser, large: WebGateway) -> None:
    tab = await (await new_tab(browser, large)).open("/transcript?session=agent:main:main")
    entries = tab.page.get_by_role("group", name="Entries")
    await expect(entries.get_by_text(f"Message number {MANY - 1}.")).to_be_visible()
    assert await entries.get_by_role("button").count() <= MOST_NODES
    await entries.evaluate("(box) => { box.scrollTop = 0 }")
    await expect(entries.get_by_text("Message number 0.")).to_be_visible()
    assert await entries.get_by_role("button").count() <= MOST_NODES
    assert tab.errors == []
    await tab.page.context.close()
