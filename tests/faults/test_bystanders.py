"""Who is given up after crashes: the message that brings the Gateway down, not those that ran beside it, and not one
that an orderly stop cut short. And a Gateway without file descriptors.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from pathlib import Path

import pytest

from tests.faults.lives import died, lives_to_the_end, plan, wait
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.model_server import ModelServer, Reply


@pytest.fixture
def gateway(tmp_path: Path, models: ModelServer) -> ForkedGateway:
    return ForkedGateway(tmp_path / "state", model_config(models.base_url, models.api_key))


async def send(client: WireClient, key: str, text: str) -> None:
    params = {"sessionKey": key, "message": text, "idempotencyKey": key}
    await client.call("chat.send", params)


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
            if await lives_to_the_end(gateway, "poison", *bystanders):
                break
        async with gateway.client() as client:
            for key in bystanders:
                assert (await wait(client, key))["status"] == "ok"
                history = (await client.call("chat.history", {"sessionKey": f"agent:main:{key}"}))["messages"]
                assert history[-1]["content"][-1]["text"] == f"done {key}"
            ended = await wait(client, "poison")
            assert ended["status"] == "error" and "given up" in ended["error"]


async def test_orderly_stops_on_a_full_disk_are_not_held_against_a_message(
    gateway: ForkedGateway, models: ModelServer, tmp_path: Path
) -> None:
    """The disk is full whenever the Gateway is told to stop, so the ledger cannot note the stop."""
    full = tmp_path / "full"
    plan(gateway, {"at": "write", "path": "*/ledger.db", "do": "ENOSPC", "while": str(full)})
    async with gateway:
        never = [Reply("never", hold=asyncio.Event(), hold_after=0) for _ in range(5)]
        # All before the first start: a Gateway goes on with the message as soon as it is there.
        models.queue(*never, Reply("at last"))
        for life in range(5):
            async with gateway.client() as client:
                if not life:
                    await send(client, "a", "question")
                await models.wait_for_requests(life + 1)
            full.touch()
            assert await gateway.stop() == 0
            full.unlink()
            await gateway.start()
        await models.wait_for_requests(6)
        async with gateway.client() as client:
            assert (await wait(client, "a"))["status"] == "ok"


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
        assert (await wait(client, "a"))["status"] == "ok", "what was under way is finished, or waited"
        assert [request.error for request in models.requests] == [None] * 2
        for number in range(5):
            await send(client, f"b{number}", "b [[reply:done]]")
            assert (await wait(client, f"b{number}"))["status"] == "ok"
