"""Losing the connection in the middle of a reply loses nothing of the reply."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import TOKEN, RequestFailed, WireClient, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply


@pytest.mark.parametrize("caps", [("event-replay",), ("event-replay", "delta-events")])
async def test_a_client_that_was_away_during_a_reply_sees_all_of_it(
    gateway: InProcessGateway, models: ModelServer, caps: tuple[str, ...]
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
        await other.call("agent.wait", {"runId": "r", "timeoutMs": 50_000})
    async with gateway.client(caps=caps) as client:
        assert client.events == []
        answer = await client.call("events.replay", {"afterSeq": began["seq"], "epoch": epoch})
        # Something live may have come right behind the answer.
        numbers = [frame["seq"] for frame in client.events if frame["seq"] <= answer["seq"]]
        assert numbers == list(range(began["seq"] + 1, answer["seq"] + 1))
        assert text_of(await client.ending("r")) == "one two three four"
        agent = [frame["payload"] for frame in [*seen, *client.events] if frame["event"] == "agent"]
        assert [payload["seq"] for payload in agent] == list(range(1, len(agent) + 1))
        deltas = [payload["data"]["delta"] for payload in agent if payload["stream"] == "assistant"]
        assert "".join(deltas) == "one two three four"


async def test_after_a_restart_the_client_is_told_to_look_afresh(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hi [[reply:ho]]")
        last, epoch = client.events[-1].get("seq", 1), client.hello["server"]["epoch"]
    await gateway.stop()
    await gateway.start()
    async with gateway.client() as client:
        answer = await client.call("events.replay", {"afterSeq": last, "epoch": epoch})
        assert (answer["ok"], answer["gap"], answer["epoch"]) == (False, True, client.hello["server"]["epoch"])
        assert answer["epoch"] != epoch
        assert answer["reason"] == "the Gateway was restarted since"


async def half_a_reply(client: WireClient) -> tuple[int, str]:
    """The last number this client knows in the middle of run ``r``, and the epoch it belongs to."""
    await client.call("chat.send", {"sessionKey": "main", "message": "count", "idempotencyKey": "r"})
    began = await client.event(
        lambda event, payload: event == "agent" and payload["data"].get("delta") and payload["runId"] == "r"
    )
    return began["seq"], client.hello["server"]["epoch"]


async def test_connecting_with_the_last_number_brings_what_was_missed(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("one two three four", hold=held, hold_after=2))
    async with gateway.client() as client:
        last, epoch = await half_a_reply(client)
    held.set()
    async with gateway.client() as other:
        await other.call("agent.wait", {"runId": "r", "timeoutMs": 50_000})
    async with gateway.client(lastSeq=last, epoch=epoch) as client:
        told = client.hello["server"]["replay"]
        assert (told["ok"], "gap" in told) == (True, False)
        assert text_of(await client.ending("r")) == "one two three four"
        assert text_of(await client.chat("more [[reply:yes]]")) == "yes"
        numbers = [frame["seq"] for frame in client.events if "seq" in frame]
    assert numbers == list(range(last + 1, last + 1 + len(numbers))), "a number is missing, or came twice"


@pytest.mark.parametrize("given", [True, False])
async def test_a_client_of_an_earlier_life_is_told_of_the_gap_and_gets_the_end_of_its_run(
    gateway_process: ForkedGateway, models: ModelServer, given: bool
) -> None:
    models.queue(Reply("one two", hold=asyncio.Event(), hold_after=1), Reply("one two"))
    async with gateway_process.client() as client:
        last, epoch = await half_a_reply(client)
        for number in range(50):  # More than the next life will have said.
            await client.call("sessions.patch", {"key": "main", "label": f"name {number}"})
            await client.call("system-event", {"text": f"event {number}"})
        last = max(frame.get("seq", 0) for frame in client.events)
    gateway_process.kill()
    await gateway_process.start()
    async with gateway_process.client() as other:
        assert (await other.call("agent.wait", {"runId": "r", "timeoutMs": 50_000}))["status"] == "ok"
    earlier: dict[str, Any] = {"lastSeq": last, **({"epoch": epoch} if given else {})}
    async with gateway_process.client(**earlier) as client:
        told = client.hello["server"]["replay"]
        assert (told["ok"], told["gap"], told["reason"]) == (False, True, "the Gateway was restarted since")
        assert told["epoch"] != epoch
        assert text_of(await client.ending("r")) == "one two", "the run was taken up again and its end was said"
        history = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
        assert [message["role"] for message in history] == ["user", "assistant"]


async def test_a_number_that_is_none_is_refused(gateway: InProcessGateway) -> None:
    with pytest.raises(RequestFailed, match="lastSeq"):
        async with gateway.client(lastSeq=-1):
            pass


async def feed(gateway: InProcessGateway, query: str) -> tuple[aiohttp.ClientResponse, list[dict[str, Any]]]:
    """The event feed over plain HTTP, read until run ``r`` has ended."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    frames: list[dict[str, Any]] = []
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{gateway.url}/__openclaw__/events?{query}", headers=headers) as response,
    ):
        if response.status != 200:
            return response, [await response.json()]
        async with asyncio.timeout(60):
            async for line in response.content:
                frames.append(json.loads(line))
                if frames[-1]["event"] == "chat" and frames[-1]["payload"]["state"] == "final":
                    break
    return response, frames


async def test_the_feed_over_http_goes_on_where_it_broke_off(gateway: InProcessGateway, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("one two three four", hold=held, hold_after=2), Reply("again"))
    async with gateway.client() as client:
        last, epoch = await half_a_reply(client)
        held.set()
        await client.call("agent.wait", {"runId": "r", "timeoutMs": 50_000})
    response, frames = await feed(gateway, f"sessionKey=main&afterSeq={last}&epoch={epoch}")
    assert response.headers["X-OpenClaw-Epoch"] == epoch and "X-OpenClaw-Gap" not in response.headers
    assert frames[0]["seq"] > last and text_of(frames[-1]["payload"]) == "one two three four"
    await gateway.stop()
    await gateway.start()
    async with gateway.client() as client:
        await client.chat("anew", run_id="n")
    response, frames = await feed(gateway, f"sessionKey=main&afterSeq={last}&epoch={epoch}")
    assert response.headers["X-OpenClaw-Gap"] == "the Gateway was restarted since"
    assert text_of(frames[-1]["payload"]) == "again"
    response, (error,) = await feed(gateway, "afterSeq=soon")
    assert (response.status, error["error"]["message"]) == (400, "afterSeq must be a sequence number")
