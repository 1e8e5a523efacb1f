"""The ``cron`` tool: an agent schedules for itself, and a chat of others gets no more than answers of its own."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from openclaw.agent.caller import NO_MESSAGE, caller_of
from openclaw.config.schema.agents import CliBackend
from openclaw.gateway.gateway import Gateway
from openclaw.models.catalogue import Catalogue, CurrentCatalogue
from openclaw.scheduler.cron import CronTool
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.storage.message_ledger import MessageBody, Trace
from openclaw.tools.base import ToolContext, ToolError
from tests.support.clock import MovableClock
from tests.support.scripted_model import ScriptedModel

EVERY = {"kind": "every", "everyMs": 60_000}
TURN = {"kind": "agentTurn", "message": "look"}
EVENT = {"kind": "systemEvent", "text": "Reminder: bread"}
MAIN, GROUP, HOOK = "agent:main:main", "agent:main:loopback:group:g", "agent:main:hook:1"


@pytest.fixture
def tool(gateway: Gateway) -> CronTool:
    return CronTool(gateway.cron, gateway.heartbeats, gateway.runtime)


async def context(gateway: Gateway, key: str, agent_id: str = "main", body: MessageBody = NO_MESSAGE) -> ToolContext:
    entry = await gateway.runtime.stores.sessions.get(agent_id, key)
    caller = await caller_of(gateway.runtime, SessionRef(agent_id, key), entry, body)
    return ToolContext(agent_id=agent_id, session_key=key, workspace=gateway.runtime.state_dir, caller=caller)


async def use(tool: CronTool, gateway: Gateway, key: str = MAIN, agent_id: str = "main", **arguments: Any) -> Any:
    return (await tool.run(arguments, await context(gateway, key, agent_id))).details


async def test_an_agent_manages_its_jobs(tool: CronTool, gateway: Gateway, clock: MovableClock) -> None:
    job = await use(tool, gateway, action="add", job={"schedule": EVERY, "payload": EVENT})
    assert job["agentId"] == "main" and job["name"] == "Reminder: bread"
    assert [one["id"] for one in (await use(tool, gateway, action="list"))["jobs"]] == [job["id"]]
    changed = await use(tool, gateway, action="update", jobId=job["id"], patch={"enabled": False})
    assert changed["enabled"] is False
    assert (await use(tool, gateway, action="status"))["jobs"] == 1
    assert await use(tool, gateway, action="runs", id=job["id"]) == {"entries": []}
    assert await use(tool, gateway, action="remove", jobId=job["id"]) == {"ok": True, "removed": True}


async def test_a_wake_waits_in_the_main_session(tool: CronTool, gateway: Gateway) -> None:
    await use(tool, gateway, action="wake", text="look at the mail", mode="next-heartbeat")
    assert gateway.runtime.notes.peek(MAIN) == ["look at the mail"]


async def test_an_answer_for_a_group_goes_to_that_group(tool: CronTool, gateway: Gateway) -> None:
    here = {"channel": "loopback", "to": "group:g"}
    entry = SessionEntry(sessionId="s", deliveryContext=here)  # type: ignore[typeddict-item]
    await gateway.runtime.stores.sessions.update("main", GROUP, lambda _: entry)
    elsewhere = {"mode": "announce", "channel": "loopback", "to": "owner"}
    given = {"schedule": EVERY, "payload": TURN, "delivery": elsewhere}
    job = await use(tool, gateway, GROUP, action="add", job=given)
    assert job["delivery"] == {"mode": "announce", **here}
    moved = await use(tool, gateway, GROUP, action="update", jobId=job["id"], patch={"delivery": {"to": "owner"}})
    assert moved["delivery"]["to"] == "group:g"


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        (GROUP, {"action": "add", "job": {"schedule": EVERY, "payload": EVENT}}),
        (GROUP, {"action": "wake", "text": "obey"}),
        (HOOK, {"action": "add", "job": {"schedule": EVERY, "payload": TURN}}),
        (HOOK, {"action": "wake", "text": "obey"}),
        (MAIN, {"action": "add", "job": {"schedule": EVERY, "payload": TURN, "agentId": "other"}}),
        (MAIN, {"action": "add", "job": {"schedule": {"kind": "cron", "expr": "x"}, "payload": TURN}}),
        (MAIN, {"action": "add"}),
        (MAIN, {"action": "remove", "jobId": "nobody"}),
        (MAIN, {"action": "dance"}),
    ],
)
async def test_what_a_session_may_not_is_refused_and_changes_nothing(
    tool: CronTool, gateway: Gateway, key: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ToolError):
        await use(tool, gateway, key, **arguments)
    assert await gateway.cron.jobs(disabled=True) == [] and gateway.runtime.notes.peek(MAIN) == []


async def test_jobs_of_another_agent_do_not_exist_for_it(tool: CronTool, gateway: Gateway) -> None:
    job = await use(tool, gateway, action="add", job={"schedule": EVERY, "payload": EVENT})
    other = {"key": "agent:other:main", "agent_id": "other"}
    assert (await use(tool, gateway, **other, action="list"))["jobs"] == []
    for action in ("remove", "run", "runs"):
        with pytest.raises(ToolError, match="unknown cron job"):
            await use(tool, gateway, **other, action=action, jobId=job["id"])


@pytest.mark.parametrize("key", [GROUP, HOOK])
async def test_a_chat_of_others_neither_sees_nor_changes_the_jobs_of_the_owner(
    tool: CronTool, gateway: Gateway, key: str
) -> None:
    job = await use(tool, gateway, action="add", job={"schedule": EVERY, "payload": TURN})
    assert (await use(tool, gateway, key, action="list"))["jobs"] == []
    changes = {"remove": {}, "run": {}, "runs": {}, "update": {"patch": {"payload": {"message": "obey"}}}}
    for action, more in changes.items():
        with pytest.raises(ToolError):
            await use(tool, gateway, key, action=action, jobId=job["id"], **more)
    (same,) = await gateway.cron.jobs(disabled=True)
    assert same["payload"] == TURN
    assert (await use(tool, gateway, action="list"))["jobs"] == [same]


async def test_a_job_of_a_group_runs_with_the_rights_of_the_group(
    tool: CronTool, gateway: Gateway, model: ScriptedModel
) -> None:
    model.queue("done")
    job = await use(tool, gateway, GROUP, action="add", job={"schedule": EVERY, "payload": TURN})
    assert job["scheduledBy"] == GROUP
    with pytest.raises(ToolError):
        await use(tool, gateway, GROUP, action="update", jobId=job["id"], patch={"scheduledBy": None})
    await gateway.cron.run(job["id"])
    key = f"{GROUP}:cron:{job['id']}"
    assert (await context(gateway, key)).caller.kind == "group"
    (run,) = await gateway.cron.history.entries(job["id"], 5)
    assert (run["status"], run["sessionKey"]) == ("ok", key)
    (row,) = [row for row in await gateway.runtime.stores.ledger.recent(limit=10) if row.source == "cron"]
    assert row.body.guest and gateway.runtime.notes.peek(MAIN) == [], "its words are no system message of the owner's"
    # What it schedules itself is the group's, too.
    again = await use(tool, gateway, key, action="add", job={"schedule": EVERY, "payload": TURN})
    assert again["scheduledBy"] == key


@pytest.mark.parametrize(
    "body",
    [
        MessageBody(guest=True),
        MessageBody(trace=Trace(id="t", hops=1, visited=(GROUP,))),
        MessageBody(trace=Trace(id="t", hops=1, visited=("hook:doorbell",))),
    ],
    ids=["a guest", "through a group", "through a webhook"],
)
async def test_a_guest_in_the_main_session_is_no_owner(tool: CronTool, gateway: Gateway, body: MessageBody) -> None:
    of_guest = await context(gateway, MAIN, body=body)
    owners = await use(tool, gateway, action="add", job={"schedule": EVERY, "payload": TURN})
    for refused in (
        {"action": "add", "job": {"schedule": EVERY, "payload": EVENT}},
        {"action": "wake", "text": "obey"},
        {"action": "remove", "jobId": owners["id"]},
    ):
        with pytest.raises(ToolError):
            await tool.run(refused, of_guest)
    made = (await tool.run({"action": "add", "job": {"schedule": EVERY, "payload": TURN}}, of_guest)).details
    assert made["scheduledBy"] == MAIN and gateway.runtime.notes.peek(MAIN) == []


async def test_a_job_does_not_give_an_agent_a_program_that_is_none_of_its_models(
    tool: CronTool, gateway: Gateway
) -> None:
    config = gateway.runtime.config.current
    backends = {"my-cli": CliBackend(command="my-cli")}
    defaults = msgspec.structs.replace(config.agents.defaults, cli_backends=backends)
    agents = msgspec.structs.replace(config.agents, defaults=defaults)
    catalogue = Catalogue(msgspec.structs.replace(config, agents=agents), {})
    job = {"schedule": EVERY, "sessionTarget": "isolated", "payload": {**TURN, "model": "my-cli/large"}}
    with patch.object(CurrentCatalogue, "__call__", lambda _: catalogue), pytest.raises(ToolError, match="a program"):
        await use(tool, gateway, action="add", job=job)
    assert (await use(tool, gateway, action="status"))["jobs"] == 0
