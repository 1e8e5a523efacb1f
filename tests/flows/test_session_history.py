"""Earlier sessions of a chat, listed and brought back through a real Gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support import stored
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply

KEY = "agent:main:work"


async def texts(client: WireClient, key: str = KEY) -> list[tuple[str, str]]:
    answer = await client.call("chat.history", {"sessionKey": key})
    return [(message["role"], message["content"][0]["text"]) for message in answer["messages"]]


async def session_id(client: WireClient, key: str = KEY) -> str:
    return (await client.call("chat.history", {"sessionKey": key}))["sessionId"]


async def archived(client: WireClient, key: str = KEY) -> list[dict[str, Any]]:
    return (await client.call("sessions.archived", {"key": key}))["sessions"]


async def test_a_reset_shows_a_line_in_the_chat_and_resume_brings_the_old_session_back(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("remember me [[reply:I will]]", KEY)
        old = await session_id(client)
        await client.call("sessions.reset", {"key": KEY})
        line = "New session (as asked with a reset). /resume brings the old one back."
        assert await texts(client) == [("system", line)]
        shown = await client.event(lambda event, payload: event == "chat" and payload["runId"].startswith("session-"))
        assert shown["payload"]["message"]["content"][0]["text"] == line

        await client.chat("who am I?", KEY)
        assert "remember me" not in json.dumps(models.requests[-1].body)
        assert "New session" not in json.dumps(models.requests[-1].body["messages"])
        fresh = await session_id(client)
        [earlier] = await archived(client)
        assert (earlier["index"], earlier["sessionId"], earlier["reason"]) == (1, old, "reset")
        assert (earlier["title"], earlier["lastMessagePreview"]) == ("remember me [[reply:I will]]", "I will")

        answer = await client.call("sessions.resume", {"key": KEY})
        assert (answer["sessionId"], answer["previousSessionId"]) == (old, fresh)
        assert answer["marker"].startswith("Back in an earlier session (it ended on ")
        await client.chat("and now?", KEY)
        assert "remember me" in json.dumps(models.requests[-1].body)
        assert [role for role, _ in await texts(client)] == ["user", "assistant", "system", "user", "assistant"]
        assert [one["sessionId"] for one in await archived(client)] == [fresh]


async def test_earlier_sessions_survive_a_restart(gateway_process: ForkedGateway) -> None:
    async with gateway_process.client() as client:
        await client.chat("one", KEY)
        old = await session_id(client)
        await client.call("sessions.reset", {"key": KEY})
    gateway_process.kill()
    await gateway_process.start()
    async with gateway_process.client() as client:
        answer = await client.call("sessions.resume", {"key": KEY, "sessionId": old[:8]})
        assert answer["sessionId"] == old
        assert (await texts(client))[0] == ("user", "one")


async def test_a_session_is_not_taken_away_from_a_run(gateway: InProcessGateway, models: ModelServer) -> None:
    hold = asyncio.Event()
    async with gateway.client() as client:
        await client.chat("one", KEY)
        await client.call("sessions.reset", {"key": KEY})
        models.queue(Reply("at last", hold=hold, hold_after=0))
        await client.call("chat.send", {"sessionKey": KEY, "message": "hi", "idempotencyKey": "r"})
        await models.wait_for_requests(2)
        with pytest.raises(RequestFailed, match="is being answered"):
            await client.call("sessions.resume", {"key": KEY})
        hold.set()
        assert (await client.ending("r"))["state"] == "final"
        assert (await client.call("sessions.resume", {"key": KEY}))["ok"]


async def test_what_cannot_be_resumed_is_refused_in_words(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        for params, words in (
            ({"key": KEY}, "There is no earlier session here to resume."),
            ({"key": KEY, "index": 1, "sessionId": "x"}, "Provide either sessionId or index (not both)"),
        ):
            with pytest.raises(RequestFailed) as failed:
                await client.call("sessions.resume", params)
            assert str(failed.value) == words
        await client.chat("mine", KEY)
        await client.call("sessions.reset", {"key": KEY})
        await client.chat("secret", "agent:main:other")
        other = await session_id(client, "agent:main:other")
        for wanted in (other, "../../etc/passwd", "nothing-like-it"):
            with pytest.raises(RequestFailed, match="No earlier session of this chat is called"):
                await client.call("sessions.resume", {"key": KEY, "sessionId": wanted})
        with pytest.raises(RequestFailed, match="choose 1 to 1"):
            await client.call("sessions.resume", {"key": KEY, "index": 2})


async def test_an_operator_reaches_a_transcript_that_no_chat_remembers(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("long ago", "agent:main:gone")
        lost = await session_id(client, "agent:main:gone")
        await client.call("sessions.delete", {"key": "agent:main:gone", "deleteTranscript": False})
        await client.chat("now", KEY)
        assert (await client.call("sessions.resume", {"key": KEY, "sessionId": lost}))["sessionId"] == lost
        assert (await texts(client))[0] == ("user", "long ago")


async def test_deleting_a_chat_takes_its_earlier_sessions_along(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("one", KEY)
        await client.call("sessions.reset", {"key": KEY})
        await client.chat("two", KEY)
        answer = await client.call("sessions.delete", {"key": KEY})
    assert len(answer["archived"]) == 2
    assert stored.live_transcripts(gateway) == {}


async def test_the_command_line_lists_and_resumes(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("plan the garden", "main")
        old = await session_id(client, "main")
        await client.call("sessions.reset", {"key": "main"})

    async def openclaw(*words: str) -> str:
        done = await gateway.command(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = await openclaw("sessions", "archived")
    assert "plan the garden" in listed and old[:8] in listed
    assert "agent:main:main: Back in an earlier session" in await openclaw("sessions", "resume")
    async with gateway.client() as client:
        assert await session_id(client, "main") == old
