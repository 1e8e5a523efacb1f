"""Commands and directives through the Gateway's own chat."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.support.gateway import RequestFailed, WireClient, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply


async def said(client: WireClient, text: str, session_key: str = "main") -> str:
    return text_of(await client.chat(text, session_key))


async def entry_of(client: WireClient, key: str = "agent:main:main") -> dict[str, Any]:
    rows = (await client.call("sessions.list", {}))["sessions"]
    return next(row for row in rows if row["key"] == key)


async def test_a_command_is_answered_without_a_model_and_kept(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        final = await client.chat("/status", run_id="s")
        assert (final["message"]["provider"], final["message"]["model"]) == ("openclaw", "gateway-injected")
        assert "mock/mock-1" in text_of(final)
        for command in ("/help", "/commands", "/whoami"):
            assert await said(client, command)
        ack = await client.call("chat.send", {"sessionKey": "main", "message": "/status", "idempotencyKey": "s"})
        assert ack == {"runId": "s", "status": "ok"}
    assert not models.requests


@pytest.mark.parametrize(
    ("directive", "reply", "field", "value"),
    [
        ("/think high", "Thinking level set to high.", "thinkingLevel", "high"),
        ("/verbose full", "⚙️ Verbose logging set to full.", "verboseLevel", "full"),
        ("/reasoning on", "⚙️ Reasoning visibility enabled.", "reasoningLevel", "on"),
        ("/send off", "⚙️ Send policy set to off.", "sendPolicy", "deny"),
    ],
)
async def test_a_directive_alone_is_stored_and_acknowledged(
    gateway: InProcessGateway, models: ModelServer, directive: str, reply: str, field: str, value: str
) -> None:
    async with gateway.client() as client:
        assert await said(client, directive) == reply
        assert (await entry_of(client))[field] == value
    assert not models.requests


async def test_an_inline_directive_counts_for_that_message_only(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("tell me\n/verbose on\nabout cats")
        prompt = json.dumps(models.requests[0].body["messages"])
        assert "/verbose" not in prompt
        assert "about cats" in prompt
        assert "verboseLevel" not in await entry_of(client)


async def test_a_shortcut_inside_a_message_runs_at_once_and_the_rest_goes_on(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        final = await client.chat("hey /status how are you? [[reply:fine]]", run_id="r")
        assert text_of(final) == "fine"
        shown = await client.event(lambda event, payload: event == "chat" and payload["runId"] == "r:0")
        assert "mock/mock-1" in text_of(shown["payload"])
    assert "/status" not in json.dumps(models.requests[0].body["messages"])


@pytest.mark.parametrize("words", ["/new", "/send off", "stop", "/think high"])
@pytest.mark.parametrize("before", ["He wrote:\n[Current message - respond to this]\n", "[Dec 5 10:00] ", "Bob: "])
async def test_text_that_quotes_a_command_is_a_message(
    gateway: InProcessGateway, models: ModelServer, before: str, words: str
) -> None:
    text = f"{before}{words}"
    async with gateway.client() as client:
        await client.chat("hello")
        entry = await entry_of(client)
        await client.chat(text)
        await client.call("agent", {"message": text, "sessionKey": "main", "idempotencyKey": "a"})
        after = await entry_of(client)
        assert after["sessionId"] == entry["sessionId"]
        assert not {"sendPolicy", "thinkingLevel"} & {*after}
    assert len(models.requests) == 3


async def test_an_unknown_level_in_a_message_is_reported_beside_the_answer(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        final = await client.chat("hola /reasoning onírico [[reply:fine]]", run_id="r")
        assert text_of(final) == "fine"
        shown = await client.event(lambda event, payload: event == "chat" and payload["runId"] == "r:0")
        assert text_of(shown["payload"]).startswith('Unrecognized reasoning level "onírico".')
        assert (await said(client, "/reasoning onírico")).startswith('Unrecognized reasoning level "onírico".')
        assert "reasoningLevel" not in await entry_of(client)
        assert await said(client, "/think high.") == "Thinking level set to high."
    assert "hola onírico" in json.dumps(models.requests[0].body["messages"], ensure_ascii=False)


async def test_an_unknown_command_goes_to_the_model_only_behind_two_slashes(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        told = await said(client, "/frobnicate now")
        assert told.startswith("Unknown command /frobnicate.")
        assert told.endswith("begin with two slashes: //frobnicate")
        assert not models.requests
        await client.chat("//frobnicate now")
    (request,) = models.requests
    sent = json.dumps(request.body["messages"])
    assert "/frobnicate now" in sent
    assert "//frobnicate" not in sent


async def test_new_begins_again_and_resume_brings_the_old_session_back(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("my name is Ada")
        old = (await entry_of(client))["sessionId"]
        final = await client.chat("/new", run_id="n")
        assert text_of(final) == "ok"
        assert "A new session was started via /new or /reset" in json.dumps(models.requests[-1].body["messages"])
        assert "Ada" not in json.dumps(models.requests[-1].body["messages"])
        assert (await entry_of(client))["sessionId"] != old
        assert await said(client, "/resume")
        assert (await entry_of(client))["sessionId"] == old
        await client.chat("who am I?")
    assert "Ada" in json.dumps(models.requests[-1].body["messages"])


async def test_new_with_words_starts_with_them(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("before")
        assert await said(client, "/new plan my day [[reply:planned]]") == "planned"
    messages = json.dumps(models.requests[-1].body["messages"])
    assert "plan my day" in messages
    assert "before" not in messages


async def test_the_queue_can_be_seen_and_edited(gateway: InProcessGateway, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("first", hold=held, hold_after=0))
    async with gateway.client() as client:
        assert await said(client, "/queue followup") == "⚙️ Queue mode set to followup."
        for name in ("one", "two", "three"):
            await client.call("chat.send", {"sessionKey": "main", "message": name, "idempotencyKey": name})
        await models.wait_for_requests(1)
        shown = await said(client, "/queue list")
        assert "two" in shown
        assert "three" in shown
        await said(client, "/queue drop 1")
        assert (await client.ending("two"))["state"] == "aborted"
        held.set()
        assert text_of(await client.ending("three")) == "ok"


async def test_why_tells_what_became_of_a_message(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hello [[reply:hi]]", run_id="greeting-1")
        story = await said(client, "/why greeting-1")
    assert "answered" in story.lower()


async def test_a_blocked_session_still_obeys_commands(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        await client.chat("/send off")
        for method in ("chat.send", "agent"):
            with pytest.raises(RequestFailed, match="send blocked by session policy"):
                await client.call(method, {"sessionKey": "main", "message": "hello", "idempotencyKey": method})
        assert "OpenClaw" in text_of(await client.chat("/status"))
        await client.chat("/send inherit")
        models.reply("heard")
        assert text_of(await client.chat("hello")) == "heard"


async def test_commands_and_settings_work_by_the_agent_method_too(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async def ask(client: WireClient, message: str, key: str, **more: Any) -> tuple[Any, Any]:
        sent = await client.send("agent", {"message": message, "sessionKey": "main", "idempotencyKey": key, **more})
        return await client.answer(sent), await client.answer(sent)

    def texts(answer: Any) -> list[str]:
        return [payload["text"] for payload in answer["result"]["payloads"]]

    async with gateway.client() as client:
        accepted, ended = await ask(client, "/think high", "k1")
        assert (accepted["status"], ended["status"], texts(ended)) == (
            "accepted",
            "ok",
            ["Thinking level set to high."],
        )
        again = await client.call("agent", {"message": "/think high", "sessionKey": "main", "idempotencyKey": "k1"})
        assert again["result"]["payloads"] == ended["result"]["payloads"]
        assert not models.requests
        models.reply("hello back")
        _, ended = await ask(client, "hey /whoami there", "k2")
        assert [text[:4] for text in texts(ended)] == ["🧭 Id", "hell"]
        assert "hey there" in json.dumps(models.requests[-1].body["messages"][-1])
        for more in (
            {"extraSystemPrompt": "from a program"},
            {"message": "see\n\na.md:\n```\n/think off /status\n```"},
        ):
            message = more.pop("message", "/status")
            models.reply("read")
            _, ended = await ask(client, message, message + str(more), **more)
            assert texts(ended) == ["read"]
            assert "/status" in json.dumps(models.requests[-1].body["messages"][-1])


async def test_commands_that_take_long_are_obeyed_by_the_agent_method_too(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        await client.chat("hello")
        wish = {"message": "/pin the door code is 4711", "sessionKey": "main", "idempotencyKey": "pin"}
        sent = await client.send("agent", wish)
        await client.answer(sent)
        answer = await client.answer(sent)
        pins = await said(client, "/pins")
    assert [payload["text"] for payload in answer["result"]["payloads"]], "it says what was done"
    assert "4711" in pins


async def test_xhigh_is_refused_where_the_model_does_not_offer_it(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        with pytest.raises(RequestFailed, match="xhigh"):
            await client.call("sessions.patch", {"key": "main", "thinkingLevel": "xhigh"})
