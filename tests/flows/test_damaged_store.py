"""Entries that a person damaged: every one is repaired when it is read, and no other session notices."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from openclaw.sessions.entry import SessionEntry
from tests.support import stored
from tests.support.clock import MovableClock, until
from tests.support.gateway import RequestFailed, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

GOOD = "agent:main:good"
NOW = 1_790_000_000_000
WRONG: list[Any] = [
    None,
    True,
    -1,
    12.5,
    1e300,
    "",
    "\0",
    [],
    [1, {"a": 2}],
    {},
    {"channel": 5, "provider": [], "to": {}},
]
NO_ENTRIES: list[Any] = [True, 5, "x", [], [{}]]


def healthy(number: int) -> dict[str, Any]:
    return {"sessionId": f"22222222-2222-4222-8222-{number:012d}", "updatedAt": NOW + number}


def damaged(values: list[Any]) -> dict[str, Any]:
    """Sessions, each of which has another field damaged, and one that lacks everything."""
    rows: dict[str, Any] = {"agent:main:empty": {}, "agent:main:no-id": {"updatedAt": NOW, "label": "no id"}}
    for field in SessionEntry.__annotations__:
        for value in values:
            number = len(rows)
            rows[f"agent:main:{number}"] = {**healthy(number), field: value}
    return rows


@pytest.fixture
async def laid_out(tmp_path: Path, models: ModelServer) -> InProcessGateway:
    long_lived = {"session": {"reset": {"mode": "idle", "idleMinutes": 10_000_000}}}
    return InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key) | long_lived)


async def test_one_damaged_entry_does_not_reach_the_others(laid_out: InProcessGateway, models: ModelServer) -> None:
    rows = damaged(WRONG) | {f"agent:main:none{at}": value for at, value in enumerate(NO_ENTRIES)}
    keys = [key for key, entry in rows.items() if isinstance(entry, dict)]
    stored.put_sessions(laid_out, {GOOD: healthy(0), **{key: healthy(at) for at, key in enumerate(rows, 1)}})
    stored.damage_sessions(laid_out, rows)
    async with laid_out as gateway, gateway.client() as client:
        details = {"includeDerivedTitles": True, "includeLastMessage": True, "limit": 2000}
        listed = {row["key"]: row for row in (await client.call("sessions.list", details))["sessions"]}
        assert listed.keys() == {GOOD, *keys}
        assert all(row["sessionId"] and isinstance(row["sessionId"], str) for row in listed.values())
        assert listed["agent:main:no-id"]["label"] == "no id"
        assert (await client.call("sessions.usage", {"limit": 500}))["totals"]
        await client.call("status", {})
        await client.call("sessions.preview", {"keys": keys[:50]})
        for key in (GOOD, "agent:main:empty", "agent:main:no-id"):
            assert text_of(await client.chat("hi [[reply:there]]", key)) == "there"
            assert "Session: " in text_of(await client.chat("/status", key))
        await client.chat("list [[tool:sessions_list {}]][[next]][[reply:done]]", GOOD)
        [result] = models.requests[-1].body["messages"][-1]["content"]
        assert '"error"' not in result["content"] and "agent:main:" in result["content"]


@pytest.mark.parametrize("wrong", [None, "x", -1, [1], {"channel": 5}])
async def test_a_damaged_session_goes_on(laid_out: InProcessGateway, models: ModelServer, wrong: Any) -> None:
    rows = damaged([wrong])
    rows = {key: {n: v for n, v in row.items() if n != "authProfileOverride"} for key, row in rows.items()}
    stored.put_sessions(laid_out, {key: healthy(at) for at, key in enumerate(rows, 1)})
    stored.damage_sessions(laid_out, rows)
    async with laid_out as gateway, gateway.client() as client:
        before = {row["key"]: row["sessionId"] for row in (await client.call("sessions.list", {}))["sessions"]}
        for key, row in rows.items():
            try:
                reply = await client.chat("hi [[reply:there]]", key)
            except RequestFailed as failed:
                raise AssertionError(row) from failed
            assert text_of(reply) == "there" or row.get("sendPolicy") == "deny", row
        after = {row["key"]: row["sessionId"] for row in (await client.call("sessions.list", {}))["sessions"]}
        assert after == before, "the session that a reader saw is the one that goes on"
    entries = stored.sessions(gateway)
    assert all(isinstance(entries[key]["sessionId"], str) for key in rows)


@pytest.mark.files_only("sessions.json is edited by hand")
async def test_an_edit_while_the_gateway_runs_loses_no_conversation(gateway: InProcessGateway) -> None:
    path = gateway.sessions_dir() / "sessions.json"
    async with gateway.client() as client:
        await client.chat("remember the lighthouse", GOOD)
        await client.chat("hi", "agent:main:other")
        (known,) = [row for row in (await client.call("sessions.list", {}))["sessions"] if row["key"] == GOOD]
        await until(lambda: path.exists() and "agent:main:other" in path.read_text())
        store = json.loads(path.read_text())
        del store[GOOD]["sessionId"]
        store[GOOD] |= {"updatedAt": "yesterday", "label": "by hand", "inputTokens": []}
        store["agent:main:made"] = {"label": "made by hand"}
        path.write_text(json.dumps(store))
        rows = {row["key"]: row for row in (await client.call("sessions.list", {}))["sessions"]}
        assert rows.keys() == {GOOD, "agent:main:other", "agent:main:made"}
        assert (rows[GOOD]["sessionId"], rows[GOOD]["label"]) == (known["sessionId"], "by hand")
        assert rows[GOOD]["updatedAt"] == known["updatedAt"]
        assert text_of(await client.chat("hi [[reply:there]]", "agent:main:made")) == "there"
        history = await client.call("chat.history", {"sessionKey": GOOD})
        assert "lighthouse" in json.dumps(history)


async def test_unknown_fields_survive_new_and_the_daily_reset(tmp_path: Path, models: ModelServer) -> None:
    clock = MovableClock()
    gateway = InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key), clock=clock)
    fields = {"myNote": {"colour": "blue"}, "starredAt": 3}
    stored.put_sessions(gateway, {GOOD: {"sessionId": "s1", "updatedAt": clock.now_ms(), **fields}})
    async with gateway, gateway.client() as client:

        async def session() -> str:
            return next(row["sessionId"] for row in (await client.call("sessions.list", {}))["sessions"])

        seen = {await session()}
        await client.chat("hi", GOOD)
        await client.chat("/new", GOOD)
        seen.add(await session())
        await client.chat("hi", GOOD)
        clock.advance(timedelta(days=2).total_seconds())
        await client.chat("hi", GOOD)
        seen.add(await session())
        assert len(seen) == 3
    entry = stored.sessions(gateway)[GOOD]
    assert {name: entry.get(name) for name in fields} == fields
