"""Who is given up after crashes: the message that brings the Gateway down, not those that ran beside it, and not one
that an orderly stop cut short. And a Gateway without file descriptors.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.model_server import ModelServer, Reply


@pytest.fixture
def gateway(tmp_path: Path, models: ModelServer) -> ForkedGateway:
    return ForkedGateway(tmp_path / "state", model_config(models.base_url, models.api_key))


def plan(gateway: ForkedGateway, *faults: dict[str, Any]) -> None:
    gateway.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(faults)}


async def send(client: WireClient, key: str, text: str) -> None:
    params = {"sessionKey": f"agent:main:{key}", "message": text, "idempotencyKey": key}
    await client.call("chat.send", params)


async def ending(client: WireClient, key: str) -> dict[str, Any]:
    return await client.call("agent.wait", {"runId": key, "timeoutMs": 20_000})


async def died(gateway: ForkedGateway) -> None:
    assert gateway._process is not None
    assert await asyncio.wait_for(asyncio.to_thread(gateway._process.wait), 20) == -9


async def lives_to_the_end(gateway: ForkedGateway, keys: tuple[str, ...]) -> bool:
    """Starts the Gateway. False when it dies before all these messages have ended."""

    async def ask() -> None:
        async with gateway.client() as client:
            for key in keys:
                await ending(client, key)

    try:
        await gateway.start()
    except AssertionError:
        await died(gateway)
        return False
    asked, death = asyncio.create_task(ask()), asyncio.create_task(died(gateway))
    await asyncio.wait([asked, death], return_when=asyncio.FIRST_COMPLETED)
    if asked.done() and asked.exception() is not None:
        await death  # It was dying while it was being asked.
    alive = not death.done()
    for task in (asked, death):
        task.cancel()
    await asyncio.gather(asked, death, return_exceptions=True)
    return alive


async def test_only_the_message_that_kills_the_gateway_is_given_up(gateway: ForkedGateway) -> None:
    """The Gateway dies whenever it writes the answer of ``poison``; two others run at that moment, each time."""
    store = gateway.sessions_dir() / "sessions.json"
    store.parent.mkdir(parents=True)
    store.write_text(json.dumps({"agent:main:poison": {"sessionId": "poison", "updatedAt": int(time.time() * 1000)}}))
    bystanders = ("b", "c")
    plan(gateway, {"at": "write", "path": "*/poison.jsonl", "do": "kill", "hit": 2})
    async with gateway:
        async with gateway.client() as client:
            for key in bystanders:
                await send(client, key, f"{key} [[sleep:1500]][[reply:done {key}]]")
            await client.send(
                "chat.send",
                {"sessionKey": "agent:main:poison", "message": "die [[reply:x]]", "idempotencyKey": "poison"},
            )
            await died(gateway)
        plan(gateway, {"at": "write", "path": "*/poison.jsonl", "do": "kill"})
        for _ in range(8):
            if await lives_to_the_end(gateway, ("poison", *bystanders)):
                break
        async with gateway.client() as client:
            for key in bystanders:
                assert (await ending(client, key))["status"] == "ok"
                history = (await client.call("chat.history", {"sessionKey": f"agent:main:{key}"}))["messages"]
                assert history[-1]["content"][-1]["text"] == f"done {key}"
            ended = await ending(client, "poison")
            assert ended["status"] == "error" and "given up" in ended["error"]


async def test_orderly_stops_on_a_full_disk_are_not_held_against_a_message(
    gateway: ForkedGateway, models: ModelServer, tmp_path: Path
) -> None:
    """The disk is full whenever the Gateway is told to stop, so the ledger cannot note the stop."""
    full = tmp_path / "full"
    plan(gateway, {"at": "write", "path": "*/ledger.db", "do": "ENOSPC", "while": str(full)})
    async with gateway:
        for life in range(5):
            models.queue(Reply("never", hold=asyncio.Event(), hold_after=0))
            async with gateway.client() as client:
                if not life:
                    await send(client, "a", "question")
                await models.wait_for_requests(life + 1)
            full.touch()
            assert await gateway.stop() == 0
            full.unlink()
            await gateway.start()
        models.queue(Reply("at last"))
        await models.wait_for_requests(6)
        async with gateway.client() as client:
            assert (await ending(client, "a"))["status"] == "ok"


async def test_without_descriptors_messages_are_refused_with_one_reason_and_nothing_is_lost(
    gateway: ForkedGateway, models: ModelServer
) -> None:
    held = asyncio.Event()
    async with gateway, gateway.client() as client:
        assert text_of(await client.chat("warm [[reply:up]]", "agent:main:w")) == "up"
        models.queue(Reply("the answer", hold=held, hold_after=1))
        await send(client, "a", "question")
        await models.wait_for_requests(2)
        soft, hard = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (20, hard))
        reasons = set()
        for number in range(5):
            with pytest.raises(RequestFailed) as refused:
                await send(client, f"b{number}", "b [[reply:done]]")
            reasons.add((refused.value.code, str(refused.value)))
        ((code, reason),) = reasons
        assert code == "UNAVAILABLE" and "no file descriptors left" in reason
        held.set()
        await client.call("agent.wait", {"runId": "a", "timeoutMs": 300})
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert (await ending(client, "a"))["status"] == "ok", "what was under way is finished, or waited"
        assert [request.error for request in models.requests] == [None] * 2
        for number in range(5):
            await send(client, f"b{number}", "b [[reply:done]]")
            assert (await ending(client, f"b{number}"))["status"] == "ok"
