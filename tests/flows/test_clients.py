"""What existing terminals and web pages read and send: the small facts on which their screens depend."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from openclaw.inbound.commands.registry import COMMANDS
from tests.support.gateway import TOKEN, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply

TERMINAL = {"id": "gateway-client", "displayName": "openclaw-tui", "version": "1", "platform": "linux", "mode": "ui"}
PAGE = {"id": "test", "displayName": "tester", "version": "1", "platform": "linux", "mode": "test"}


async def send(client: WireClient, text: str, run_id: str) -> dict[str, Any]:
    return await client.call("chat.send", {"sessionKey": "main", "message": text, "idempotencyKey": run_id})


# Stopping


@pytest.mark.parametrize("mode", ["followup", "collect", "steer"])
async def test_escape_in_a_terminal_stops_what_runs_and_what_waited_is_answered(
    tmp_path: Path, models: ModelServer, mode: str
) -> None:
    """A terminal names the message it sent last, though what it shows is the run before."""
    models.queue(Reply("on and on", hold=asyncio.Event(), hold_after=1), Reply("answered"))
    config = model_config(models.base_url, models.api_key, messages={"queue": {"mode": mode, "debounceMs": 0}})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client(client=TERMINAL) as client:
        await send(client, "first", "a")
        await client.event(lambda event, payload: event == "chat" and payload["state"] == "delta")
        await send(client, "second", "b")
        stopped = await client.call("chat.abort", {"sessionKey": "main", "runId": "b"})
        assert stopped == {"ok": True, "aborted": True, "runIds": ["a"]}
        assert (await client.ending("a"))["state"] == "aborted"
        assert text_of(await client.ending("b")) == "answered"


async def test_a_client_that_stops_a_waiting_message_stops_it_and_what_it_waits_for(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    models.queue(Reply("on and on", hold=asyncio.Event(), hold_after=0))
    async with gateway.client() as client:
        await send(client, "first", "a")
        await models.wait_for_requests(1)
        await send(client, "second", "b")
        stopped = await client.call("chat.abort", {"sessionKey": "main", "runId": "b"})
        assert sorted(stopped["runIds"]) == ["a", "b"]
        assert [(await client.ending(run))["state"] for run in ("a", "b")] == ["aborted", "aborted"]
    assert len(models.requests) == 1


async def test_stopping_what_has_ended_stops_nothing(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("hello", run_id="over")
        models.queue(Reply("on and on", hold=asyncio.Event(), hold_after=0))
        await send(client, "first", "a")
        for run_id in ("over", "never-heard-of"):
            answer = await client.call("chat.abort", {"sessionKey": "main", "runId": run_id})
            assert answer == {"ok": True, "aborted": False, "runIds": []}


# Acknowledgement before answer

QUICK = [
    f"/{command.name}" for command in COMMANDS if not command.slow and command.name not in ("new", "reset", "stop")
]


async def until_final(socket: aiohttp.ClientWebSocketResponse, run_id: str, *, answers_pings: bool) -> list[str]:
    """What the client reads of the run, up to its answer."""
    kinds: list[str] = []
    async with asyncio.timeout(60):
        while "final" not in kinds:
            message = await socket.receive()
            if message.type is aiohttp.WSMsgType.PING:
                kinds.append("ping")
                if answers_pings:
                    await socket.pong(message.data)
                continue
            frame = json.loads(message.data)
            if frame["type"] == "res":
                kinds.append("res")
            elif frame["event"] == "chat" and frame["payload"]["runId"] == run_id:
                kinds.append(frame["payload"]["state"])
    return kinds


@pytest.mark.parametrize(("answers_pings", "texts"), [(True, QUICK), (False, ["/whoami"])])
async def test_a_client_has_read_the_acknowledgement_of_a_command_before_its_answer_is_sent(
    gateway: InProcessGateway, answers_pings: bool, texts: list[str]
) -> None:
    url = gateway.url.replace("http", "ws")
    async with aiohttp.ClientSession() as session, session.ws_connect(url, autoping=False) as socket:
        await socket.receive()
        params = {"minProtocol": 3, "maxProtocol": 3, "client": PAGE, "auth": {"token": TOKEN}}
        await socket.send_json({"type": "req", "id": "c", "method": "connect", "params": params})
        await socket.receive()
        for number, text in enumerate(texts):
            sent = {"sessionKey": "main", "message": text, "idempotencyKey": f"q{number}"}
            await socket.send_json({"type": "req", "id": str(number), "method": "chat.send", "params": sent})
            seen = await until_final(socket, f"q{number}", answers_pings=answers_pings)
            assert seen == ["res", "ping", "final"], text


async def test_a_stream_over_http_has_the_acknowledgement_before_the_answer(gateway: InProcessGateway) -> None:
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        for number, text in enumerate(QUICK):
            sent = {"sessionKey": "main", "message": text, "idempotencyKey": f"h{number}"}
            body = {"method": "chat.send", "params": sent, "stream": True}
            async with session.post(f"{gateway.url}/__openclaw__/rpc", json=body) as response:
                frames = [json.loads(line) async for line in response.content if line.strip()]
            kinds = [frame["type"] for frame in frames if frame["type"] == "res" or frame["event"] == "chat"]
            assert kinds == ["res", "event"], text


# What lists and pages show


async def test_a_web_chat_is_listed_under_the_name_of_its_client(gateway: InProcessGateway) -> None:
    async with gateway.client(client=PAGE) as client:
        await client.chat("hello")
        row = (await client.call("sessions.list", {}))["sessions"][0]
        assert row["displayName"] == "tester"
        assert row["origin"] == {"provider": "webchat", "surface": "webchat", "chatType": "direct", "label": "tester"}
        assert (await client.call("sessions.list", {"search": "TESTER"}))["count"] == 1
        await client.call("sessions.patch", {"key": "main", "label": "Home"})
        assert (await client.call("sessions.list", {}))["sessions"][0]["displayName"] == "Home"
        await client.chat("hello", "agent:main:signal:group:Abc")
        rows = {row["key"]: row for row in (await client.call("sessions.list", {}))["sessions"]}
        assert rows["agent:main:signal:group:abc"]["displayName"] == "signal:g-abc"
    async with gateway.client(client=TERMINAL) as client:
        await client.chat("hello")
        rows = {row["key"]: row for row in (await client.call("sessions.list", {}))["sessions"]}
        assert rows["agent:main:main"]["origin"]["label"] == "openclaw-tui"


async def test_a_client_without_a_name_leaves_the_origin_unlabelled(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hello")
        row = (await client.call("sessions.list", {}))["sessions"][0]
        assert row["origin"] == {"provider": "webchat", "surface": "webchat", "chatType": "direct"}
        assert "displayName" not in row


async def test_usage_rows_tell_when_and_with_which_model(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply("", calls=[Call("read", {"path": "AGENTS.md"})]), Reply("Read."), Reply("Hi."))
    async with gateway.client() as client:
        await client.chat("look")
        await client.chat("hello")
        answer = await client.call("sessions.usage", {})
        (session,) = answer["sessions"]
        usage, day = session["usage"], answer["endDate"]
        messages = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
    times = [message["timestamp"] for message in messages]
    assert (usage["firstActivity"], usage["lastActivity"]) == (min(times), max(times))
    assert usage["durationMs"] == usage["lastActivity"] - usage["firstActivity"]
    counts = {"total": 5, "user": 2, "assistant": 3, "toolCalls": 1, "toolResults": 1, "errors": 0}
    assert usage["dailyMessageCounts"] == [{"date": day, **counts}]
    assert usage["messageCounts"] == counts
    (model,) = usage["dailyModelUsage"]
    expected = {"date": day, "provider": "mock", "model": "mock-1", "count": 3, "tokens": usage["totalTokens"]}
    assert expected.items() <= model.items()
    assert (usage["sessionId"], Path(usage["sessionFile"]).suffix) == (session["sessionId"], ".jsonl")


async def test_markers_in_the_history_have_the_time_as_messages_have_it(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("remember this " + "and that " * 400)
        await client.chat("/new")
        await client.chat("hello")
        await client.chat("/compact")
        messages = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
    assert any("__openclaw" in message for message in messages)
    assert all(isinstance(message["timestamp"], int) for message in messages)


async def test_the_logs_page_finds_subsystem_and_message(gateway_process: Any) -> None:
    async with gateway_process.client() as client:
        await client.chat("/queue followup")
        lines = (await client.call("logs.tail", {}))["lines"]
    parsed = [json.loads(line) for line in lines]
    assert parsed
    for line in parsed:
        assert (line["0"], line["1"]) == (line["subsystem"], line["message"])
        assert line["_meta"]["logLevelName"].lower() in ("trace", "debug", "info", "warn", "error", "fatal")
        assert line["_meta"]["date"] == line["time"]


async def test_the_long_term_notes_are_among_the_files_of_an_agent(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:

        async def notes() -> dict[str, Any]:
            listed = (await client.call("agents.files.list", {"agentId": "main"}))["files"]
            (found,) = [file for file in listed if file["name"].lower() == "memory.md"]
            return found

        assert ((await notes())["name"], (await notes())["missing"]) == ("MEMORY.md", True)
        got = await client.call("agents.files.get", {"agentId": "main", "name": "MEMORY.md"})
        assert got["file"]["missing"] is True
        await client.call("agents.files.set", {"agentId": "main", "name": "MEMORY.md", "content": "- likes tea"})
        assert ((await notes())["name"], (await notes())["size"]) == ("MEMORY.md", 11)
        got = await client.call("agents.files.get", {"agentId": "main", "name": "MEMORY.md"})
        assert got["file"]["content"] == "- likes tea"
        workspace = Path(got["workspace"])
        (workspace / "MEMORY.md").rename(workspace / "memory.md")
        assert ((await notes())["name"], (await notes())["missing"]) == ("memory.md", False)


async def test_whoami_tells_the_client_its_identity(gateway: InProcessGateway) -> None:
    async with gateway.client(client=PAGE) as client:
        told = text_of(await client.chat("/whoami")).splitlines()
    assert told == ["🧭 Identity", "Channel: webchat", "User id: test", "Username: @tester", "AllowFrom: test"]


async def test_every_vendors_models_can_be_chosen_from(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        rows = (await client.call("models.list", {}))["models"]
    assert {"anthropic", "openai", "google", "xai", "mistral", "groq", "openrouter", "zai", "minimax", "mock"} <= {
        row["provider"] for row in rows
    }
    assert len(rows) > 500
    assert [row["id"] for row in rows if row["provider"] == "mock" and row["available"]] == ["mock-1"]
