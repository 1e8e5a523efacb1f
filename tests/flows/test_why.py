"""A real Gateway explains what became of each message."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply


async def why(client: WireClient, ref: str | int) -> dict[str, Any]:
    return await client.call("messages.why", {"ref": str(ref)})


async def history(client: WireClient, ref: str | int) -> str:
    return "\n".join((await why(client, ref))["story"])


async def send(client: WireClient, *names: str, key: str = "main") -> None:
    for name in names:
        await client.call("chat.send", {"sessionKey": key, "message": name, "idempotencyKey": name})


async def test_an_answered_message_tells_its_story_by_any_of_its_names(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    models.queue(Reply("", calls=[Call("read", {"path": "missing.txt"})]), Reply("There is no such file."))
    async with gateway.client() as client:
        await client.chat("look", run_id="run-one-1234")
        told = await why(client, "run-one-1234")
        assert told["story"][1].startswith("It ran on mock/mock-1 for ")
        assert told["story"][2] == "It called read once (failed)."
        assert told["story"][3].endswith(": “There is no such file.”")
        message = told["message"]
        assert (told["kind"], message["state"], message["text"]) == ("message", "answered", "look")
        assert [change["state"] for change in message["changes"]] == ["accepted", "running", "answered"]
        assert [(tool["name"], tool["ok"]) for tool in message["toolCalls"]] == [("read", False)]
        for name in (message["id"], f"#{message['id']}", "run-one"):
            assert (await why(client, name))["message"] == message
        assert await client.call("messages.get", {"id": message["id"]}) == message
        assert await client.call("messages.get", {"runId": "run-one-1234"}) == message
        session = await why(client, "main")
        assert (session["kind"], session["sessionKey"]) == ("session", "agent:main:main")
        assert (await why(client, session["sessionId"]))["messages"] == session["messages"]
        await client.call("sessions.patch", {"key": "main", "label": "Holiday"})
        assert (await why(client, "Holiday"))["story"] == session["story"]
        assert "“look”: “There is no such file.” after " in session["story"][0]


async def test_a_message_that_failed_says_because_of_what(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply(status=401, message="this key was revoked"))
    async with gateway.client() as client:
        await client.chat("hi", run_id="bad")
        told = await history(client, "bad")
        assert "\nFailed on " in told
        assert "revoked" in told or "key" in told


async def test_messages_that_waited_were_collected_or_stopped_say_so(tmp_path: Path, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("A", hold=held, hold_after=0), Reply("both"))
    queue = {"queue": {"mode": "collect", "debounceMs": 0}}
    config = model_config(models.base_url, models.api_key, messages=queue)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await send(client, "first")
        await models.wait_for_requests(1)
        await send(client, "second", "third")
        assert "It has been waiting for " in await history(client, "second")
        assert "It has been running for " in await history(client, "first")
        running = await client.call("messages.list", {"state": "running"})
        assert [row["runId"] for row in running["messages"]] == ["first"]
        held.set()
        await client.ending("third")
        told = await why(client, "second")
        assert told["story"][-1].endswith("in run third.")
        assert told["answeredBy"]["message"]["runId"] == "third"
        assert any(line.endswith("“both”") for line in told["answeredBy"]["story"])
        assert "It waited " in await history(client, "third")

        models.queue(Reply("never", hold=asyncio.Event(), hold_after=0))
        await send(client, "fourth")
        await models.wait_for_requests(3)
        await client.call("chat.abort", {"sessionKey": "main", "runId": "fourth"})
        await client.ending("fourth")
        assert (await client.call("agent.wait", {"runId": "fourth", "timeoutMs": 50_000}))["status"] == "error"
        assert ": a client asked for it." in await history(client, "fourth")
        listed = await client.call("messages.list", {"sessionKey": "main", "limit": 2})
        assert [row["runId"] for row in listed["messages"]] == ["fourth", "third"]


async def test_a_tool_call_cut_short_by_a_kill_is_told_as_not_repeated(
    gateway_process: ForkedGateway, models: ModelServer, tmp_path: Path
) -> None:
    began, bell = tmp_path / "began", tmp_path / "bell"
    os.mkfifo(bell)
    command = f"echo x >> {began}; echo > {bell}; sleep 20"
    models.queue(Reply("", calls=[Call("exec", {"command": command})]), Reply("I will check."))
    async with gateway_process.client() as client:
        await send(client, "work")
        await asyncio.to_thread(bell.read_text)
    gateway_process.kill()
    await gateway_process.start()
    async with gateway_process.client() as client:
        assert (await client.call("agent.wait", {"runId": "work", "timeoutMs": 50_000}))["status"] == "ok"
        told = await history(client, "work")
    assert "The Gateway stopped once while it worked on it and took it up again on " in told
    assert "It called exec once (interrupted by a restart, not repeated)." in told
    assert told.endswith("is kept in the session.")
    assert began.read_text() == "x\n"


async def test_the_command_tells_it_in_the_terminal(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("hello [[reply:Hi!]]", run_id="abc-1")
        await client.chat("again [[reply:Ho!]]", run_id="abd-2")
    shown = await gateway.command("why", "abc")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[0].endswith("(run abc-1): answered")
    assert any(line.startswith("  - Answered on ") and line.endswith("“Hi!”") for line in lines)
    session = (await gateway.command("why", "main")).stdout
    assert session.splitlines()[0].startswith("Session agent:main:main (id ")
    assert "“Hi!” after " in session
    as_json = json.loads((await gateway.command("why", "abd-2", "--json")).stdout)
    assert (as_json["kind"], as_json["message"]["reply"]) == ("message", "Ho!")
    several = await gateway.command("why", "ab")
    assert (several.returncode, several.stdout) == (1, "")
    assert several.stderr.startswith('"ab" is how several runs begin: abc-1, abd-2.')
    unknown = await gateway.command("why", "nothing-like-it")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith('Nothing is known of "nothing-like-it"')
    assert "example:\n  openclaw why " in (await gateway.command("why", "--help")).stdout


async def test_sessions_that_were_reset_or_deleted_are_still_explained(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("before [[reply:one]]", run_id="r1", session_key="agent:main:side")
        earlier = (await why(client, "agent:main:side"))["sessionId"]
        await client.call("sessions.reset", {"key": "agent:main:side"})
        await client.chat("after [[reply:two]]", run_id="r2", session_key="agent:main:side")
        told = await why(client, earlier)
        assert [message["runId"] for message in told["messages"]] == ["r1"]
        await client.call("sessions.delete", {"key": "agent:main:side"})
        told = await why(client, "agent:main:side")
        assert [message["runId"] for message in told["messages"]] == ["r1", "r2"]


NOT_THERE: list[tuple[str, dict[str, Any], str]] = [
    ("messages.get", {}, "Provide either id or runId"),
    ("messages.get", {"id": 1, "runId": "x"}, "Provide either id or runId"),
    ("messages.get", {"id": 999}, "No message found: 999"),
    ("messages.get", {"runId": "x"}, "No message found: x"),
    ("messages.get", {"id": 10**30}, "invalid messages.get params"),
    ("messages.list", {"state": "lost"}, "invalid messages.list params"),
    ("messages.why", {"ref": "9" * 40}, "Nothing is known of"),
    ("messages.why", {"ref": "  "}, "Nothing is known of"),
    ("messages.why", {"ref": "%"}, "Nothing is known of"),
]


async def test_what_cannot_be_found_is_named(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for method, params, problem in NOT_THERE:
            with pytest.raises(RequestFailed, match=problem):
                await client.call(method, params)


async def test_reading_the_ledger_needs_only_the_right_to_read(gateway: InProcessGateway) -> None:
    async with gateway.client(scopes=["operator.read"]) as client:
        assert (await client.call("messages.list", {}))["messages"] == []
        assert (await client.call("events.replay", {"afterSeq": client.hello["server"]["seq"]}))["ok"] is True
    async with gateway.client(scopes=["operator.pairing"]) as client:
        with pytest.raises(RequestFailed, match="missing scope"):
            await client.call("messages.list", {})
