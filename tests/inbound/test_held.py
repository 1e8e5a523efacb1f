"""Messages that wait before they are accepted: a crash or a failing disk neither loses nor repeats one of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.inbound.dedupe import TTL_MS
from openclaw.inbound.message import Sender
from openclaw.runs.history import load_history
from openclaw.storage.message_ledger import ReasonCode

from .test_pipeline import Place, place, settle

SLOW = {"messages": {"inbound": {"byChannel": {"loopback": 1000}}}}
DOWNTIME_S = 2 * TTL_MS / 1000


async def say_both(at: Place) -> None:
    """Ann writes two messages, which become one turn."""
    await at.people.say("first", message_id="m1")
    await at.people.say("second", message_id="m2")
    at.clock.advance(1.1)
    await at.people.got(1)


async def test_messages_that_were_joined_are_not_answered_again_after_a_crash_and_a_long_downtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **SLOW) as at:

        async def crashed(_: Any) -> None:
            """The process is gone before it comes to this."""

        monkeypatch.setattr(at.gateway.pipeline.held, "release", crashed)
        await say_both(at)
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **SLOW) as at:
        at.clock.advance(DOWNTIME_S)
        await at.gateway.pipeline.recover()
        assert [row.body.message_ids for row in await at.rows()] == [["m1", "m2"]]


async def test_a_message_that_its_platform_repeats_after_a_long_downtime_is_known(tmp_path: Path) -> None:
    async with place(tmp_path / "state", {"allowFrom": ["ann", "bob"]}, **SLOW) as at:
        await say_both(at)
        at.clock.advance(DOWNTIME_S)
        await at.gateway.pipeline.receive(at.people.said[-1][1])
        await at.people.say("another message, which has the same id in its chat", sender="bob", message_id="m2")
        at.clock.advance(1.1)
        await at.people.got(2)
        heard = [(row.body.sender, row.body.message_ids) for row in await at.rows()]
        assert heard == [("ann", ["m1", "m2"]), ("bob", ["m2"])]
        hers, his = [await load_history(at.gateway.runtime, row) for row in await at.rows()]
        assert [note.code for note in hers.rejected] == [ReasonCode.REDELIVERED] and not his.rejected


async def test_a_held_edit_goes_by_the_id_of_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **SLOW) as at:
        edit = at.people.inbound("better words", message_id="m1", revision="r1")
        await at.gateway.pipeline.receive(edit)
        (waiting,) = await at.gateway.pipeline.held.waiting()
        assert waiting.message_id == "m1"

        async def broken(*_: Any) -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(at.gateway.runs, "submit", broken)
        while not at.people.delivered:
            at.clock.advance(60)
            await settle()
        (row,) = await at.rows()
        assert row.state == "failed" and row.body.message_ids == ["m1"]


async def test_a_disk_that_fails_between_two_agents_keeps_the_message_from_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = {"agents": {"list": [{"id": "one"}, {"id": "two"}]}, "broadcast": {"ann": ["one", "two"]}}
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **agents) as at:
        submit, failures = at.gateway.runs.submit, [OSError(28, "No space left on device")]

        async def full(message: Any, *more: Any) -> Any:
            if message.agent_id == "two" and failures:
                raise failures.pop()
            return await submit(message, *more)

        monkeypatch.setattr(at.gateway.runs, "submit", full)
        with pytest.raises(OSError, match="No space"):
            await at.people.say("hi", message_id="m1")
        await at.people.redeliver()
        await at.people.got(2)
        assert sorted(row.agent_id for row in await at.rows()) == ["one", "two"]


async def test_a_ledger_that_fails_at_the_second_of_two_joined_messages_costs_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **SLOW) as at:
        ledger, failures = at.gateway.runtime.stores.ledger, [OSError(5, "Input/output error")]
        seen = ledger.seen

        async def failing(key: str, *more: Any, **options: Any) -> bool:
            if key.endswith("m2") and failures:
                raise failures.pop()
            return await seen(key, *more, **options)

        monkeypatch.setattr(ledger, "seen", failing)
        await at.people.say("first", message_id="m1")
        await at.people.say("second", message_id="m2")
        while not at.people.delivered:
            at.clock.advance(2)
            await settle()
        assert [row.body.message_ids for row in await at.rows()] == [["m1", "m2"]]


async def test_a_message_that_is_changed_or_taken_back_while_it_waits_is_read_as_it_is_then(tmp_path: Path) -> None:
    async with place(tmp_path / "state", {"allowFrom": ["ann", "bob"]}, **SLOW) as at:
        first = await at.people.say("frist", message_id="m1")
        second = await at.people.say("never mind", message_id="m2")
        pipeline = at.gateway.pipeline
        await pipeline.edited(msgspec.structs.replace(first, text="not hers", revision="r0", sender=Sender(id="bob")))
        await pipeline.edited(msgspec.structs.replace(first, text="first", revision="r1"))
        await pipeline.deleted(msgspec.structs.replace(second, text=""))
        at.clock.advance(1.1)
        await at.people.got(1)
        (row,) = await at.rows()
        assert row.body.message_ids == ["m1"] and "first" in (row.body.prompt or "")
        assert await pipeline.held.waiting() == []


async def test_a_crash_keeps_the_change_of_a_message_that_waits_and_not_one_that_was_taken_back(tmp_path: Path) -> None:
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **SLOW) as at:
        first = await at.people.say("frist", message_id="m1")
        second = await at.people.say("never mind", message_id="m2")
        pipeline = at.gateway.pipeline
        await pipeline.edited(msgspec.structs.replace(first, text="first", revision="r1"))
        await pipeline.deleted(msgspec.structs.replace(second, text=""))
        kept = [(one.message_id, one.inbound and one.inbound.text) for one in await pipeline.held.waiting()]
        assert kept == [("m1", "first")], "the next process takes up what is on disk"


async def test_a_message_that_was_taken_back_is_gone_although_the_disk_failed_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **SLOW) as at:
        said = await at.people.say("never mind", message_id="m1")
        ledger, failures = at.gateway.runtime.stores.ledger, [OSError(28, "No space left on device")]
        release_held = ledger.release_held

        async def full(keys: Any) -> None:
            if failures:
                raise failures.pop()
            await release_held(keys)

        monkeypatch.setattr(ledger, "release_held", full)
        with pytest.raises(OSError, match="No space"):
            await at.gateway.pipeline.deleted(said)
        await at.gateway.pipeline.deleted(said)
        assert await at.gateway.pipeline.held.waiting() == []
        at.clock.advance(1.1)
        await settle()
        assert await at.rows() == []


async def passes(at: Place) -> None:
    """A minute passes."""
    for _ in range(30):
        await settle()
        at.clock.advance(2)


async def test_what_the_last_gateway_held_is_taken_in_although_the_ledger_failed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **SLOW) as at:
        await at.gateway.pipeline.held.persist(at.people.inbound("first", message_id="m1"))
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **SLOW) as at:
        ledger, failures = at.gateway.runtime.stores.ledger, [ValueError("nobody knows it")] * 2
        held = ledger.held

        async def failing() -> Any:
            if failures:
                raise failures.pop()
            return await held()

        monkeypatch.setattr(ledger, "held", failing)
        recovery = asyncio.create_task(at.gateway.pipeline.recover())
        await passes(at)
        await recovery
        await at.people.got(1)
        assert [row.body.message_ids for row in await at.rows()] == [["m1"]]


async def test_a_damaged_message_gets_its_end_although_the_ledger_failed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path / "state", {"allowFrom": ["ann"]}, **SLOW) as at:
        ledger, failures = at.gateway.runtime.stores.ledger, [ValueError("nobody knows it")] * 2
        await ledger.hold("loopback|default|ann|m1", b"{")
        post = ledger.post

        async def failing(*args: Any, **named: Any) -> Any:
            if failures:
                raise failures.pop()
            return await post(*args, **named)

        monkeypatch.setattr(ledger, "post", failing)
        recovery = asyncio.create_task(at.gateway.pipeline.recover())
        await passes(at)
        await recovery
        assert [row.state for row in await at.rows()] == ["failed"] and not await ledger.held()
