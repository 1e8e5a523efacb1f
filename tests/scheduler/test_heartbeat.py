"""Heartbeats: when there is one, what is delivered of it, and that the chat it runs in stays as it was."""

from __future__ import annotations

import asyncio
import errno
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from openclaw.config.schema import Config
from openclaw.config.schema.agents import ActiveHours
from openclaw.gateway.assemble import start_scheduler
from openclaw.gateway.gateway import Gateway
from openclaw.scheduler.heartbeat import is_empty_file, within_hours
from openclaw.scheduler.hooks import HookTurn
from openclaw.sessions.reset import transcript_ref
from tests.support.clock import MovableClock, until
from tests.support.gateway_in_process import gateway_parts
from tests.support.loopback_channel import Loopback
from tests.support.scripted_model import ScriptedModel

MAIN = "agent:main:main"


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "HEARTBEAT.md").write_text("- look after the server\n")


async def chat_begins(phone: Loopback) -> None:
    await phone.say("hi")
    await phone.got(1)


async def last_event(gateway: Gateway, status: str) -> dict[str, Any]:
    await until(lambda: (last := gateway.heartbeats.last) is not None and last.status == status)
    assert gateway.heartbeats.last is not None
    return msgspec.to_builtins(gateway.heartbeats.last)


async def test_an_alert_is_delivered_and_the_chat_stays_as_it_was(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback
) -> None:
    model.queue("hello", "The server is down!")
    await chat_begins(phone)
    before = dict(await gateway.runtime.stores.sessions.get("main", MAIN) or {})
    clock.advance(30 * 60)
    event = await last_event(gateway, "sent")
    assert (await phone.got(2))[1].text == "The server is down!"
    assert (event["channel"], event["to"], event["indicatorType"]) == ("loopback", "loopback:ann", "alert")
    assert event["preview"] == "The server is down!" and event["reason"] == "interval"
    after = dict(await gateway.runtime.stores.sessions.get("main", MAIN) or {})
    assert {name: after.get(name) for name in before} == before
    # What the Gateway asked stands in the transcript as its own words, which no client shows.
    entry = await gateway.runtime.stores.sessions.get("main", MAIN)
    assert entry is not None
    transcript = await gateway.runtime.stores.transcripts.open(transcript_ref("main", entry))
    assert transcript is not None
    hidden = [one.raw for one in await transcript.path_entries() if one.type == "custom_message"]
    assert len(hidden) == 1 and b"HEARTBEAT.md" in hidden[0] and b'"display":false' in hidden[0]


async def test_an_alert_and_the_answer_to_a_webhook_wait_for_a_disk_that_is_full(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, refused = gateway.runtime.stores.ledger, list[str]()
    post = ledger.post

    async def full(*given: Any, **end: Any) -> Any:
        if len(refused) < 2:
            refused.append(given[0].source)
            raise OSError(errno.ENOSPC, "No space left on device")
        return await post(*given, **end)

    model.queue("hello")
    await chat_begins(phone)
    monkeypatch.setattr(ledger, "post", full)
    model.queue("You have mail.")
    run = HookTurn(message="a mail came", wake_mode="next-heartbeat")
    await gateway.hook_runs.run(run, [str(uuid.uuid4())])
    async with asyncio.timeout(60):
        while len(phone.delivered) < 2:
            await asyncio.sleep(0.01)
            clock.advance(1)
    refused.clear()
    model.queue("The server is down!")
    clock.advance(30 * 60)
    async with asyncio.timeout(60):
        while len(phone.delivered) < 3:
            await asyncio.sleep(0.01)
            clock.advance(1)
    assert [one.text for one in phone.delivered[1:]] == ["You have mail.", "The server is down!"]
    assert refused == ["heartbeat", "heartbeat"]


async def test_the_request_of_a_heartbeat_goes_on_from_the_chat_so_that_the_cache_holds(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback
) -> None:
    await chat_begins(phone)
    clock.advance(30 * 60)
    await model.asked(2)
    chat, beat = model.requests
    assert beat.system == chat.system and beat.tools == chat.tools and beat.model == chat.model
    assert beat.messages[: len(chat.messages)] == chat.messages


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ("HEARTBEAT_OK", "ok-token"),
        ("**HEARTBEAT_OK**", "ok-token"),
        ("HEARTBEAT_OK all fine", "ok-token"),
        ("HEARTBEAT_OK " + "x" * 301, "sent"),
        ("I would say HEARTBEAT_OK if the door were shut", "sent"),
    ],
)
async def test_an_acknowledgement_is_delivered_to_nobody(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback, answer: str, status: str
) -> None:
    model.queue("hello", answer)
    await chat_begins(phone)
    clock.advance(30 * 60)
    await last_event(gateway, status)
    if status == "sent":
        assert (await phone.got(2))[1].text == answer.removeprefix("HEARTBEAT_OK ")
    else:
        assert len(phone.delivered) == 1


async def test_the_same_alert_is_told_once_a_day(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback
) -> None:
    model.queue("hello", "Disk full", "Disk full", "Disk full")
    await chat_begins(phone)
    clock.advance(30 * 60)
    await last_event(gateway, "sent")
    clock.advance(30 * 60)
    assert (await last_event(gateway, "skipped"))["reason"] == "duplicate"
    clock.advance(24 * 3600)
    await last_event(gateway, "sent")
    assert [one.text for one in await phone.got(3)][1:] == ["Disk full", "Disk full"]


async def test_a_wake_reaches_the_agent_soon_and_two_of_them_once(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock
) -> None:
    gateway.runtime.notes.put(MAIN, "The oven is hot", wake=True)
    gateway.heartbeats.request("main", "wake")
    gateway.runtime.notes.put(MAIN, "The door is open", wake=True)
    gateway.heartbeats.request("main", "wake")
    await asyncio.sleep(0)
    clock.advance(1)
    await model.asked(1)
    assert "The oven is hot" in model.prompts()[0] and "The door is open" in model.prompts()[0]
    assert (await last_event(gateway, "skipped"))["reason"] == "no-target"
    assert len(model.requests) == 1


async def test_a_heartbeat_that_goes_on_after_a_crash_is_the_only_one_of_its_wake(
    tmp_path: Path, model: ScriptedModel, clock: MovableClock
) -> None:
    reached = asyncio.Event()

    async def never(*_: object) -> list[str]:
        reached.set()
        await asyncio.Event().wait()
        return []

    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await start_scheduler(gateway)
        gateway.runtime.notes.put(MAIN, "The oven is hot", wake=True)
        await gateway.runtime.notes.synced()
        # It ends after the heartbeat is accepted and before its run has the note.
        with patch.object(gateway.runtime.notes, "take", never):
            gateway.heartbeats.request("main", "wake")
            await asyncio.sleep(0)
            clock.advance(1)
            async with asyncio.timeout(60):
                await reached.wait()
            await gateway.heartbeats.stop()
            await gateway.runs.stop()
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await gateway.runs.find_unfinished(after_orderly_stop=True)
        await start_scheduler(gateway)
        model.queue("HEARTBEAT_OK")
        gateway.runs.start_unfinished()
        await last_event(gateway, "ok-token")
        for _ in range(20):  # Long enough for a second heartbeat, and shorter than the usual interval.
            clock.advance(1)
            await asyncio.sleep(0.01)
        assert len(model.requests) == 1 and "The oven is hot" in model.prompts(0)[-1]


async def test_a_busy_session_is_not_disturbed(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback
) -> None:
    held = model.held("slow answer")
    await phone.say("think hard")
    await model.asked(1)
    assert (await gateway.heartbeats.run("main", "wake")).reason == "requests-in-flight"
    held.set()
    await phone.got(1)


async def test_an_agent_that_nobody_uses_costs_nothing(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, tmp_path: Path
) -> None:
    (tmp_path / "workspace" / "HEARTBEAT.md").unlink()
    clock.advance(30 * 60)
    assert (await last_event(gateway, "skipped"))["reason"] == "empty-heartbeat-file"
    assert model.requests == []


async def test_a_heartbeat_file_that_lists_nothing_costs_nothing(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, tmp_path: Path
) -> None:
    (tmp_path / "workspace" / "HEARTBEAT.md").write_text("# Heartbeat\n\n- [ ]\n")
    clock.advance(30 * 60)
    assert (await last_event(gateway, "skipped"))["reason"] == "empty-heartbeat-file"
    assert model.requests == []


@pytest.mark.parametrize(
    ("text", "empty"),
    [
        ("", True),
        ("# Tasks\n\n## More\n", True),
        ("<!-- write\nhere -->\n", True),
        ("- \n* [ ]\n", True),
        ("- water the plants\n", False),
        ("# Tasks\nlook at mail", False),
    ],
)
def test_what_an_empty_heartbeat_file_is(tmp_path: Path, text: str, empty: bool) -> None:
    (tmp_path / "HEARTBEAT.md").write_text(text)
    assert is_empty_file(tmp_path / "HEARTBEAT.md") is empty


def test_a_missing_heartbeat_file_is_not_empty(tmp_path: Path) -> None:
    assert not is_empty_file(tmp_path / "HEARTBEAT.md")


@pytest.mark.parametrize(
    ("start", "end", "inside"),
    [
        ("08:00", "24:00", True),
        ("18:22", "19:00", True),
        ("08:00", "18:22", False),
        ("22:00", "08:00", False),
        ("18:00", "06:00", True),
        (None, None, True),
    ],
)
def test_active_hours(start: str | None, end: str | None, inside: bool) -> None:
    hours = ActiveHours(start=start, end=end, timezone="UTC")
    assert within_hours(hours, Config(), 1_794_766_939_494) is inside  # It is 18:22 UTC.
