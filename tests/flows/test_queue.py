"""What becomes of a message that arrives while its session is busy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]


@pytest.fixture
def start(tmp_path: Path, models: ModelServer) -> Start:
    @asynccontextmanager
    async def gateway(**queue: Any) -> AsyncIterator[InProcessGateway]:
        config = model_config(models.base_url, models.api_key, messages={"queue": queue})
        async with InProcessGateway(tmp_path / "state", config) as process:
            yield process

    return gateway


async def send(client: WireClient, *names: str) -> list[dict[str, Any]]:
    return [
        await client.call("chat.send", {"sessionKey": "main", "message": name, "idempotencyKey": name})
        for name in names
    ]


def user_texts(models: ModelServer, request: int) -> list[str]:
    messages = models.requests[request].body["messages"]
    return [
        block["text"]
        for message in messages
        if message["role"] == "user"
        for block in message["content"]
        if block["type"] == "text" and not block["text"].startswith("<openclaw-facts>")
    ]


async def test_followup_answers_each_in_order_under_its_own_run(start: Start, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("A", hold=held, hold_after=0), Reply("B"), Reply("C"))
    async with start(mode="followup") as gateway, gateway.client() as client:
        acks = await send(client, "a", "b", "c")
        held.set()
        assert [text_of(await client.ending(name)) for name in ("a", "b", "c")] == ["A", "B", "C"]
    assert [ack.get("queued", False) for ack in acks] == [False, True, True]


async def test_collect_merges_what_came_meanwhile_into_one_turn(start: Start, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("A", hold=held, hold_after=0), Reply("both"))
    async with start(mode="collect", debounceMs=0) as gateway, gateway.client() as client:
        await send(client, "a")
        await models.wait_for_requests(1)
        await send(client, "b", "c")
        held.set()
        assert text_of(await client.ending("c")) == "both"
        merged = await client.ending("b")
        assert ("message" in merged, merged["queued"], merged["answeredBy"]) == (False, True, "c")
        assert (await client.call("agent.wait", {"runId": "b"}))["status"] == "ok"
    prompt = user_texts(models, 1)[-1]
    assert prompt.startswith("[Queued messages while agent was busy]\n\n---\nQueued #1\n[")
    assert "] b\n[message_id: b]\n\n---\nQueued #2\n[" in prompt
    assert prompt.endswith("] c\n[message_id: c]")
    assert len(models.requests) == 2


async def test_a_full_queue_tells_the_agent_what_it_missed(start: Start, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("A", hold=held, hold_after=0), Reply("rest"))
    async with start(mode="collect", debounceMs=0, cap=2) as gateway, gateway.client() as client:
        await send(client, "a")
        await models.wait_for_requests(1)
        await send(client, "first dropped", "second", "third")
        assert (await client.ending("first dropped"))["state"] == "aborted"
        held.set()
        assert text_of(await client.ending("third")) == "rest"
    prompt = user_texts(models, 1)[-1]
    assert "[Queue overflow] Dropped 1 message due to cap.\nSummary:\n- first dropped\n\n" in prompt


async def test_a_full_queue_that_refuses_says_so_at_once(start: Start, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("A", hold=held, hold_after=0), Reply("B"))
    async with start(mode="followup", cap=1, drop="new") as gateway, gateway.client() as client:
        await send(client, "a")
        await models.wait_for_requests(1)
        await send(client, "b", "c")
        refused = await client.ending("c")
        assert refused["state"] == "error"
        assert "waiting already" in refused["errorMessage"]
        held.set()
        assert text_of(await client.ending("b")) == "B"


async def test_interrupt_stops_the_run_and_answers_the_newest(start: Start, models: ModelServer) -> None:
    models.queue(Reply("never", hold=asyncio.Event(), hold_after=0), Reply("B"))
    async with start(mode="interrupt") as gateway, gateway.client() as client:
        await send(client, "a")
        await models.wait_for_requests(1)
        await send(client, "b")
        assert (await client.ending("a"))["stopReason"] == "stop", "clients know no other word for it"
        assert text_of(await client.ending("b")) == "B"


async def test_steered_words_land_at_the_next_tool_boundary(start: Start, models: ModelServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.02; done; echo done"
    models.queue(
        Reply("", calls=[Call("exec", {"command": wait}), Call("exec", {"command": "echo never"})]), Reply("heard you")
    )
    async with start(mode="steer") as gateway, gateway.client() as client:
        await client.call("sessions.patch", {"key": "main", "verboseLevel": "on"})
        await send(client, "a")
        await client.event(lambda event, payload: event == "agent" and payload["stream"] == "tool")
        await send(client, "do this instead")
        gate.touch()
        assert text_of(await client.ending("a")) == "heard you"
        assert (await client.ending("do this instead"))["answeredBy"] == "a"
        history = await client.call("chat.history", {"sessionKey": "main"})
    roles = [message["role"] for message in history["messages"]]
    assert roles == ["user", "assistant", "toolResult", "toolResult", "user", "assistant"]
    assert history["messages"][3]["content"][0]["text"] == "Skipped due to queued user message."
    assert "do this instead" in json.dumps(models.requests[1].body["messages"][-1])


async def test_words_steered_while_the_answer_streams_are_answered_in_the_same_run(
    start: Start, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("first answer", hold=held, hold_after=1), Reply("second answer"))
    async with start(mode="steer") as gateway, gateway.client() as client:
        await send(client, "a")
        await models.wait_for_requests(1)
        await send(client, "b")
        held.set()
        assert text_of(await client.ending("a")) == "second answer"
        assert (await client.ending("b"))["answeredBy"] == "a"


async def test_stop_clears_what_waits(start: Start, models: ModelServer) -> None:
    models.queue(Reply("never", hold=asyncio.Event(), hold_after=0))
    async with start(mode="followup") as gateway, gateway.client() as client:
        await send(client, "a")
        await models.wait_for_requests(1)
        await send(client, "b", "c")
        answer = await client.call("chat.send", {"sessionKey": "main", "message": "/stop", "idempotencyKey": "s"})
        assert answer["runIds"] == ["a", "b", "c"]
        for name in ("a", "b", "c"):
            assert (await client.ending(name))["state"] == "aborted"
    assert len(models.requests) == 1


async def test_a_limit_on_parallel_runs_is_kept(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["maxConcurrent"] = 2
    held = asyncio.Event()
    for _ in range(4):
        models.queue(Reply("x", hold=held, hold_after=0))
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        for number in range(4):
            params = {"sessionKey": f"s{number}", "message": "hi", "idempotencyKey": f"r{number}"}
            await client.call("chat.send", params)
        await models.wait_for_requests(2)
        await client.call("health")
        assert len(models.requests) == 2
        held.set()
        for number in range(4):
            await client.ending(f"r{number}")
    assert len(models.requests) == 4


async def test_what_waits_survives_a_kill(tmp_path: Path, models: ModelServer) -> None:
    models.queue(Reply("never", hold=asyncio.Event(), hold_after=0))
    config = model_config(models.base_url, models.api_key, messages={"queue": {"mode": "followup"}})
    async with ForkedGateway(tmp_path / "state", config) as gateway:
        async with gateway.client() as client:
            await send(client, "a")
            await models.wait_for_requests(1)
            await send(client, "b", "c")
        gateway.kill()
        models.forget()
        models.queue(Reply("A"), Reply("B"), Reply("C"))
        await gateway.start()
        async with gateway.client() as client:
            for name in ("a", "b", "c"):
                assert (await client.call("agent.wait", {"runId": name, "timeoutMs": 50_000}))["status"] == "ok"
            history = await client.call("chat.history", {"sessionKey": "main"})
    texts = [message["content"][0]["text"] for message in history["messages"]]
    assert texts == ["a", "A", "b", "B", "c", "C"]


async def test_message_right_after_a_stop_does_not_count_as_sent_while_busy(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        models.queue(Reply(text="on and on " * 50, delay_ms=20))
        await client.call("chat.send", {"sessionKey": "main", "message": "tell", "idempotencyKey": "long"})
        await client.event(lambda event, payload: event == "chat" and payload["state"] == "delta")
        await client.call("chat.abort", {"sessionKey": "main"})
        models.reply("short")
        params = {"sessionKey": "main", "message": "be brief", "idempotencyKey": "next"}
        assert await client.call("chat.send", params) == {"runId": "next", "status": "started"}
        assert text_of(await client.ending("next")) == "short"
        assert "Queued" not in json.dumps(models.requests[-1].body["messages"])


@pytest.mark.parametrize("method", ["chat.send", "agent"])
@pytest.mark.parametrize("known", [False, True], ids=["new-session", "known-session"])
async def test_messages_sent_in_one_breath_are_taken_in_the_order_they_were_sent(
    start: Start, models: ModelServer, method: str, known: bool
) -> None:
    async with start(mode="followup") as gateway, gateway.client() as client:
        for number in range(10):
            key = f"n{number}"
            if known:
                await client.chat("hello", key)
            names = [f"{number}{letter}" for letter in "abcde"]
            for name in names:  # Nobody waits for an answer in between.
                await client.send(method, {"sessionKey": key, "message": name, "idempotencyKey": name})
            for name in names:
                await client.call("agent.wait", {"runId": name, "timeoutMs": 50_000})
            kept = (await client.call("messages.list", {"sessionKey": f"agent:main:{key}"}))["messages"]
            assert [row["runId"] for row in reversed(kept)][-5:] == names


async def test_a_command_is_obeyed_before_what_was_sent_right_after_it(start: Start, models: ModelServer) -> None:
    async with start() as gateway, gateway.client() as client:
        for number in range(5):
            key = f"n{number}"
            params = {"sessionKey": key, "message": "/queue followup", "idempotencyKey": f"{number}q"}
            await client.send("chat.send", params)
            await client.send("chat.send", {"sessionKey": key, "message": "/send off", "idempotencyKey": f"{number}o"})
            with pytest.raises(Exception, match="send blocked by session policy"):
                await client.call("chat.send", {"sessionKey": key, "message": "hello", "idempotencyKey": f"{number}h"})
    assert not models.requests


@pytest.mark.parametrize("key", ["main", "new"])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("chat.send", {"message": "stop", "idempotencyKey": "s"}),
        ("chat.abort", {}),
        ("chat.abort", {"runId": "h"}),
    ],
)
async def test_what_stops_a_run_comes_after_the_message_it_was_sent_after(
    start: Start, models: ModelServer, method: str, params: dict[str, Any], key: str
) -> None:
    models.queue(Reply("never said", hold=asyncio.Event(), hold_after=0))
    async with start() as gateway, gateway.client() as client:
        await client.send("chat.send", {"sessionKey": key, "message": "hello", "idempotencyKey": "h"})
        assert (await client.call(method, {"sessionKey": key, **params}))["runIds"] == ["h"]
        assert (await client.call("agent.wait", {"runId": "h", "timeoutMs": 50_000}))["status"] == "error"
