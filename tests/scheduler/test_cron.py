"""Scheduled jobs: one run for each due moment, its answer delivered once, and a history that says how it went."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from openclaw.gateway.assemble import start_scheduler
from openclaw.gateway.gateway import Gateway
from openclaw.models.base import ModelError
from openclaw.scheduler.cron import RAN, RunResponse, run_id_of
from openclaw.scheduler.jobs import JobError
from tests.support.clock import MovableClock, until
from tests.support.gateway_in_process import gateway_parts
from tests.support.loopback_channel import Loopback
from tests.support.scripted_model import Answer, ScriptedModel

MINUTE = {"kind": "every", "everyMs": 60_000}
TURN = {"kind": "agentTurn", "message": "Brief me"}
MAIN = "agent:main:main"


async def history(gateway: Gateway, job_id: str, count: int) -> list[dict[str, Any]]:
    """The runs of a job, once there are so many. A timer that was set while the clock moved is nudged."""
    clock, looks = gateway.runtime.clock, 0
    async with asyncio.timeout(60):
        while len(entries := await gateway.cron.history.entries(job_id)) < count:
            await asyncio.sleep(0.01)
            looks += 1
            if looks > 50 and isinstance(clock, MovableClock):
                clock.advance(1)
    return entries


async def test_a_due_job_runs_in_a_session_of_its_own_and_its_answer_is_delivered(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback
) -> None:
    model.queue("hello Ann", "Two meetings today.")
    await phone.say("hi")
    await phone.got(1)
    job = await gateway.cron.add({"name": "Brief", "schedule": MINUTE, "payload": TURN})
    assert job["delivery"] == {"mode": "announce"} and job["sessionTarget"] == "isolated"
    clock.advance(61)
    (entry,) = await history(gateway, job["id"], 1)
    assert (entry["status"], entry["summary"]) == ("ok", "Two meetings today.")
    assert [one.text for one in await phone.got(2)][1:] == ["Two meetings today."]
    assert model.prompts()[0].startswith(f"[cron:{job['id']} Brief] Brief me\nCurrent time: ")
    row = await gateway.runtime.stores.sessions.get("main", f"agent:main:cron:{job['id']}")
    assert row is not None and row.get("label") == "Cron: Brief" and row["sessionId"] == entry["sessionId"]
    # The chat hears of it in one line, at its next turn.
    assert gateway.runtime.notes.peek(MAIN) == ["Cron: Two meetings today."]


async def test_each_run_begins_afresh_and_the_chat_keeps_its_settings(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback
) -> None:
    await phone.say("hi")
    await phone.got(1)
    before = await gateway.runtime.stores.sessions.get("main", MAIN)
    job = await gateway.cron.add({"name": "b", "schedule": MINUTE, "payload": TURN, "delivery": {"mode": "none"}})
    for count in (1, 2):
        clock.advance(61)
        await history(gateway, job["id"], count)
    assert len(model.prompts()) == 1
    first, second = await history(gateway, job["id"], 2)
    assert first["sessionId"] != second["sessionId"]
    assert first["sessionKey"].endswith(f":run:{first['sessionId']}")
    assert await gateway.runtime.stores.sessions.get("main", MAIN) == before
    assert gateway.runtime.notes.peek(MAIN) == [] and len(phone.delivered) == 1


async def test_an_answer_of_heartbeat_ok_is_delivered_to_nobody(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback
) -> None:
    model.queue("hello", "HEARTBEAT_OK")
    await phone.say("hi")
    await phone.got(1)
    job = await gateway.cron.add({"schedule": MINUTE, "payload": TURN})
    clock.advance(61)
    (entry,) = await history(gateway, job["id"], 1)
    assert entry["status"] == "ok" and "summary" not in entry and len(phone.delivered) == 1


@pytest.mark.parametrize(("best_effort", "status"), [(False, "error"), (True, "ok")])
async def test_a_missing_recipient_is_an_error_unless_the_job_does_not_mind(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, best_effort: bool, status: str
) -> None:
    delivery = {"mode": "announce", "bestEffort": best_effort}
    job = await gateway.cron.add({"schedule": MINUTE, "payload": TURN, "delivery": delivery})
    clock.advance(61)
    (entry,) = await history(gateway, job["id"], 1)
    assert entry["status"] == status and entry["summary"] == "ok"
    assert ("delivery target is missing" in entry.get("error", "")) is not best_effort


async def test_failures_in_a_row_wait_longer_and_a_success_ends_that(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock
) -> None:
    broken = Answer(error=ModelError("no such key", kind="auth", retryable=False))
    model.queue(broken, broken, "fine")
    every_second = {"kind": "every", "everyMs": 1000}
    job = await gateway.cron.add({"schedule": every_second, "payload": TURN, "delivery": {"mode": "none"}})
    waits: list[int] = []
    for count in (1, 2, 3):
        clock.advance(400)
        entry = (await history(gateway, job["id"], count))[-1]
        waits.append((entry["nextRunAtMs"] - entry["ts"]) // 1000)
    assert waits[:2] == [30, 60] and waits[2] <= 1
    (listed,) = await gateway.cron.jobs()
    assert listed["state"]["consecutiveErrors"] == 0 and listed["state"]["lastStatus"] == "ok"


async def test_a_one_time_job_goes_when_it_went_well_and_stays_switched_off_when_not(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock
) -> None:
    broken = Answer(error=ModelError("no such key", kind="auth", retryable=False))
    model.queue("done", broken)
    soon = {"kind": "at", "at": str(clock.now_ms() + 1000)}
    later = {"kind": "at", "at": str(clock.now_ms() + 60_000)}
    well = await gateway.cron.add({"schedule": soon, "payload": TURN, "delivery": {"mode": "none"}})
    badly = await gateway.cron.add({"schedule": later, "payload": TURN, "delivery": {"mode": "none"}})
    clock.advance(2)
    await history(gateway, well["id"], 1)
    clock.advance(60)
    await history(gateway, badly["id"], 1)
    await gateway.cron.status()
    (left,) = await gateway.cron.jobs(disabled=True)
    assert left["id"] == badly["id"] and left["enabled"] is False and left["state"]["lastStatus"] == "error"
    clock.advance(3600)
    await gateway.cron.status()
    assert len(await gateway.cron.history.entries(badly["id"])) == 1


async def test_a_main_job_tells_the_main_session_and_wakes_it(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock, phone: Loopback
) -> None:
    model.queue("hello", "Time to call Bob!")
    await phone.say("hi")
    await phone.got(1)
    at = {"kind": "at", "at": str(clock.now_ms() + 60_000)}
    job = await gateway.cron.add({"schedule": at, "payload": {"kind": "systemEvent", "text": "Reminder: call Bob"}})
    assert job["sessionTarget"] == "main" and job["deleteAfterRun"] is True
    clock.advance(61)
    assert (await phone.got(2))[1].text == "Time to call Bob!"
    assert "Reminder: call Bob" in model.prompts()[-1] and model.prompts()[-1].startswith("System: [")
    (entry,) = await history(gateway, job["id"], 1)
    assert (entry["status"], entry["summary"]) == ("ok", "Reminder: call Bob")


async def test_a_main_job_that_waits_for_the_next_heartbeat_only_leaves_a_note(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock
) -> None:
    payload = {"kind": "systemEvent", "text": "milk"}
    job = await gateway.cron.add({"schedule": MINUTE, "payload": payload, "wakeMode": "next-heartbeat"})
    clock.advance(61)
    await history(gateway, job["id"], 1)
    assert gateway.runtime.notes.peek(MAIN) == ["milk"] and model.requests == []


async def test_a_main_job_is_skipped_when_heartbeats_are_off_and_its_text_waits(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock
) -> None:
    await gateway.heartbeats.enable(False)
    job = await gateway.cron.add({"schedule": MINUTE, "payload": {"kind": "systemEvent", "text": "milk"}})
    clock.advance(61)
    (entry,) = await history(gateway, job["id"], 1)
    assert (entry["status"], entry["error"]) == ("skipped", "disabled")
    assert gateway.runtime.notes.peek(MAIN) == ["milk"] and model.requests == []


async def test_moments_missed_while_the_gateway_was_down_are_made_up_for_once(
    tmp_path: Path, model: ScriptedModel, clock: MovableClock
) -> None:
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await start_scheduler(gateway)
        job = await gateway.cron.add({"schedule": MINUTE, "payload": TURN, "delivery": {"mode": "none"}})
    clock.advance(3600)
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await start_scheduler(gateway)
        await history(gateway, job["id"], 1)
        async with asyncio.timeout(60):
            while (due := (await gateway.cron.status()).next_wake_at_ms) is None:
                await asyncio.sleep(0.01)
        assert due > clock.now_ms() and len(await gateway.cron.history.entries(job["id"])) == 1


class SetClock(MovableClock):
    """A clock whose wall time a test sets, as a person or a time server does."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.mark.parametrize(
    "schedule", [MINUTE, {"kind": "cron", "expr": "* * * * *", "tz": "UTC"}], ids=["every", "cron"]
)
async def test_a_clock_that_is_set_back_neither_repeats_a_moment_nor_stops_the_job(
    tmp_path: Path, model: ScriptedModel, schedule: dict[str, Any]
) -> None:
    clock = SetClock()
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await start_scheduler(gateway)
        job = await gateway.cron.add({"schedule": schedule, "payload": TURN, "delivery": {"mode": "none"}})
        for count in (1, 2):
            clock.advance(61)
            await history(gateway, job["id"], count)
        clock.ahead_ms = -600_000
        for count in (3, 4, 5):
            clock.advance(61)
            await history(gateway, job["id"], count)
        runs = [entry["runId"] for entry in await gateway.cron.history.entries(job["id"])]
        assert len(runs) == len(set(runs)) >= 5


async def test_a_job_is_run_by_hand_and_answers_when_it_has_ended(gateway: Gateway, model: ScriptedModel) -> None:
    job = await gateway.cron.add({"schedule": MINUTE, "payload": TURN, "delivery": {"mode": "none"}})
    assert await gateway.cron.run(job["id"], "due") == RunResponse(ok=True, ran=False, reason="not-due")
    held = model.held("slow")
    running = asyncio.create_task(gateway.cron.run(job["id"]))
    await model.asked(1)
    assert await gateway.cron.run(job["id"]) == RunResponse(ok=True, ran=False, reason="already-running")
    held.set()
    assert await running == RAN
    assert len(await gateway.cron.history.entries(job["id"])) == 1


async def test_the_file_of_another_program_opens_as_it_is(
    tmp_path: Path, model: ScriptedModel, clock: MovableClock
) -> None:
    path = tmp_path / "cron" / "jobs.json"
    path.parent.mkdir()
    job = {
        "id": "d597ad21-1", "name": "Brief", "enabled": True, "createdAtMs": 1, "updatedAtMs": 1, "ours": {"x": 1},
        "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "Europe/Madrid"}, "sessionTarget": "isolated",
        "wakeMode": "next-heartbeat", "payload": {**TURN, "deliver": False}, "delivery": {"mode": "none"},
        "state": {"nextRunAtMs": clock.now_ms() + 1000, "runningAtMs": 5},
    }  # fmt: skip
    text = json.dumps({"version": 1, "note": "kept", "jobs": [job]})
    path.write_text(text)
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await start_scheduler(gateway)
        assert [one["id"] for one in await gateway.cron.jobs()] == ["d597ad21-1"]
        assert path.read_text() == text
        clock.advance(2)
        await history(gateway, "d597ad21-1", 1)
        await gateway.cron.update("d597ad21-1", {"enabled": False})
    stored = json.loads(path.read_text())
    assert stored["note"] == "kept" and stored["jobs"][0]["ours"] == {"x": 1}
    assert path.with_name("jobs.json.bak").read_bytes() == path.read_bytes()


async def test_a_file_that_cannot_be_read_is_not_written_over_and_a_broken_job_stops_no_other(
    tmp_path: Path, model: ScriptedModel, clock: MovableClock
) -> None:
    path = tmp_path / "cron" / "jobs.json"
    path.parent.mkdir()
    path.write_text('{"version": 1, "jobs": [{"id": "half')
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await start_scheduler(gateway)
        with pytest.raises(JobError, match="cannot be read"):
            await gateway.cron.add({"schedule": MINUTE, "payload": TURN})
        assert path.read_text().endswith('"half')
        broken = {"id": "broken", "enabled": True, "state": {"nextRunAtMs": 1}}
        path.write_text(json.dumps({"version": 1, "jobs": [broken]}))
        job = await gateway.cron.add({"schedule": MINUTE, "payload": TURN, "delivery": {"mode": "none"}})
        clock.advance(61)
        await history(gateway, job["id"], 1)
        with pytest.raises(JobError, match="has no schedule"):
            await gateway.cron.run("broken")


async def test_a_list_that_breaks_while_a_job_is_due_is_told_once_a_minute_and_the_job_runs_when_it_is_mended(
    tmp_path: Path, model: ScriptedModel, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cron" / "jobs.json"
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await start_scheduler(gateway)
        job = await gateway.cron.add({"schedule": MINUTE, "payload": TURN, "delivery": {"mode": "none"}})
        good = path.read_text()
        path.write_text(good[:-20] + "?")
        caplog.clear()
        clock.advance(61)
        await until(lambda: "cannot be read" in caplog.text)
        for _ in range(50):
            await asyncio.sleep(0)
            await gateway.cron.status()
        told = [record for record in caplog.records if "do not run for now" in record.message]
        assert len(told) == 1 and not [record for record in caplog.records if record.exc_info]
        path.write_text(good)
        clock.advance(61)
        (entry,) = await history(gateway, job["id"], 1)
        assert entry["status"] == "ok"


async def test_odd_values_that_somebody_wrote_into_the_list_stop_no_job(
    tmp_path: Path, model: ScriptedModel, clock: MovableClock
) -> None:
    path = tmp_path / "cron" / "jobs.json"
    path.parent.mkdir()
    whole = {"enabled": True, "schedule": MINUTE, "payload": TURN, "sessionTarget": "isolated"}
    odd = [
        {**whole, "id": "none", "state": None, "delivery": {"mode": "none"}},
        {**whole, "id": 7, "delivery": {"mode": "none"}},
        {**whole, "id": "words", "state": {"nextRunAtMs": "soon"}},
    ]
    path.write_text(json.dumps({"version": 1, "jobs": odd}))
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await start_scheduler(gateway)
        assert {job["id"] for job in await gateway.cron.jobs()} == {"none", "7", "words"}
        clock.advance(61)
        for job_id in ("none", "7"):
            assert (await history(gateway, job_id, 1))[0]["status"] == "ok"


async def test_a_reminder_that_is_put_off_while_it_runs_comes_again(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock
) -> None:
    at = {"kind": "at", "atMs": clock.now_ms() + 60_000}
    job = await gateway.cron.add({"schedule": at, "payload": TURN, "delivery": {"mode": "none"}})
    held = model.held("later, then")
    clock.advance(61)
    await model.asked(1)
    later = clock.now_ms() + 600_000
    await gateway.cron.update(job["id"], {"schedule": {"kind": "at", "atMs": later}})
    held.set()
    async with asyncio.timeout(60):
        while "runningAtMs" in (listed := (await gateway.cron.jobs(disabled=True))[0])["state"]:
            await asyncio.sleep(0.01)
    assert listed["enabled"] and listed["state"]["nextRunAtMs"] == later
    clock.advance(601)
    await history(gateway, job["id"], 2)
    async with asyncio.timeout(60):
        while await gateway.cron.jobs(disabled=True):
            await asyncio.sleep(0.01)


async def test_a_job_that_is_switched_off_while_it_waits_for_another_one_does_not_run(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock
) -> None:
    at, silent = {"kind": "at", "atMs": clock.now_ms() + 60_000}, {"mode": "none"}
    slow = {"schedule": at, "payload": {**TURN, "message": "slow"}, "delivery": silent}
    first = await gateway.cron.add(slow)
    other = await gateway.cron.add({"schedule": MINUTE, "payload": {**TURN, "message": "next"}, "delivery": silent})
    held = model.held("done")
    clock.advance(61)
    await model.asked(1)
    waiting = other if "slow" in model.prompts()[0] else first
    await gateway.cron.update(waiting["id"], {"enabled": False})
    held.set()
    await history(gateway, (first if waiting is other else other)["id"], 1)
    # A run by hand waits for its slot behind the one that was switched off.
    assert await gateway.cron.run((await gateway.cron.add(slow))["id"]) == RAN
    assert await gateway.cron.history.entries(waiting["id"]) == [] and len(model.requests) == 2


async def test_rows_of_single_runs_leave_the_list_of_sessions_after_a_day_also_of_jobs_that_are_over(
    gateway: Gateway, model: ScriptedModel, clock: MovableClock
) -> None:
    once = {"schedule": {"kind": "at", "atMs": clock.now_ms() + 60_000}, "payload": TURN, "delivery": {"mode": "none"}}
    job = await gateway.cron.add(once)
    clock.advance(61)
    (entry,) = await history(gateway, job["id"], 1)
    sessions = gateway.runtime.stores.sessions
    assert await sessions.get("main", entry["sessionKey"]) is not None
    clock.advance(26 * 3600)
    async with asyncio.timeout(60):
        while await sessions.get("main", entry["sessionKey"]) is not None:
            clock.advance(61)
            await asyncio.sleep(0.01)
    kept = await sessions.get("main", f"agent:main:cron:{job['id']}")
    assert kept is not None and kept["sessionId"] == entry["sessionId"]


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ({"schedule": MINUTE, "payload": TURN, "sessionTarget": "main"}, "main cron jobs require"),
        ({"schedule": MINUTE, "payload": {"text": "x"}, "sessionTarget": "isolated"}, "isolated cron jobs require"),
        ({"schedule": MINUTE}, "payload"),
        ({"payload": TURN}, "schedule"),
        ({"schedule": MINUTE, "payload": TURN, "colour": "red"}, "colour"),
        ({"schedule": MINUTE, "payload": {"kind": "agentTurn"}}, "message"),
    ],
)
async def test_a_job_that_cannot_be_says_why(gateway: Gateway, job: dict[str, Any], problem: str) -> None:
    with pytest.raises(JobError, match=problem):
        await gateway.cron.add(job)
    assert await gateway.cron.jobs(disabled=True) == []


async def test_a_change_keeps_what_it_does_not_name(gateway: Gateway) -> None:
    job = await gateway.cron.add({"name": "a", "schedule": MINUTE, "payload": {**TURN, "model": "mock/x"}})
    changed = await gateway.cron.update(job["id"], {"payload": {"message": "other"}, "delivery": {"to": "bob"}})
    assert changed["payload"] == {"kind": "agentTurn", "message": "other", "model": "mock/x"}
    assert changed["delivery"] == {"mode": "announce", "to": "bob"} and changed["name"] == "a"
    off = await gateway.cron.update(job["id"], {"enabled": False})
    assert "nextRunAtMs" not in off["state"]


async def test_the_run_id_follows_from_job_and_moment() -> None:
    assert run_id_of("a", "1") == run_id_of("a", "1") != run_id_of("a", "2")


async def test_a_run_that_a_stop_interrupts_goes_on_after_the_start(
    tmp_path: Path, model: ScriptedModel, clock: MovableClock, phone: Loopback
) -> None:
    channels = {"loopback": {"enabled": True, "dmPolicy": "open", "allowFrom": ["*"]}}
    delivery = {"mode": "announce", "channel": "loopback", "to": "loopback:ann"}
    async with gateway_parts(tmp_path, model, clock=clock, channel=phone, channels=channels) as gateway:
        await start_scheduler(gateway)
        model.held("never heard")
        job = await gateway.cron.add({"schedule": MINUTE, "payload": TURN, "delivery": delivery})
        clock.advance(61)
        await model.asked(1)
    model.queue("heard once")
    async with gateway_parts(tmp_path, model, clock=clock, channel=phone, channels=channels) as gateway:
        await gateway.runs.find_unfinished(after_orderly_stop=True)
        gateway.runs.start_unfinished()
        await gateway.channel_services.start()
        await start_scheduler(gateway)
        (entry,) = await history(gateway, job["id"], 1)
        assert (entry["status"], entry["summary"]) == ("ok", "heard once")
        assert [one.text for one in await phone.got(1)] == ["heard once"]


async def test_a_reminder_that_goes_on_after_a_crash_wakes_its_agent_once(
    tmp_path: Path, model: ScriptedModel, clock: MovableClock
) -> None:
    every = {"kind": "every", "everyMs": 600_000}
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        await start_scheduler(gateway)
        job = await gateway.cron.add({"schedule": every, "payload": {"kind": "systemEvent", "text": "call Bob"}})
    path, due = tmp_path / "cron" / "jobs.json", job["state"]["nextRunAtMs"]
    clock.advance(601)
    stored, run_id = json.loads(path.read_text()), run_id_of(job["id"], str(due))
    stored["jobs"][0]["state"] |= {"runningAtMs": due, "dueAtMs": due, "runId": run_id}
    path.write_text(json.dumps(stored))
    async with gateway_parts(tmp_path, model, clock=clock) as gateway:
        gateway.runtime.notes.put(MAIN, "call Bob", id=run_id, wake=True)
        await start_scheduler(gateway)
        await history(gateway, job["id"], 1)
        for _ in range(20):  # Long enough for a second heartbeat, and shorter than the job's interval.
            clock.advance(1)
            await asyncio.sleep(0.01)
        assert len(model.requests) == 1 and "call Bob" in model.prompts(0)[-1]


async def test_jobs_that_are_due_at_once_do_not_rewrite_the_whole_list_at_each_step(
    gateway: Gateway, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [
        await gateway.cron.add({"schedule": MINUTE, "payload": TURN, "delivery": {"mode": "none"}}) for _ in range(40)
    ]
    rewritten, put = list[str](), gateway.runtime.stores.documents.put

    async def counted(name: str, *args: Any, **options: Any) -> Any:
        rewritten.append(name)
        return await put(name, *args, **options)

    monkeypatch.setattr(gateway.runtime.stores.documents, "put", counted)
    clock.advance(61)
    for job in jobs:
        assert (await history(gateway, job["id"], 1))[0]["status"] == "ok"
    path = Path(gateway.runtime.state_dir) / "cron" / "jobs.json"
    await until(lambda: all(job["state"].get("lastStatus") == "ok" for job in json.loads(path.read_text())["jobs"]))
    assert rewritten.count("cron/jobs.json") < len(jobs) // 2


async def test_a_job_that_ends_beside_a_long_one_is_in_the_list_after_a_second(
    tmp_path: Path, model: ScriptedModel, clock: MovableClock
) -> None:
    job = {"schedule": MINUTE, "payload": TURN, "delivery": {"mode": "none"}}
    async with gateway_parts(tmp_path, model, clock=clock, cron={"maxConcurrentRuns": 2}) as gateway:
        await start_scheduler(gateway)
        held = model.held("at last")
        jobs = [await gateway.cron.add(job) for _ in range(2)]
        clock.advance(61)
        async with asyncio.timeout(60):
            while not (ended := [one["id"] for one in jobs if await gateway.cron.history.entries(one["id"])]):
                await asyncio.sleep(0.01)

        def listed() -> bool:
            clock.advance(1)
            stored = json.loads((tmp_path / "cron" / "jobs.json").read_text())["jobs"]
            return [one["id"] for one in stored if one["state"].get("lastStatus") == "ok"] == ended

        await until(listed)
        held.set()
