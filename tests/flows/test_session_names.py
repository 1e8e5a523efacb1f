"""What names a session of a message: the same answer for ``chat.send``, ``agent`` and the command line."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.sessions.keys import is_session_id
from tests.support import stored
from tests.support.gateway import RequestFailed, WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

GONE = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
HERE = "5a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
CHILD = "6a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d"
DASHED = "a-plan-for-the-garden-and-the-fences"
"""As long as an id and with as many dashes as one may have, but no UUID."""

ENTRIES = {
    "agent:main:work": {"sessionId": HERE, "label": "Office"},
    "agent:main:old": {"sessionId": "imported-7"},
    "agent:main:subagent:child": {"sessionId": CHILD, "spawnedBy": "agent:main:main"},
}

ACCEPTED = [
    ("main", None, "agent:main:main"),
    ("agent:main:main", None, "agent:main:main"),
    ("agent:beta:main", None, "agent:beta:main"),
    ("agent:beta:main", "beta", "agent:beta:main"),
    ("main", "beta", "agent:beta:main"),
    ("work", None, "agent:main:work"),
    ("agent:main:work", None, "agent:main:work"),
    ("Agent:Main:Work", None, "agent:main:work"),
    (HERE, None, "agent:main:work"),
    (HERE.upper(), None, "agent:main:work"),
    ("imported-7", None, "agent:main:old"),
    ("Office", None, "agent:main:work"),
    ("Office", "beta", "agent:beta:office"),
    ("garden", None, "agent:main:garden"),
    ("garden", "beta", "agent:beta:garden"),
    (DASHED, None, f"agent:main:{DASHED}"),
]
REFUSED = [
    (GONE, None, f"No session found: {GONE}"),
    ("agent:main:garden", None, "No session found: agent:main:garden"),
    ("AGENT:main:garden", None, "No session found: AGENT:main:garden"),
    (f"agent:main:{GONE}", None, f"No session found: agent:main:{GONE}"),
    ("agent:ghost:main", None, 'unknown agent id "ghost"; there are: main, beta'),
    ("garden", "ghost", 'unknown agent id "ghost"; there are: main, beta'),
    ("agent:beta:main", "main", 'agent "main" does not match session key agent "beta"'),
    (HERE, "beta", 'agent "beta" does not match session key agent "main"'),
    ("global", None, '"global" is a reserved word and not a session'),
    ("Unknown", None, '"Unknown" is a reserved word and not a session'),
    ("agent:main:global", None, '"agent:main:global" is a reserved word and not a session'),
    ("subagent:child", None, '"subagent:child" is a sub-agent; '),
    ("agent:main:subagent:child", None, '"agent:main:subagent:child" is a sub-agent; '),
    ("agent:main:subagent:new", None, '"agent:main:subagent:new" is a sub-agent; '),
    (CHILD, None, f'"{CHILD}" is a sub-agent; '),
    ("agent:main", None, "invalid session key: "),
]


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["list"] = [{"id": "main"}, {"id": "beta"}]
    gateway = InProcessGateway(tmp_path / "state", config)
    now = int(time.time() * 1000)
    stored.put_sessions(gateway, {key: {**entry, "updatedAt": now} for key, entry in ENTRIES.items()})
    async with gateway:
        yield gateway


async def keys_of(client: WireClient) -> set[str]:
    return {row["key"] for row in (await client.call("sessions.list", {}))["sessions"]}


@pytest.mark.parametrize(("name", "agent", "key"), ACCEPTED)
async def test_a_message_goes_to_the_session_of_a_name(
    gateway: InProcessGateway, name: str, agent: str | None, key: str
) -> None:
    owner = {"agentId": agent} if agent else {}
    async with gateway.client() as client:
        known = await keys_of(client)
        resolved = await client.call("sessions.resolve", {"name": name, **owner})
        assert (resolved["key"], resolved["new"]) == (key, key not in known)
        ended = await client.chat("[[reply:here]]", name, as_given=True, **owner)
        assert (text_of(ended), ended["sessionKey"]) == ("here", key)
        request = await client.send(
            "agent", {"sessionKey": name, **owner, "message": "[[reply:again]]", "idempotencyKey": "a"}
        )
        await client.answer(request)
        assert (await client.answer(request))["result"]["payloads"][0]["text"] == "again"
        assert await keys_of(client) == known | {key}


@pytest.mark.parametrize(("name", "agent", "reason"), REFUSED)
async def test_a_message_to_what_is_no_session_begins_nothing(
    gateway: InProcessGateway, models: ModelServer, name: str, agent: str | None, reason: str
) -> None:
    target = {"sessionKey": name, **({"agentId": agent} if agent else {})}
    async with gateway.client() as client:
        known = await keys_of(client)
        for method in ("chat.send", "agent"):
            with pytest.raises(RequestFailed) as refused:
                await client.call(method, {**target, "message": "hi", "idempotencyKey": method})
            assert str(refused.value).startswith(reason) and refused.value.code == "INVALID_REQUEST", method
        with pytest.raises(RequestFailed) as refused:
            await client.call("sessions.resolve", {"name": name, **({"agentId": agent} if agent else {})})
        assert str(refused.value).startswith(reason)
        if is_session_id(name) and agent is None:
            with pytest.raises(RequestFailed) as refused:
                await client.call("agent", {"sessionId": name, "message": "hi", "idempotencyKey": "id"})
            assert str(refused.value).startswith(reason)
        assert await keys_of(client) == known
    assert not models.requests


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("garden", 0, "New session agent:main:garden."),
        ("Office", 0, ""),
        (DASHED, 0, f"New session agent:main:{DASHED}."),
        (GONE, 1, f"No session found: {GONE}"),
        ("agent:main:garden", 1, "No session found: agent:main:garden"),
        ("agent:ghost:main", 1, 'unknown agent id "ghost"; there are: main, beta'),
        ("global", 1, '"global" is a reserved word and not a session'),
        ("agent:main:subagent:child", 1, '"agent:main:subagent:child" is a sub-agent; '),
    ],
)
async def test_the_command_line_gets_the_same_answer(
    gateway: InProcessGateway, name: str, code: int, text: str
) -> None:
    words = ("message", "send", "[[reply:here]]", "--session", name)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "openclaw", *words),
        env={**gateway.env, "OPENCLAW_GATEWAY_PORT": str(gateway.port)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, out.decode()) == (code, "here\n" if code == 0 else ""), err.decode()
    assert err.decode().startswith(text) and bool(err) == bool(text)


@pytest.mark.parametrize("name", ["main", "global"])
async def test_the_session_of_the_global_scope_is_written_to_under_both_its_names(
    tmp_path: Path, models: ModelServer, name: str
) -> None:
    config = model_config(models.base_url, models.api_key, session={"scope": "global"})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        assert (await client.chat("hi", name))["sessionKey"] == "main"
