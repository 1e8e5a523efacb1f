"""Jobs, heartbeats and system events as clients use them, over the socket and on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import RequestFailed, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_script import Call
from tests.support.model_server import ModelServer, Recorded, Reply

JOB = {
    "name": "Brief",
    "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "Europe/Madrid"},
    "sessionTarget": "isolated",
    "wakeMode": "next-heartbeat",
    "payload": {"kind": "agentTurn", "message": "Brief me [[reply:Two meetings]]"},
    "delivery": {"mode": "none"},
}


async def test_the_life_of_a_job_over_the_socket(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        job = await client.call("cron.add", JOB)
        assert {name: job[name] for name in JOB} == JOB and job["state"]["nextRunAtMs"] > job["createdAtMs"]
        assert (await client.call("cron.list", {}))["jobs"] == [job]
        status = await client.call("cron.status", {})
        assert (status["enabled"], status["jobs"]) == (True, 1)
        assert status["nextWakeAtMs"] == job["state"]["nextRunAtMs"]
        assert status["storePath"].endswith("/cron/jobs.json")
        assert await client.call("cron.run", {"jobId": job["id"]}) == {"ok": True, "ran": True}
        (entry,) = (await client.call("cron.runs", {"id": job["id"]}))["entries"]
        assert (entry["jobId"], entry["action"], entry["status"]) == (job["id"], "finished", "ok")
        assert entry["summary"] == "Two meetings"
        patch = {"enabled": False, "name": "Later"}
        assert (await client.call("cron.update", {"id": job["id"], "patch": patch}))["name"] == "Later"
        often = {"schedule": {"kind": "every", "everyMs": 60_000}}
        changed = await client.call("cron.update", {"id": job["id"], "patch": often})
        assert changed["schedule"]["anchorMs"] == changed["updatedAtMs"]
        assert (await client.call("cron.list", {}))["jobs"] == []
        assert len((await client.call("cron.list", {"includeDisabled": True}))["jobs"]) == 1
        assert await client.call("cron.remove", {"id": job["id"]}) == {"ok": True, "removed": True}
        assert await client.call("cron.remove", {"id": job["id"]}) == {"ok": True, "removed": False}


async def test_clients_hear_of_jobs(gateway: InProcessGateway) -> None:
    async with gateway.client() as client, gateway.client() as watcher:
        job = await client.call("cron.add", JOB)
        await client.call("cron.run", {"id": job["id"]})
        await watcher.event(lambda name, payload: name == "cron" and payload["action"] == "finished")
        heard = [event["payload"] for event in watcher.events if event["event"] == "cron"]
        assert [event["action"] for event in heard] == ["added", "started", "finished"]
        assert {event["jobId"] for event in heard} == {job["id"]}
        assert (heard[2]["status"], heard[2]["summary"]) == ("ok", "Two meetings")


@pytest.mark.parametrize(
    ("method", "params", "problem"),
    [
        ("cron.add", {**JOB, "sessionTarget": "main"}, 'main cron jobs require payload.kind="systemEvent"'),
        ("cron.add", {**JOB, "schedule": {"kind": "at", "at": "2020-01-01T00:00:00Z"}}, "schedule.at is in the past"),
        ("cron.add", {"name": "x"}, "params: must have required property 'schedule'; must have required property"),
        (
            "cron.add",
            {**JOB, "schedule": {"kind": "every", "everyMs": 0}},
            "params: at /schedule/everyMs: must be >= 1",
        ),
        ("cron.add", {**JOB, "colour": 1}, "params: at root: unexpected property 'colour'"),
        ("cron.update", {"id": "nobody", "patch": {}}, "unknown cron job id: nobody"),
        ("cron.run", {"id": "nobody"}, "unknown cron job id: nobody"),
        ("cron.remove", {}, "missing id"),
        ("wake", {"mode": "later", "text": "x"}, "mode"),
    ],
)
async def test_what_cannot_be_is_refused_with_a_reason(
    gateway: InProcessGateway, method: str, params: dict[str, Any], problem: str
) -> None:
    async with gateway.client() as client:
        with pytest.raises(RequestFailed, match=re.escape(problem)) as refused:
            await client.call(method, params)
        assert refused.value.code == "INVALID_REQUEST"


async def test_a_session_of_a_job_is_listed_once_as_what_it_is(gateway: InProcessGateway) -> None:
    async with gateway.client() as client:
        job = await client.call("cron.add", JOB)
        for _ in range(2):
            await client.call("cron.run", {"id": job["id"]})
        listed = (await client.call("sessions.list", {}))["sessions"]
    assert [row["key"] for row in listed] == [f"agent:main:cron:{job['id']}"]


async def test_a_wake_is_answered_soon_and_told_as_a_heartbeat(gateway: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply("HEARTBEAT_OK"))
    async with gateway.client() as client:
        assert await client.call("last-heartbeat", {}) is None
        assert await client.call("wake", {"mode": "now", "text": "The oven is hot"}) == {"ok": True}
        told = (await client.event(lambda name, _: name == "heartbeat"))["payload"]
        assert (told["status"], told["reason"], told["silent"]) == ("ok-token", "wake", True)
        assert await client.call("last-heartbeat", {}) == told
        assert "The oven is hot" in json.dumps(models.requests[0].body)
        # What nobody wrote is not shown as chat.
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert "oven" not in json.dumps(history) and "HEARTBEAT" not in json.dumps(history)
        assert await client.call("set-heartbeats", {"enabled": False}) == {"ok": True, "enabled": False}


async def test_a_system_event_outlives_a_restart_and_is_heard_once(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.call("system-event", {"text": "The lamp is on"})
    async with InProcessGateway(tmp_path / "state") as gateway, gateway.client() as client:
        assert (await client.call("status", {}))["queuedSystemEvents"] == ["The lamp is on"]
        for number in range(2):
            await client.call(
                "chat.send", {"sessionKey": "main", "message": f"hello {number}", "idempotencyKey": f"k{number}"}
            )
            await client.call("agent.wait", {"runId": f"k{number}", "timeoutMs": 50_000})
        last = json.dumps(models.requests[-1].body)
    assert last.count("The lamp is on") == 1 and len(models.requests) == 2


async def test_the_command_line_schedules_lists_and_removes(gateway: InProcessGateway) -> None:
    added = await gateway.command(
        "cron", "add", "--name", "Bread", "--at", "20m", "--system-event", "Bread is done", "--json"
    )
    assert added.returncode == 0, added.stderr
    job = json.loads(added.stdout)
    assert (job["sessionTarget"], job["wakeMode"], job["deleteAfterRun"]) == ("main", "now", True)
    listed = await gateway.command("cron", "list")
    assert job["id"] in listed.stdout and "Bread" in listed.stdout
    edited = await gateway.command("cron", "edit", job["id"], "--every", "1h", "--json")
    assert json.loads(edited.stdout)["schedule"]["everyMs"] == 3_600_000
    removed = await gateway.command("cron", "rm", job["id"])
    assert (removed.returncode, removed.stdout) == (0, f"Removed {job['id']}.\n")
    event = await gateway.command("system", "event", "--text", "hello")
    assert event.returncode == 0 and gateway.gateway.runtime.notes.peek("agent:main:main") == ["hello"]


async def test_what_follows_an_approved_command_has_no_more_rights_than_the_turn_that_asked_for_it(
    tmp_path: Path, models: ModelServer
) -> None:
    """A group has the main session run a command. What the main session does after it, the group still caused."""
    job = {"schedule": {"kind": "every", "everyMs": 60_000}, "payload": {"kind": "systemEvent", "text": "obey"}}
    steps = {
        "tell the owner": Call("sessions_send", {"sessionKey": "main", "message": "look there", "timeoutSeconds": 0}),
        "look there": Call("exec", {"command": "echo seen"}),
        "seen": Call("cron", {"action": "add", "job": {**job, "sessionTarget": "main"}}),
    }

    def answer(asked: Recorded) -> Reply:
        last = json.dumps(asked.body["messages"][-1])
        return Reply(text="done", calls=[call for words, call in steps.items() if words in last])

    tools = {"exec": {"ask": "always"}, "sessions": {"visibility": "all"}}
    config = model_config(models.base_url, models.api_key, tools=tools)
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat("hello")
        models.answer_with(answer)
        await client.chat("tell the owner", "agent:main:signal:group:g1")
        asked = await client.event(lambda event, _: event == "exec.approval.requested")
        await client.call("exec.approval.resolve", {"id": asked["payload"]["id"], "decision": "allow-once"})
        await client.event(lambda *_: b"obey" in models.requests[-1].raw)  # The tool has answered.
        assert (await client.call("cron.list", {"includeDisabled": True}))["jobs"] == []


async def test_a_job_is_run_changed_and_removed_by_its_name(gateway: InProcessGateway) -> None:
    words = {"schedule": {"kind": "cron", "expr": "0 8 * * *"}, "payload": {"kind": "agentTurn", "message": "hello"}}
    async with gateway.client() as client:
        made = [await client.call("cron.add", {"name": name, **words}) for name in ("Morning", "twin", "twin")]
        assert await client.call("cron.run", {"id": "morning"}) == {"ok": True, "ran": True}
        await client.call("cron.update", {"id": "Morning", "patch": {"enabled": False}})
        with pytest.raises(RequestFailed, match='2 jobs are called "twin"; use an id: ') as failed:
            await client.call("cron.remove", {"id": "twin"})
        assert made[1]["id"] in str(failed.value)
        assert (await client.call("cron.remove", {"id": "morning"}))["removed"] is True
        assert (await client.call("cron.remove", {"id": made[1]["id"]}))["removed"] is True
        assert (await client.call("cron.remove", {"id": "TWIN"}))["removed"] is True
        with pytest.raises(RequestFailed, match="unknown cron job id: morning"):
            await client.call("cron.run", {"id": "morning"})
