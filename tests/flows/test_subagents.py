"""Sub-agents from the call that starts them to the result in the chat that asked."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.runs.session_change import StillActive
from openclaw.teamwork import subagents
from openclaw.teamwork.subagents import runtime_text, state_of
from tests.flows.test_session_tools import invoke
from tests.support import stored
from tests.support.clock import MovableClock
from tests.support.gateway import WireClient, model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Recorded, Reply
from tests.support.signal_daemon import SignalDaemon

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def home(tmp_path: Path, models: ModelServer) -> AsyncIterator[InProcessGateway]:
    config = model_config(models.base_url, models.api_key)
    async with InProcessGateway(tmp_path / "state", config) as gateway:
        async with gateway.client() as client:
            await client.chat("[[reply:begun]]", "main")
        yield gateway


async def told(client: WireClient) -> str:
    """The result that is posted to the chat."""

    def matches(event: str, payload: Any) -> bool:
        return event == "chat" and payload["state"] == "final" and "Status: " in text_of(payload)

    return text_of((await client.event(matches))["payload"])


async def ended(gateway: InProcessGateway) -> list[Any]:
    ledger = gateway.gateway.runtime.stores.ledger
    async with asyncio.timeout(60):
        while await ledger.jobs(ended=False) or not (found := await ledger.jobs(ended=True)):
            await asyncio.sleep(0.01)
    return [state_of(job) for job in found]


async def test_a_result_is_told_with_its_status_and_its_figures(home: InProcessGateway, models: ModelServer) -> None:
    async with home.client() as client:
        models.queue(Reply("long work"), Reply("The sum is 7."))
        answer = await invoke(home, "sessions_spawn", {"task": "add 3 and 4", "label": "sum"})
        assert answer["status"] == "accepted" and answer["runId"]
        key = answer["childSessionKey"]
        assert key.startswith("agent:main:subagent:")
        text = await told(client)
        status, result, blank, stats = text.split("\n")
        assert (status, result, blank) == ("Status: success", "Result: The sum is 7.", "")
        assert stats.startswith("Stats: runtime ") and f"sessionKey {key}" in stats and "tokens " in stats
        assert Path(stats.rpartition("transcript ")[2]).name in stored.transcripts(home)
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert "The sum is 7." in json.dumps(history["messages"][-1])
        (state,) = await ended(home)
        assert (state.status, state.delivered) == ("success", True)
        rows = (await invoke(home, "sessions_list"))["sessions"]
        child = next(row for row in rows if row["key"] == key)
        assert (child["label"], child["spawnedBy"]) == ("sum", "agent:main:main")
    work, announce = list(models.requests)[1:3]
    assert "You are a sub-agent" in json.dumps(work.body["system"]) and "add 3 and 4" in json.dumps(work.body)
    assert "announce step" in json.dumps(announce.body["messages"][-1])
    names = {tool["name"] for tool in work.body["tools"]}
    assert "read" in names and not {name for name in names if name.startswith("session")}


async def test_the_next_turn_knows_the_living_and_the_told(home: InProcessGateway, models: ModelServer) -> None:
    held = asyncio.Event()
    async with home.client() as client:
        models.queue(Reply("done", hold=held, hold_after=0))
        await invoke(home, "sessions_spawn", {"task": "wait", "label": "slow one"})
        await models.wait_for_requests(2)
        await client.chat("how is it going? [[reply:fine]]", "main")
        assert "Sub-agents at work (1): slow one" in json.dumps(models.requests[-1].body["messages"][-1])
        held.set()
        await told(client)
        await client.chat("and now? [[reply:fine]]", "main")
        sent = json.dumps(models.requests[-1].body["messages"])
        assert "Sub-agents at work" not in sent.rpartition("and now?")[2] and "Status: success" in sent


async def test_skip_posts_nothing(home: InProcessGateway, models: ModelServer) -> None:
    models.queue(Reply("secret work"), Reply("ANNOUNCE_SKIP"))
    await invoke(home, "sessions_spawn", {"task": "be quiet"})
    (state,) = await ended(home)
    assert state.silent and not state.delivered
    async with home.client() as client:
        history = await client.call("chat.history", {"sessionKey": "main"})
        assert "Status:" not in json.dumps(history)


async def test_the_labels_of_a_sub_agent_are_not_nested_and_its_status_is_dropped(
    home: InProcessGateway, models: ModelServer
) -> None:
    models.queue(Reply("work"), Reply("Status: failed miserably\nResult: 7\nNotes: by hand"))
    await invoke(home, "sessions_spawn", {"task": "add 3 and 4"})
    await ended(home)
    async with home.client() as client:
        history = await client.call("chat.history", {"sessionKey": "main"})
    status, result, notes, blank, stats = text_of({"message": history["messages"][-1]}).split("\n")
    assert (status, result, notes, blank) == ("Status: success", "Result: 7", "Notes: by hand", "")
    assert stats.startswith("Stats: ")


async def test_a_model_that_only_the_configuration_names_is_known(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["subagents"] = {"model": "mock/new-one"}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat("[[reply:begun]]", "main")
        models.queue(Reply("work"), Reply("done"))
        answer = await invoke(gateway, "sessions_spawn", {"task": "x", "model": "mock/new-one"})
        assert (answer["status"], answer["modelApplied"]) == ("accepted", True)
        assert (await told(client)).startswith("Status: success")


async def test_a_failure_is_told_as_one_whatever_was_said(home: InProcessGateway, models: ModelServer) -> None:
    async with home.client() as client:
        models.answer_with(lambda _: Reply(status=401))
        await invoke(home, "sessions_spawn", {"task": "fail"})
        text = await told(client)
        assert text.startswith("Status: error\nResult: (not available)\nNotes: ")


async def test_a_time_limit_stops_the_work_and_is_the_status(home: InProcessGateway, models: ModelServer) -> None:
    held = asyncio.Event()
    async with home.client() as client:
        models.queue(Reply("never", hold=held, hold_after=0))
        await invoke(home, "sessions_spawn", {"task": "slow", "runTimeoutSeconds": 0.2})
        assert (await told(client)).startswith("Status: timeout\n")
        held.set()


@pytest.mark.parametrize(
    ("arguments", "key", "status", "error"),
    [
        ({"task": "x"}, "agent:main:subagent:y", "404", "Tool not available"),
        ({"task": "x", "agentId": "beta"}, "main", "forbidden", "(allowed: none)"),
        ({"task": "x", "model": "no-such-model"}, "main", "error", "Unknown model"),
        ({"task": "x", "model": "mock/no-such-model"}, "main", "error", "Unknown model 'mock/no-such-model'"),
        ({"task": "x", "model": "anthropic/claude-nobody-knows"}, "main", "error", "Unknown model"),
        ({"task": "x", "thinking": "much"}, "main", "error", 'Invalid thinking level "much"'),
        ({"task": "  "}, "main", "404", "task"),
        ({"task": "x", "cleanup": "maybe"}, "main", "404", "cleanup"),
    ],
)
async def test_a_bad_call_is_an_error_and_starts_nothing(
    home: InProcessGateway, arguments: dict[str, Any], key: str, status: str, error: str
) -> None:
    answer = await invoke(home, "sessions_spawn", arguments, key)
    if status == "404":
        assert error in answer
    else:
        assert answer["status"] == status and error in answer["error"]
    if "model" in arguments:
        assert answer["childSessionKey"].startswith("agent:main:subagent:"), "the one that was not made"
    assert not await home.gateway.runtime.stores.ledger.jobs()


@pytest.mark.parametrize(
    ("ms", "text"),
    [(88, "88ms"), (1500, "2s"), (60_000, "1m"), (151_000, "2m31s"), (3_661_000, "1h1m"), (59_700, "1m"), (0, "n/a")],
)
async def test_how_long_it_took_is_said_in_few_letters(ms: int, text: str) -> None:
    assert runtime_text(ms) == text


async def test_another_agent_is_started_if_it_is_allowed(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["list"] = [
        {"id": "main", "default": True, "subagents": {"allowAgents": ["beta", "gone"]}},
        {"id": "beta"},
    ]
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat("[[reply:begun]]", "main")
        answer = await invoke(gateway, "sessions_spawn", {"task": "x [[reply:y]]", "agentId": "Beta"})
        assert answer["childSessionKey"].startswith("agent:beta:subagent:")
        gone = await invoke(gateway, "sessions_spawn", {"task": "x", "agentId": "gone"})
        assert gone["status"] == "error" and "no agent" in gone["error"]
        assert (await told(client)).startswith("Status: success")


async def test_its_session_is_deleted_at_once_or_archived_later(tmp_path: Path, models: ModelServer) -> None:
    clock = MovableClock()
    config = model_config(models.base_url, models.api_key)
    async with InProcessGateway(tmp_path / "state", config, clock=clock) as gateway, gateway.client() as client:
        await client.chat("[[reply:begun]]", "main")
        gone = await invoke(gateway, "sessions_spawn", {"task": "x [[reply:y]]", "cleanup": "delete"})
        await ended(gateway)
        kept = await invoke(gateway, "sessions_spawn", {"task": "x [[reply:y]]"})
        await ended(gateway)
        keys = {row["key"] for row in (await invoke(gateway, "sessions_list"))["sessions"]}
        assert kept["childSessionKey"] in keys and gone["childSessionKey"] not in keys
        clock.advance(59 * 60)
        await gateway.gateway.team.subagents.archive_due()
        assert kept["childSessionKey"] in {row["key"] for row in (await invoke(gateway, "sessions_list"))["sessions"]}
        clock.advance(120)
        await gateway.gateway.team.subagents.archive_due()
        assert {row["key"] for row in (await invoke(gateway, "sessions_list"))["sessions"]} == {"main"}
        assert sum(".deleted." in name for name in stored.transcripts(gateway)) == 2


async def test_a_session_that_could_not_be_deleted_is_deleted_by_the_next_sweep(
    home: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def still_active(*_: Any) -> None:
        raise StillActive("its run does not end")

    async with home.client() as client:
        await client.chat("[[reply:begun]]", "main")
        with monkeypatch.context() as patched:
            patched.setattr(subagents, "delete_session", still_active)
            child = await invoke(home, "sessions_spawn", {"task": "x [[reply:y]]", "cleanup": "delete"})
            await ended(home)
        listed = await invoke(home, "sessions_list")
        assert child["childSessionKey"] in {row["key"] for row in listed["sessions"]}
        await home.gateway.team.subagents.archive_due()
        listed = await invoke(home, "sessions_list")
        assert child["childSessionKey"] not in {row["key"] for row in listed["sessions"]}


async def test_a_session_is_archived_also_after_a_thousand_other_sub_agents(home: InProcessGateway) -> None:
    child = await invoke(home, "sessions_spawn", {"task": "x [[reply:y]]"})
    await ended(home)
    ledger = home.gateway.runtime.stores.ledger
    (job,) = await ledger.jobs()
    older = {**job.state, "archived": True}
    await asyncio.gather(
        *(
            ledger.job_put(msgspec.structs.replace(job, id=str(number), created_at=number, state=older))
            for number in range(1000)
        )
    )
    await ledger.job_put(msgspec.structs.replace(job, state={**job.state, "archiveAt": 1}))
    await home.gateway.team.subagents.archive_due()
    listed = await invoke(home, "sessions_list")
    assert child["childSessionKey"] not in {row["key"] for row in listed["sessions"]}


async def test_a_sub_agent_that_may_not_be_sent_to_is_told_as_a_failure_and_is_not_at_work(
    tmp_path: Path, models: ModelServer
) -> None:
    policy = {"rules": [{"match": {"keyPrefix": "subagent:"}, "action": "deny"}], "default": "allow"}
    config = model_config(models.base_url, models.api_key, session={"sendPolicy": policy})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        await client.chat("[[reply:begun]]", "main")
        await invoke(gateway, "sessions_spawn", {"task": "never begun"})
        assert "Notes: send blocked by session policy" in await told(client)
        (state,) = await ended(gateway)
        assert (state.status, state.delivered) == ("error", True)
        await client.chat("and? [[reply:fine]]", "main")
        assert "Sub-agents at work" not in json.dumps(models.requests[-1].body["messages"][-1])


async def test_a_result_waits_for_a_disk_that_stays_full_for_hours(
    tmp_path: Path, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovableClock()
    async with InProcessGateway(tmp_path / "state", model_config(models.base_url, models.api_key), clock=clock) as home:
        ledger, full = home.gateway.runtime.stores.ledger, True
        post, refused = ledger.post, list[int]()

        async def may_be_full(*given: Any, **end: Any) -> Any:
            if full and given[0].source == "agent":
                refused.append(clock.now_ms())
                raise OSError(errno.ENOSPC, "No space left on device")
            return await post(*given, **end)

        monkeypatch.setattr(ledger, "post", may_be_full)
        async with home.client() as client:
            await client.chat("[[reply:begun]]", "main")
            await invoke(home, "sessions_spawn", {"task": "x [[reply:y]]"})
            async with asyncio.timeout(60):
                while len(refused) < 2 or refused[-1] - refused[0] < 3600_000:
                    await asyncio.sleep(0.01)
                    clock.advance(60)
            full = False
            async with asyncio.timeout(60):
                while not (jobs := await ledger.jobs(ended=True)):
                    await asyncio.sleep(0.01)
                    clock.advance(60)
            assert state_of(jobs[0]).delivered
            history = await client.call("chat.history", {"sessionKey": "main"})
            assert json.dumps(history).count("Status: success") == 1


async def test_many_children_of_one_parent_all_report_once(home: InProcessGateway, models: ModelServer) -> None:
    calls = [Call("sessions_spawn", {"task": f"number {number}", "label": f"n{number}"}) for number in range(20)]

    def work(request: Recorded) -> Reply:
        last = json.dumps(request.body["messages"][-1])
        if "spawn them" in last:
            return Reply(calls=calls)
        return Reply("all started" if "tool_result" in last else "did it")

    async with home.client() as client:
        models.answer_with(work)
        assert text_of(await client.chat("spawn them", "main")) == "all started"
        states = await ended(home)
        assert len(states) == 20 and all(state.delivered for state in states)
        history = await client.call("chat.history", {"sessionKey": "main", "limit": 500})
        assert json.dumps(history["messages"]).count("Status: success") == 20
        row = next(
            row
            for row in (await client.call("messages.list", {"limit": 200}))["messages"]
            if row["sessionKey"] in ("main", "agent:main:main") and "spawn them" in json.dumps(row)
        )
        story = (await client.call("messages.why", {"ref": row["runId"]}))["story"]
        started = [line for line in story if line.startswith("It started the sub-agent")]
        assert len(started) == 20 and "success; its result was posted" in started[0]
        child = started[0].rpartition("run ")[2].split(")")[0]
        told = "\n".join((await client.call("messages.why", {"ref": child}))["story"])
        assert "It came from the session agent:main:main by sessions_spawn." in told


async def test_a_deleted_requester_is_not_made_again_and_the_result_is_kept(
    home: InProcessGateway, models: ModelServer
) -> None:
    held = asyncio.Event()
    async with home.client() as client:
        await client.chat("[[reply:begun]]", "agent:main:asker")
        models.queue(Reply("done", hold=held, hold_after=0), Reply("said"))
        await invoke(home, "sessions_spawn", {"task": "slow"}, "agent:main:asker")
        await models.wait_for_requests(3)
        await home.gateway.runtime.stores.sessions.update("main", "agent:main:asker", lambda _: None)
        held.set()
        (state,) = await ended(home)
        assert not state.delivered and "Result: said" in state.result
        keys = {row["key"] for row in (await invoke(home, "sessions_list"))["sessions"]}
        assert "agent:main:asker" not in keys


async def test_a_person_looks_at_them_speaks_to_one_and_stops_them(home: InProcessGateway, models: ModelServer) -> None:
    held = asyncio.Event()
    async with home.client() as client:
        assert text_of(await client.chat("/subagents")) == "🧩 No sub-agents here."
        models.queue(Reply("first done"), Reply("told first"))
        await invoke(home, "sessions_spawn", {"task": "one", "label": "first"})
        await ended(home)
        models.queue(Reply("never", hold=held, hold_after=0))
        answer = await invoke(home, "sessions_spawn", {"task": "two", "label": "second"})
        await models.wait_for_requests(4)
        listed = text_of(await client.chat("/subagents list"))
        assert "1 at work" in listed and "1. first · success" in listed and "2. second · running" in listed
        info = text_of(await client.chat(f"/subagents info {answer['runId'][:8]}"))
        assert "Label: second" in info and "Status: running" in info
        assert "first done" in text_of(await client.chat("/subagents log first"))
        assert text_of(await client.chat("/subagents send 1 and now? [[reply:all is well]]")) == "all is well"
        assert "There is no sub-agent" in text_of(await client.chat("/subagents stop 9"))
        assert "second was stopped" in text_of(await client.chat("/subagents stop last"))
        states = await ended(home)
        assert [state.status for state in states] == ["success", "stopped"]
        held.set()


@pytest.mark.parametrize(("count", "said"), [(1, "Stopped 1 sub-agent."), (2, "Stopped 2 sub-agents.")])
async def test_stop_ends_the_sub_agents_of_the_chat_too(
    home: InProcessGateway, models: ModelServer, count: int, said: str
) -> None:
    held = asyncio.Event()
    async with home.client() as client:
        models.queue(*(Reply("never", hold=held, hold_after=0) for _ in range(count)))
        for _ in range(count):
            await invoke(home, "sessions_spawn", {"task": "slow"})
        await models.wait_for_requests(1 + count)
        stop = await client.send("agent", {"sessionKey": "main", "message": "/stop", "idempotencyKey": "s"})
        await client.answer(stop)
        (payload,) = (await client.answer(stop))["result"]["payloads"]
        assert payload["text"] == f"⚙️ Agent was aborted. {said}"
        assert [(state.status, state.delivered) for state in await ended(home)] == [("stopped", False)] * count
        held.set()


MANY = 50


async def test_fifty_sub_agents_of_one_message_work_side_by_side(tmp_path: Path, models: ModelServer) -> None:
    limits = {"maxConcurrent": MANY, "maxChildrenPerAgent": MANY}
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["subagents"] = limits
    held = asyncio.Event()
    spawns = [Call("sessions_spawn", {"task": f"part {number};"}) for number in range(MANY)]

    def answer(request: Recorded) -> Reply:
        said = json.dumps(request.body["messages"][-1])
        if "announce step" in said:
            return Reply("Told.")
        if "part " in said and "You are a sub-agent" in json.dumps(request.body["system"]):
            return Reply("Done.", hold=held)
        return Reply(calls=spawns) if "start all" in said else Reply("They are at work.")

    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        models.answer_with(answer)
        await client.chat("start all", "main")
        # The task of every child is with its model while none has been answered.
        await models.wait_for_requests(2 + MANY)
        assert len(await gateway.gateway.runtime.stores.ledger.jobs(ended=False)) == MANY
        assert text_of(await client.chat("are you there?", "main")) == "They are at work."
        held.set()
        states = await ended(gateway)
        assert len(states) == MANY and all((state.status, state.delivered) == ("success", True) for state in states)
        history = await client.call("chat.history", {"sessionKey": "main", "limit": 500})
        told_keys = [
            line for line in json.dumps(history).split("sessionKey ") if line.startswith("agent:main:subagent:")
        ]
        assert sorted(line.split(" ")[0] for line in told_keys) == sorted(state.child for state in states)
        assert text_of(await client.chat("and now?", "main")) == "They are at work."


async def test_a_guest_speaks_to_a_sub_agent_of_the_owner_as_a_guest(tmp_path: Path, models: ModelServer) -> None:
    """All direct chats are one conversation by default, so a guest sees the owner's sub-agents."""
    owner, guest, own = "+15550000001", "+15550000042", "+15550009999"
    async with SignalDaemon(own) as signal:
        account = {"enabled": True, "account": own, "httpUrl": signal.url, "autoStart": False, "dmPolicy": "pairing"}
        config = model_config(models.base_url, models.api_key, channels={"signal": {**account, "allowFrom": [owner]}})
        credentials = tmp_path / "state" / "credentials"
        credentials.mkdir(parents=True)
        (credentials / "signal-allowFrom.json").write_text(json.dumps({"version": 1, "allowFrom": [guest]}))
        async with InProcessGateway(tmp_path / "state", config) as home, home.client() as client:
            await client.chat("[[reply:begun]]", "main")
            await signal.connected()
            models.queue(Reply("done"), Reply("told"))
            await invoke(home, "sessions_spawn", {"task": "one", "label": "first"})
            (state,) = await ended(home)
            for sender in (owner, guest):
                await signal.say(f"/subagents send 1 hello [[reply:hello {sender}]]", sender=sender)
                await signal.until(lambda: any(f"hello {sender}" in str(one) for one in signal.of("send")))  # noqa: B023
            rows = await home.gateway.runtime.stores.ledger.recent(limit=20)
            spoken = [row for row in rows if row.session_key == state.child and "hello" in (row.body.prompt or "")]
            assert [row.body.guest for row in sorted(spoken, key=lambda row: row.id)] == [False, True]
