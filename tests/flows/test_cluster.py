"""Two Gateway processes on one database: one dies, or stands still, and the other one answers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config, text_of
from tests.support.model_server import ModelServer, Reply
from tests.support.postgres import storage_for, stored_rows


class TwoNodes:
    """``first`` has answered in the main session, so that it owns it."""

    def __init__(self, storage: dict[str, str], first: ForkedGateway, second: ForkedGateway) -> None:
        self.storage = storage
        self.first = first
        self.second = second

    def owner(self) -> str | None:
        rows = stored_rows(self.storage, "SELECT node FROM claims WHERE name = $1", "session:main:agent:main:main")
        return rows[0]["node"] if rows else None

    def end_lease(self, node: str | None) -> None:
        ended = "UPDATE nodes SET lease_until = now() - interval '1 s' WHERE id = $1 RETURNING id"
        assert stored_rows(self.storage, ended, node or "")

    def urls(self) -> set[str]:
        rows = stored_rows(self.storage, "SELECT url FROM nodes WHERE state = 'alive' AND url <> ''")
        return {row["url"] for row in rows}

    def messages(self) -> dict[str, tuple[str, int]]:
        rows = stored_rows(self.storage, "SELECT run_id, state, attempts FROM messages ORDER BY id")
        return {row["run_id"]: (row["state"], row["attempts"]) for row in rows}


async def answers(client: WireClient) -> list[str]:
    history = await client.call("chat.history", {"sessionKey": "main"})
    return [text_of({"message": message}) for message in history["messages"] if message["role"] == "assistant"]


@pytest.fixture
async def nodes(tmp_path: Path, models: ModelServer) -> AsyncIterator[TwoNodes]:
    storage = storage_for(tmp_path / "state")
    config: dict[str, Any] = model_config(models.base_url, models.api_key, storage=storage)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(ForkedGateway(tmp_path / "a" / "state", config))
        second = await stack.enter_async_context(ForkedGateway(tmp_path / "b" / "state", config))
        async with first.client() as client:
            assert text_of(await client.chat("hello [[reply:Hi.]]", run_id="r0")) == "Hi."
        yield TwoNodes(storage, first, second)


async def test_a_killed_owner_is_replaced_and_everything_is_answered_once(nodes: TwoNodes, models: ModelServer) -> None:
    async with nodes.second.client() as there:
        # A message that enters elsewhere is streamed to where it was sent from.
        assert text_of(await there.chat("and [[reply:Again.]]", run_id="r1")) == "Again."
        held = asyncio.Event()
        models.queue(Reply("never heard", hold=held, hold_after=0), Reply("Here I am."))
        sent = {"sessionKey": "main", "message": "are you there?", "idempotencyKey": "r2"}
        await there.call("chat.send", sent)
        await models.wait_for_requests(3)
        waiting = asyncio.create_task(there.call("agent.wait", {"runId": "r2", "timeoutMs": 50_000}))
        before = nodes.owner()
        nodes.first.kill()
        held.set()
        assert text_of(await there.ending("r2")) == "Here I am."
        assert (await waiting)["status"] == "ok"
        assert nodes.owner() not in (None, before)
        assert (await there.call("chat.send", sent))["status"] == "ok"
        assert text_of(await there.chat("more [[reply:Yes.]]", run_id="r3")) == "Yes."
        assert await answers(there) == ["Hi.", "Again.", "Here I am.", "Yes."]
    assert nodes.messages() == {
        "r0": ("answered", 1),
        "r1": ("answered", 1),
        "r2": ("answered", 2),
        "r3": ("answered", 1),
    }


async def test_an_owner_that_stood_still_beyond_its_lease_is_fenced_and_joins_again(
    nodes: TwoNodes, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("said too late", hold=held, hold_after=0), Reply("In time."))
    async with nodes.second.client() as there:
        sent = {"sessionKey": "main", "message": "are you there?", "idempotencyKey": "r1"}
        await there.call("chat.send", sent)
        await models.wait_for_requests(2)
        before = nodes.owner()
        os.kill(nodes.first.pid, signal.SIGSTOP)
        try:
            # Its lease is over a little sooner than by itself.
            await asyncio.to_thread(nodes.end_lease, before)
            assert text_of(await there.ending("r1")) == "In time."
        finally:
            held.set()
            os.kill(nodes.first.pid, signal.SIGCONT)
        assert nodes.owner() not in (None, before)
        # The old owner has its answer now. It writes nothing, says nothing, and comes back as another node.
        async with asyncio.timeout(60):
            while "starts again as a new one" not in nodes.first.errors():
                await asyncio.sleep(0.05)
            while len(urls := nodes.urls() - {nodes.second.url}) != 1:
                await asyncio.sleep(0.05)
        nodes.first.port = int(urls.pop().rsplit(":", 1)[1])
        async with nodes.first.client() as here:
            assert text_of(await here.chat("and now? [[reply:Now.]]", run_id="r2")) == "Now."
            assert await answers(here) == ["Hi.", "In time.", "Now."]
    assert nodes.messages() == {"r0": ("answered", 1), "r1": ("answered", 2), "r2": ("answered", 1)}


async def test_a_client_that_was_away_catches_up_at_its_own_node_with_a_run_of_another(
    nodes: TwoNodes, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("one two three four", hold=held, hold_after=2))
    async with nodes.second.client() as there:
        await there.call("chat.send", {"sessionKey": "main", "message": "count", "idempotencyKey": "r1"})
        began = await there.event(
            lambda event, payload: event == "agent" and payload["data"].get("delta") and payload["runId"] == "r1"
        )
        epoch = there.hello["server"]["epoch"]
    held.set()
    async with nodes.first.client() as here:
        assert (await here.call("agent.wait", {"runId": "r1", "timeoutMs": 50_000}))["status"] == "ok"
    async with nodes.second.client(caps=("tool-events", "event-replay")) as there:
        answer = await there.call("events.replay", {"afterSeq": began["seq"], "epoch": epoch})
        assert answer["ok"]
        assert text_of(await there.ending("r1")) == "one two three four"
    numbers = [frame["seq"] for frame in there.events if frame["seq"] <= answer["seq"]]
    assert numbers == list(range(began["seq"] + 1, answer["seq"] + 1))
