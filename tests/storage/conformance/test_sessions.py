"""Session rows: changed one at a time, and found by query."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from openclaw.storage.session_query import SessionQuery, in_pages
from openclaw.storage.sessions import SessionRow, SessionStore
from tests.storage.conformance.messages import message

MAIN = "agent:main:main"


def setting(**fields: object):
    return lambda entry: {**(entry or {}), **fields}


async def found(store: SessionStore, **asked: Any) -> Sequence[SessionRow]:
    return (await store.select(SessionQuery(**asked))).rows


async def test_rows_are_listed_newest_first_per_agent_and_over_all(sessions):
    store = sessions
    for agent, key, at in [("main", "a", 3), ("ops", "b", 9), ("main", "c", 7), ("main", "a", 8), ("ops", "d", 1)]:
        await store.update(agent, f"agent:{agent}:{key}", setting(updatedAt=at), durable=False)
    assert [row.key[-1] for row in await found(store)] == ["b", "a", "c", "d"]
    assert [row.key for row in await found(store, agent_id="main")] == ["agent:main:a", "agent:main:c"]
    assert await store.count("main") == 2
    assert await store.count("nobody") == 0


async def test_session_id_leads_to_its_latest_row_and_not_to_a_run_alias(sessions):
    store = sessions
    await store.update("main", "agent:main:cron:j:run:s", setting(sessionId="s", updatedAt=9))
    await store.update("main", "agent:main:cron:j", setting(sessionId="s", updatedAt=1))
    row = await store.find_session_id("s")
    assert row is not None and row.key == "agent:main:cron:j"
    await store.update("main", "agent:main:cron:j", setting(sessionId="t"))
    row = await store.find_session_id("s")
    assert row is not None and row.key == "agent:main:cron:j:run:s"
    assert await store.find_session_id("unheard") is None


async def test_entries_handed_out_are_the_callers_own(sessions):
    store = sessions
    given = {"sessionId": "s", "origin": {"label": "x"}}
    returned = await store.update("main", MAIN, lambda entry: given)
    given["origin"]["label"] = "changed"
    returned["sessionId"] = "changed"

    def spoil(entry):
        entry["origin"]["label"] = "changed"
        raise RuntimeError("gave up")

    with pytest.raises(RuntimeError):
        await store.update("main", MAIN, spoil)
    assert await store.get("main", MAIN) == {"sessionId": "s", "origin": {"label": "x"}}


async def test_concurrent_updates_all_count(sessions):
    store = sessions
    await store.update("main", MAIN, setting(n=0))
    await asyncio.gather(*(store.update("main", MAIN, lambda e: {**e, "n": e["n"] + 1}) for _ in range(50)))
    entry = await store.get("main", MAIN)
    assert entry is not None and entry["n"] == 50


async def test_what_was_changed_is_there_after_a_restart(stores, sessions):
    await sessions.update("main", MAIN, setting(sessionId="s1", future=[1, {"a": None}]))
    await sessions.update("main", "agent:main:gone", setting(sessionId="s2"), durable=False)
    await sessions.update("main", "agent:main:gone", lambda entry: None)
    entry, written = await sessions.write("ops", "agent:ops:main", setting(sessionId="s3"))
    assert entry == {"sessionId": "s3"} == await sessions.get("ops", "agent:ops:main")
    await written.sync()
    await stores.reopen()
    assert await stores.sessions.get("main", MAIN) == {"sessionId": "s1", "future": [1, {"a": None}]}
    assert await stores.sessions.get("main", "agent:main:gone") is None
    assert await stores.sessions.get("ops", "agent:ops:main") == {"sessionId": "s3"}
    assert sorted(stores.sessions.agent_ids) == ["main", "ops"]
    assert [await stores.sessions.count(agent) for agent in ("main", "ops", "none")] == [1, 1, 0]


async def test_a_message_is_kept_together_with_the_session_it_began(stores, sessions, ledger):
    entry, written = await sessions.write("main", MAIN, setting(sessionId="s1", updatedAt=4))
    row, new = await ledger.accept(message(session_id=entry["sessionId"]), after=written)
    assert new
    await sessions.update("main", MAIN, setting(updatedAt=5))
    await stores.reopen()
    assert await stores.sessions.get("main", MAIN) == {"sessionId": "s1", "updatedAt": 5}
    assert [one.id for one in await stores.ledger.unfinished()] == [row.id]


QUESTIONS = [
    ({}, ["cron", "alias", "global", "one", "two", "three"]),
    ({"agent_id": "ops"}, ["three"]),
    ({"label": "Tax"}, ["one", "three"]),
    ({"label": "tax"}, []),
    ({"label": "Tax", "agent_id": "main"}, ["one"]),
    ({"key": "agent:main:two"}, ["two"]),
    ({"session_id": "s2"}, ["two"]),
    ({"ever": frozenset({"old", "nowhere"})}, ["two"]),
    ({"ever": frozenset({"s1", "s3"})}, ["one", "three"]),
    ({"ever": frozenset()}, []),
    ({"spawned_by": MAIN}, ["two"]),
    ({"updated_since": 60}, ["cron", "alias", "global"]),
    ({"updated_since": 60, "updated_before": 80}, ["global"]),
    ({"text": "tax"}, ["one", "three"]),
    ({"text": "100%_"}, ["two"]),
    ({"text": "ann"}, ["three"]),
    ({"hidden_keys": ("global", "unknown"), "aliases": False}, ["cron", "one", "two", "three"]),
    ({"limit": 2}, ["cron", "alias"]),
    ({"oldest_first": True, "limit": 3}, ["three", "two", "one"]),
    ({"oldest_first": True, "updated_before": 70, "agent_id": "main"}, ["two", "one"]),
    ({"limit": 2, "offset": 2}, ["global", "one"]),
    ({"limit": 2, "offset": 9}, []),
]


async def test_rows_are_found_by_what_is_asked(sessions):
    rows: list[tuple[str, dict]] = [
        ("agent:main:cron:j", {"sessionId": "s6", "updatedAt": 90}),
        ("agent:main:cron:j:run:s6", {"sessionId": "s6", "updatedAt": 80}),
        ("global", {"sessionId": "s5", "updatedAt": 70}),
        ("agent:main:one", {"sessionId": "s1", "updatedAt": 50, "label": "Tax"}),
        (
            "agent:main:two",
            {
                "sessionId": "s2",
                "updatedAt": 50,
                "spawnedBy": MAIN,
                "subject": "100%_sure",
                "previousSessions": [{"sessionId": "old"}, "odd"],
            },
        ),
        ("agent:ops:three", {"sessionId": "s3", "label": "Tax", "origin": {"label": "Ann"}}),
    ]
    names = dict(zip([key for key, _ in rows], ["cron", "alias", "global", "one", "two", "three"], strict=True))
    for key, entry in rows:
        await sessions.update("ops" if ":ops:" in key else "main", key, setting(**entry), durable=False)
    for asked, expected in QUESTIONS:
        assert [names[row.key] for row in await found(sessions, **asked)] == expected, asked
    page = await sessions.select(SessionQuery(agent_id="main", limit=2, count=True))
    assert (len(page.rows), page.total) == (2, 5)
    (three,) = await found(sessions, agent_id="ops")
    assert (three.agent_id, three.entry) == ("ops", rows[-1][1])
    assert [row.key async for row in in_pages(sessions, SessionQuery(label="Tax"))] == [rows[3][0], rows[5][0]]
