"""Losing the connection in the middle of a reply loses nothing of the reply."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.gateway import GatewayProcess, text_of
from tests.support.model_server import ModelServer, Reply


@pytest.mark.parametrize("caps", [("event-replay",), ("event-replay", "delta-events")])
async def test_a_client_that_was_away_during_a_reply_sees_all_of_it(
    gateway: GatewayProcess, models: ModelServer, caps: tuple[str, ...]
) -> None:
    held = asyncio.Event()
    models.queue(Reply("one two three four", hold=held, hold_after=2))
    async with gateway.client(caps=caps[1:]) as client:
        await client.call("chat.send", {"sessionKey": "main", "message": "count", "idempotencyKey": "r"})
        began = await client.event(
            lambda event, payload: event == "agent" and payload["data"].get("delta") and payload["runId"] == "r"
        )
        seen = [frame for frame in client.events if frame.get("seq", 0) <= began["seq"]]
        epoch = client.hello["server"]["epoch"]
    held.set()
    async with gateway.client() as other:
        await other.call("agent.wait", {"runId": "r", "timeoutMs": 10_000})
    async with gateway.client(caps=caps) as client:
        assert client.events == []
        answer = await client.call("events.replay", {"afterSeq": began["seq"], "epoch": epoch})
        numbers = [frame["seq"] for frame in client.events]
        assert numbers == list(range(began["seq"] + 1, answer["seq"] + 1))
        assert text_of(await client.ending("r")) == "one two three four"
        agent = [frame["payload"] for frame in [*seen, *client.events] if frame["event"] == "agent"]
        assert [payload["seq"] for payload in agent] == list(range(1, len(agent) + 1))
        deltas = [payload["data"]["delta"] for payload in agent if payload["stream"] == "assistant"]
        assert "".join(deltas) == "one two three four"


async def test_after_a_restart_the_client_is_told_to_look_afresh(gateway: GatewayProcess) -> None:
    async with gateway.client() as client:
        await client.chat("hi [[reply:ho]]")
        last, epoch = client.events[-1].get("seq", 1), client.hello["server"]["epoch"]
    gateway.kill()
    await gateway.start()
    async with gateway.client() as client:
        answer = await client.call("events.replay", {"afterSeq": last, "epoch": epoch})
        assert (answer["ok"], answer["gap"], answer["epoch"]) == (False, True, client.hello["server"]["epoch"])
        assert answer["epoch"] != epoch
