"""What stands in a transcript and is not conversation: notices are for people, internal prompts for the model."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import until
from tests.support.gateway import WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply

GREETING = "A new session was started via /new or /reset"


async def shown(client: WireClient, key: str = "main") -> str:
    """Everything that clients get of a chat: both histories, the preview, the title, the last words, the export."""
    asked = [
        ("chat.history", {"sessionKey": key}),
        ("chat.history", {"sessionKey": key, "format": "messages"}),
        ("sessions.preview", {"keys": [key]}),
        ("sessions.list", {"includeDerivedTitles": True, "includeLastMessage": True}),
        ("sessions.export", {"key": key}),
    ]
    return json.dumps([await client.call(method, params) for method, params in asked], ensure_ascii=False)


def sent(models: ModelServer, number: int = -1) -> str:
    return json.dumps(models.requests[number].body["messages"], ensure_ascii=False)


async def test_answers_to_commands_are_kept_for_people_and_not_sent_to_the_model(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        await client.chat("hello [[reply:Hi.]]")
        cards = [text_of(await client.chat(text)) for text in ("/status", "/context list", "/think low", "/whoami")]
        await client.call("chat.inject", {"sessionKey": "main", "message": "The tests are green.", "label": "CI"})
        await client.chat("and now? [[reply:Now.]]")
        history = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
        session_id = (await client.call("chat.history", {"sessionKey": "main"}))["sessionId"]
    said = [message for message in history if message.get("model") == "gateway-injected"]
    assert [message["content"][0]["text"] for message in said] == [*cards, "[CI]\n\nThe tests are green."]
    assert all(card.splitlines()[0] not in sent(models) for card in cards)
    assert [message["role"] for message in models.requests[-1].body["messages"]] == ["user", "assistant", "user"]
    assert "[CI]\\n\\nThe tests are green." in sent(models), "what a client says in the chat is part of it"
    changes = [line for line in gateway.transcript(session_id) if line["type"] == "model_change"]
    assert len(changes) == 1, "a notice is no change of the model"


def line(own: str, parent: str | None, role: str, text: str, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": [{"type": "text", "text": text}], "timestamp": 1_794_766_939_494, **more}
    moment = "2026-11-15T18:22:19.494Z"
    return {"type": "message", "id": own, "parentId": parent, "timestamp": moment, "message": message}


async def test_older_transcripts_are_read_the_same_way(gateway: InProcessGateway, models: ModelServer) -> None:
    ours = {
        "provider": "openclaw", "model": "gateway-injected", "api": "openai-responses", "stopReason": "stop",
        "usage": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0},
    }  # fmt: skip
    told = [
        line("a1", None, "user", f"{GREETING}. Greet the user in your configured persona."),
        line("a2", "a1", "assistant", "Welcome!", **{**ours, "provider": "mock", "model": "mock-1"}),
        line("a3", "a2", "assistant", "🦞 OpenClaw 2026.2.9 (abc)\n🧠 Model: mock", **ours),
        line("say-4", "a3", "assistant", "Thinking level set to low.", **ours),
        line("a5", "say-4", "assistant", "[Ops]\n\nThe disk is full.", **ours),
        line("a6", "a5", "user", "System: [2026-11-15 18:22:19 UTC] Exec finished (xylophone, code 0)\ndone"),
        line("a7", "a6", "assistant", "It is done.", **{**ours, "provider": "mock", "model": "mock-1"}),
        line("a8", "a7", "user", "System: [2026-11-15 18:22:19 UTC] Restarted.\n\nthank you"),
    ]
    async with gateway.client() as client:
        await client.call("sessions.import", {"key": "agent:main:old", "lines": [json.dumps(item) for item in told]})
        seen = await shown(client, "agent:main:old")
        await client.chat("go on", session_key="agent:main:old")
        found = await client.call("sessions.search", {"query": "xylophone"})
    assert GREETING not in seen and "xylophone" not in seen and not found["results"]
    for text in ("Welcome!", "🦞 OpenClaw", "level set to low", "The disk is full", "It is done.", "thank you"):
        assert text in seen, text
    for text in (GREETING, "Welcome!", "The disk is full", "xylophone", "thank you"):
        assert text in sent(models), text
    assert "🦞" not in sent(models) and "level set to low" not in sent(models)


async def test_the_prompt_that_makes_the_agent_greet_is_shown_to_nobody(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    async with gateway.client() as client:
        models.reply("Welcome back!")
        await client.chat("/new")
        await client.chat("plan my day [[reply:Gladly.]]")
        seen = await shown(client)
        found = await client.call("sessions.search", {"query": '"greet the person"'})
        session_id = (await client.call("chat.history", {"sessionKey": "main"}))["sessionId"]
    assert "Welcome back!" in seen and "plan my day" in seen
    assert GREETING not in seen and not found["results"]
    assert GREETING in sent(models), "the model still sees it"
    [entry] = [item for item in gateway.transcript(session_id) if GREETING in json.dumps(item)]
    assert (entry["type"], entry["display"]) == ("custom_message", False)


@pytest.mark.parametrize("mode", ["followup", "collect", "steer"])
async def test_what_wakes_the_agent_is_shown_to_nobody(tmp_path: Path, models: ModelServer, mode: str) -> None:
    """A command ends while another turn runs, and one ends while nothing runs."""
    config = model_config(models.base_url, models.api_key, messages={"queue": {"mode": mode, "debounceMs": 0}})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        held = asyncio.Event()
        models.queue(Reply("One.", hold=held, hold_after=0))
        await client.call("chat.send", {"sessionKey": "main", "message": "first", "idempotencyKey": "first"})
        await models.wait_for_requests(1)
        wake = gateway.gateway.pipeline.wake
        await wake("first", "Exec finished (xylophone, code 0)", str(uuid.uuid4()))
        await client.call("chat.send", {"sessionKey": "main", "message": "second", "idempotencyKey": "second"})
        held.set()
        await client.ending("second")
        await wake("first", "Exec finished (marimba, code 0)", str(uuid.uuid4()))
        await until(lambda: "marimba" in sent(models))
        await until(lambda: models.active == 0)
        await client.chat("third")
        seen = await shown(client)
    assert "first" in seen and "second" in seen and "third" in seen
    assert "xylophone" not in seen and "marimba" not in seen
    for text in ("xylophone", "marimba"):
        assert f"Exec finished ({text}, code 0)" in sent(models), "the model still sees it"
