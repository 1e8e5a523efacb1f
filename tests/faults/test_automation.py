"""kill -9 at each step of a due job, a heartbeat and a webhook: it happens once, and its answer arrives once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.faults.lives import died, plan
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import model_config
from tests.support.model_server import ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

US, ANN = "+15550000001", "+15550000042"
HOOK_TOKEN = "a-token-for-webhooks-only"
JOB = "0f1f7c5e-job"
TEN_DAYS = 10 * 86_400_000


@pytest.fixture
async def signal() -> AsyncIterator[SignalDaemon]:
    async with SignalDaemon(US) as daemon:
        yield daemon


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer, signal: SignalDaemon) -> AsyncIterator[ForkedGateway]:
    """Not started yet."""
    section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
    hooks = {"enabled": True, "token": HOOK_TOKEN}
    config = model_config(models.base_url, models.api_key, channels={"signal": section}, hooks=hooks)
    config["agents"]["defaults"]["heartbeat"] = {"target": "signal", "to": ANN}
    made = ForkedGateway(tmp_path / "state", config)
    yield made
    with contextlib.suppress(AssertionError):
        made.kill()


def write_job(gateway: ForkedGateway, **fields: Any) -> None:
    """A job whose moment has come, and whose next one is days away."""
    path = gateway.state_dir / "cron" / "jobs.json"
    path.parent.mkdir()
    schedule = {"kind": "every", "everyMs": TEN_DAYS, "anchorMs": 0}
    base = {"id": JOB, "name": "Brief", "enabled": True, "createdAtMs": 0, "updatedAtMs": 0, "schedule": schedule}
    job = {**base, "wakeMode": "now", "state": {"nextRunAtMs": TEN_DAYS}, **fields}
    path.write_text(json.dumps({"version": 1, "jobs": [job]}))


def stored_job(gateway: ForkedGateway) -> dict[str, Any]:
    return json.loads((gateway.state_dir / "cron" / "jobs.json").read_text())["jobs"][0]


async def settled(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


def ran(gateway: ForkedGateway) -> list[dict[str, Any]]:
    path = gateway.state_dir / "cron" / "runs" / f"{JOB}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def done(gateway: ForkedGateway) -> bool:
    return bool(ran(gateway)) and stored_job(gateway)["state"].get("lastStatus") is not None


def got(signal: SignalDaemon) -> list[str]:
    return [call["message"] for call in signal.of("send")]


def told_once(signal: SignalDaemon, text: str) -> bool:
    """One message. A second one is allowed with the mark, since the Gateway may have died while the first was sent."""
    marked = f"(possibly sent twice) {text}"
    return got(signal) in ([text], [marked], [text, marked])


JOB_STEPS = ["cron.due", "cron.marked", "accept.before", "cron.accepted", "run.start", "model.call", "user.after"]
JOB_STEPS += ["finish.before", "finish.after", "cron.ended", "cron.announced", "cron.logged", "cron.settled"]


@pytest.mark.parametrize("step", JOB_STEPS)
async def test_dying_at_each_step_of_a_due_job_runs_and_delivers_it_once(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer, step: str
) -> None:
    payload = {"kind": "agentTurn", "message": "brief me [[reply:Two meetings]]"}
    delivery = {"mode": "announce", "channel": "signal", "to": ANN}
    write_job(gateway, sessionTarget="isolated", payload=payload, delivery=delivery)
    plan(gateway, {"at": step, "do": "kill"})
    with contextlib.suppress(AssertionError):  # It may die before it says that it listens.
        await gateway.start()
    await died(gateway)
    plan(gateway)
    await gateway.start()
    await settled(lambda: done(gateway) and bool(got(signal)))
    state = stored_job(gateway)["state"]
    assert [(entry["status"], entry["summary"]) for entry in ran(gateway)] == [("ok", "Two meetings")]
    assert state["lastStatus"] == "ok" and "runningAtMs" not in state and state["nextRunAtMs"] > TEN_DAYS
    assert told_once(signal, "Two meetings")
    assert len(models.requests) == 1


MANY = 4
MANY_STEPS = [("cron.due", 2), ("cron.marked", 2), ("model.call", 3), ("cron.ended", 2), ("cron.logged", 3)]
MANY_STEPS += [("cron.settled", 1), ("cron.settled", 3), ("cron.folded", 1)]


@pytest.mark.parametrize(("step", "hit"), MANY_STEPS)
async def test_dying_while_many_jobs_are_due_at_once_runs_each_of_them_once(
    gateway: ForkedGateway, models: ModelServer, step: str, hit: int
) -> None:
    payload = {"kind": "agentTurn", "message": "brief me"}
    write_job(gateway, sessionTarget="isolated", payload=payload, delivery={"mode": "none"})
    path = gateway.state_dir / "cron" / "jobs.json"
    (job,) = json.loads(path.read_text())["jobs"]
    jobs = [{**job, "id": f"{JOB}-{number}"} for number in range(MANY)]
    path.write_text(json.dumps({"version": 1, "jobs": jobs}))
    plan(gateway, {"at": step, "do": "kill", "hit": hit})
    with contextlib.suppress(AssertionError):
        await gateway.start()
    await died(gateway)
    plan(gateway)
    await gateway.start()

    def states() -> list[dict[str, Any]]:
        return [job["state"] for job in json.loads(path.read_text())["jobs"]]

    await settled(lambda: all(state.get("lastStatus") == "ok" for state in states()))
    assert all("runningAtMs" not in state and state["nextRunAtMs"] > TEN_DAYS for state in states())
    runs = [(gateway.state_dir / "cron" / "runs" / f"{job['id']}.jsonl").read_text().splitlines() for job in jobs]
    assert [len(lines) for lines in runs] == [1] * MANY and len(models.requests) == MANY


REMINDER_STEPS = ["cron.marked", "cron.told", "heartbeat.marked", "heartbeat.accepted", "model.call", "finish.after"]
REMINDER_STEPS += ["heartbeat.ended", "heartbeat.announced", "cron.ended", "cron.logged"]


@pytest.mark.parametrize("step", REMINDER_STEPS)
async def test_dying_at_each_step_of_a_reminder_tells_the_person_once(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer, step: str
) -> None:
    models.queue(Reply("Call Bob now!"))
    write_job(gateway, sessionTarget="main", payload={"kind": "systemEvent", "text": "Reminder: call Bob"})
    plan(gateway, {"at": step, "do": "kill"})
    with contextlib.suppress(AssertionError):
        await gateway.start()
    await died(gateway)
    plan(gateway)
    await gateway.start()
    await settled(lambda: done(gateway) and bool(got(signal)))
    assert [entry["status"] for entry in ran(gateway)] == ["ok"]
    assert told_once(signal, "Call Bob now!")
    assert len(models.requests) == 1
    asked = json.dumps(models.requests[0].body)
    assert asked.count("Reminder: call Bob") == 1


HOOK_STEPS = ["hook.marked", "hook.accepted", "model.call", "finish.after", "hook.ended", "hook.announced", "hook.told"]


@pytest.mark.parametrize("step", HOOK_STEPS)
async def test_dying_at_each_step_of_a_webhook_runs_it_once_however_often_it_is_called(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer, step: str
) -> None:
    models.queue(Reply("The build is red"))
    body = {"message": "build 7 failed", "name": "CI", "channel": "signal", "to": ANN, "wakeMode": "next-heartbeat"}
    headers = {"Authorization": f"Bearer {HOOK_TOKEN}", "Idempotency-Key": "build-7"}

    async def call() -> str:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{gateway.url}/hooks/agent", json=body, headers=headers) as response,
        ):
            assert response.status == 202
            return (await response.json())["runId"]

    plan(gateway, {"at": step, "do": "kill"})
    await gateway.start()
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):
        await call()
    await died(gateway)
    plan(gateway)
    await gateway.start()
    run_id = await call()
    under_way = gateway.state_dir / "hook-runs.json"
    await settled(lambda: bool(got(signal)) and json.loads(under_way.read_text()) == {})
    assert await call() == run_id
    assert told_once(signal, "The build is red")
    assert len(models.requests) == 1
    notes = json.loads((gateway.state_dir / "system-events.json").read_text())["events"]
    assert [note["text"] for note in notes] == ["Hook CI: The build is red"]
