"""However the model's words arrive, nobody reads a token or a thought: not in an event, a door, a channel or a view.

Ten thousand: ``OPENCLAW_SPLIT_CASES=10000 pytest tests/flows/test_silence_splits.py``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.gateway import TOKEN, WireClient, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

CASES = int(os.environ.get("OPENCLAW_SPLIT_CASES", "24"))
US, ANN = "+15550000001", "+15550000042"
HIDDEN = ("Ω", "NO_REPLY", "HEARTBEAT_OK", "<think", "</think", "<final", "[[reply_to")
WORDS = ["fine ", "so ", "is it. ", "\n\n", "- item\n", "`code` ", "1 < 2 ", "NOW ", "HEAR ", "**b** ", "[[x]] ", "NO "]
SECRETS = ["Ω", " Ω\n", "`Ω", "```\nΩ", "NO_REPLY Ω", "<b>Ω", "HEARTBEAT_OK Ω"]
ENDS = ["", "", " NO_REPLY", "\nNO_REPLY.", " HEARTBEAT_OK", " **NO_REPLY**", "<think>Ω", " [[reply_to:7]]"]
STARTS = ["", "", "", "NO_REPLY.", "NO_REPLY ", "HEARTBEAT_OK ", "[[reply_to_current]] "]


def answer(chance: random.Random) -> str:
    words: list[str] = [chance.choice(STARTS)]
    for _ in range(chance.randrange(8)):
        if chance.random() < 0.3:
            name = chance.choice(["think", "Thinking", "thought", "antthinking"])
            words.append(f"<{name}>{''.join(chance.choices(SECRETS, k=chance.randint(1, 3)))}</{name}>")
        else:
            words.append(chance.choice(WORDS))
    return "".join([*words, chance.choice(ENDS)])


def cut(text: str, chance: random.Random) -> list[str]:
    places = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randint(0, 12))))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    return [piece for piece in pieces if piece]


async def through_http(http: aiohttp.ClientSession, url: str, path: str, session: str) -> str:
    said = {"messages": [{"role": "user", "content": "go on"}]} if "chat" in path else {"input": "go on"}
    headers = {"Authorization": f"Bearer {TOKEN}", "x-openclaw-session-key": session}
    async with http.post(url + path, json={"model": "openclaw", "stream": True, **said}, headers=headers) as response:
        assert response.status == 200
        return await response.text()


async def views(client: WireClient, sessions: list[str]) -> list[Any]:
    """Everything there is to read of a session, apart from the model's own."""
    seen: list[Any] = [
        await client.call("sessions.list", {"includeLastMessage": True, "includeDerivedTitles": True}),
        await client.call("sessions.preview", {"keys": sessions}),
        await client.call("sessions.search", {"query": "fine"}),
        await client.call("sessions.search", {"query": "Ω"}),
    ]
    listed = (await client.call("messages.list", {}))["messages"]
    # The reason may say by which word the model was silent; that is for the owner.
    seen.append([{name: value for name, value in row.items() if name != "reason"} for row in listed])
    for key in sessions:
        seen.append(await client.call("chat.history", {"sessionKey": key, "limit": 1000}))
        seen.append(await client.call("chat.history", {"sessionKey": key, "limit": 1000, "format": "messages"}))
        seen.append(await client.call("sessions.export", {"key": key}))
    return seen


def check(seen: Any) -> None:
    text = json.dumps(seen, ensure_ascii=False)
    assert not [word for word in HIDDEN if word in text]


async def test_however_words_are_cut_no_token_and_no_thought_is_read_anywhere(
    tmp_path: Path, models: ModelServer
) -> None:
    heard = 0
    chance = random.Random(int(os.environ.get("OPENCLAW_SPLIT_SEED", "5")))
    async with SignalDaemon(US) as signal, aiohttp.ClientSession() as http:
        section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
        config = model_config(models.base_url, models.api_key, channels={"signal": section})
        config["gateway"]["http"] = {
            "endpoints": {name: {"enabled": True} for name in ("chatCompletions", "responses")}
        }
        async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
            await signal.connected()
            sessions = ["agent:main:web", "agent:main:chat", "agent:main:responses", "agent:main:main"]
            for number in range(CASES):
                text = answer(chance)
                models.queue(Reply(text=text, pieces=cut(text, chance)))
                asked = len(models.requests)
                match number % 4:
                    case 0:
                        check(await client.chat("go on", session_key=sessions[0]))
                    case 1:
                        check(await through_http(http, gateway.url, "/v1/chat/completions", sessions[1]))
                    case 2:
                        check(await through_http(http, gateway.url, "/v1/responses", sessions[2]))
                    case _:
                        await signal.say("go on", sender=ANN)
                        await models.wait_for_requests(asked + 1)
                        await idle(client, sessions[3])
                        heard += len(signal.of("send"))
                if number % 40 == 39 or number == CASES - 1:
                    events = [frame for frame in client.events if frame["event"] in ("agent", "chat")]
                    check([events, signal.of("send"), await views(client, sessions)])
                    client.events.clear()
                    signal.calls.clear()
                    for key in sessions:
                        await client.call("sessions.reset", {"key": key})
            assert heard, "something was said on the channel"
            assert not [request for request in models.requests if request.error]


async def idle(client: WireClient, session: str) -> None:
    """Until the session's last message has had its end."""
    async with asyncio.timeout(60):
        while True:
            listed = (await client.call("messages.list", {"sessionKey": session, "limit": 1}))["messages"]
            if listed and listed[0]["endedAt"]:
                return
            await asyncio.sleep(0.002)
