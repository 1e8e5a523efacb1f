"""Every end a message can have, and every trouble on the way, told in plain words by the running Gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from openclaw.runs.recovery import EXPIRY_MS
from tests.flows.test_why import history, why
from tests.support import stored
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import RequestFailed, WireClient, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

US, ANN = "+15550000001", "+15550000042"
Start = Callable[..., AbstractAsyncContextManager[tuple[InProcessGateway, WireClient]]]
StartProcess = Callable[[], AbstractAsyncContextManager[tuple[ForkedGateway, WireClient]]]


@pytest.fixture
def start(tmp_path: Path, models: ModelServer) -> Start:
    @asynccontextmanager
    async def serving(
        env: dict[str, str] | None = None, **more: Any
    ) -> AsyncIterator[tuple[InProcessGateway, WireClient]]:
        config = model_config(models.base_url, models.api_key, **more)
        async with InProcessGateway(tmp_path / "state", config, env) as gateway, gateway.client() as client:
            yield gateway, client

    return serving


@pytest.fixture
def start_process(tmp_path: Path, models: ModelServer) -> StartProcess:
    """For tests that kill the Gateway."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[tuple[ForkedGateway, WireClient]]:
        process = ForkedGateway(tmp_path / "state", model_config(models.base_url, models.api_key))
        async with process, process.client() as client:
            yield process, client

    return serving


def never() -> Reply:
    return Reply("never", hold=asyncio.Event(), hold_after=0)


async def send(client: WireClient, key: str, text: str | None = None, **more: Any) -> None:
    params = {"sessionKey": "main", "message": text or key, "idempotencyKey": key, **more}
    await client.call("chat.send", params)


async def wait(client: WireClient, key: str) -> dict[str, Any]:
    return await client.call("agent.wait", {"runId": key, "timeoutMs": 50_000})


async def ended(client: WireClient, key: str) -> tuple[str, str]:
    """State and story of a message once it has ended."""
    await wait(client, key)
    return (await why(client, key))["message"]["state"], await history(client, key)


def queue(**settings: Any) -> dict[str, Any]:
    return {"messages": {"queue": {"debounceMs": 0, **settings}}}


async def test_silence_a_failure_and_a_time_limit(start: Start, models: ModelServer) -> None:
    async with start() as (_, client):
        await send(client, "a", "hm [[reply:NO_REPLY]]")
        state, told = await ended(client, "a")
        assert state == "silent" and ": its reply was NO_REPLY." in told
        models.queue(Reply(status=401, message="this key was revoked"))
        await send(client, "b")
        state, told = await ended(client, "b")
        assert state == "failed" and "this key was revoked" in told
        assert told.endswith("The clients that were connected were told so.")
        assert "The model's provider does not accept the key. Check it with `openclaw models status`" in told
        models.queue(Reply(""))
        await send(client, "e")
        state, told = await ended(client, "e")
        assert state == "answered"
        assert "with a notice instead of an answer: the model ended its turn without a word." in told
        models.queue(never())
        await send(client, "c", timeoutMs=200)
        state, told = await ended(client, "c")
        assert state == "failed" and ": the run took longer than its time limit." in told


async def test_a_time_limit_is_told_to_every_client(start: Start, models: ModelServer) -> None:
    words = "the run took longer than its time limit of 1 s and was stopped"
    async with start() as (_, client):
        models.queue(never())
        await send(client, "c", timeoutMs=1000)
        shown = await client.ending("c")
        assert (shown["state"], shown["errorMessage"], shown["stopReason"]) == ("error", words, "timeout")
        of_run = [event["payload"] for event in client.of_run("c")]
        assert any(e.get("stream") == "lifecycle" and e["data"].get("error") == words for e in of_run)
        waited = await client.call("agent.wait", {"runId": "c", "timeoutMs": 50_000})
        assert (waited["status"], waited["error"]) == ("error", words)
        assert words in await history(client, "c")


async def test_an_answer_that_was_continued_says_how_often_and_what_ended_it(start: Start, models: ModelServer) -> None:
    async with start() as (_, client):
        models.queue(Reply(text="one ", stop="length"), Reply(text="two.", stop="stop"))
        await send(client, "a")
        _, told = await ended(client, "a")
        assert "The output limit cut its answer, and the model was asked to go on once.\n" in told
        assert "most it is asked" not in told
        models.queue(*(Reply(text=f"part {number} ", stop="length") for number in range(9)))
        await send(client, "b")
        _, told = await ended(client, "b")
        assert "the model was asked to go on 3 times." in told
        assert "The answer was still not whole then. 3 times is the most it is asked (agents.defaults." in told
        models.forget()


async def test_a_redelivery_is_counted_and_told(start: Start, models: ModelServer, signal: SignalDaemon) -> None:
    async with start(**on_signal(signal)) as (_, client):
        await send(client, "web")
        await wait(client, "web")
        for _ in range(2):
            await send(client, "web")
        assert "The same message came again twice, the last time on " in await history(client, "web")
        await signal.connected()
        await signal.say("hello [[reply:Hi.]]", sender=ANN)
        await signal.called("send")
        row = await newest(client, "answered")
        await signal.repeat_all()
        async with asyncio.timeout(60):
            while "came again" not in (told := await history(client, row["id"])):
                await asyncio.sleep(0.02)
        assert "The same message came again once on " in told and "recognised and ignored" in told


async def test_a_message_that_was_turned_away_is_found_by_its_id_on_the_channel_without_its_words(
    start: Start, models: ModelServer, signal: SignalDaemon
) -> None:
    config = on_signal(signal)
    config["channels"]["signal"] |= {"dmPolicy": "allowlist", "allowFrom": [ANN]}
    async with start(**config) as (gateway, client):
        await signal.connected()
        envelope = await signal.say("a secret of a stranger", sender="+15550009999")
        ref = str(envelope["timestamp"])
        async with asyncio.timeout(60):
            while True:
                try:
                    told = await why(client, ref)
                    break
                except RequestFailed:
                    await asyncio.sleep(0.02)
        assert told["kind"] == "turnedAway" and told["turnedAway"][0]["code"] == "access_denied"
        assert "It was not accepted: its sender may not write to the agent here" in "\n".join(told["story"])
        assert "secret" not in json.dumps(told)
        assert "secret" not in stored.everything_in_ledger(gateway)
        await signal.repeat_all()
        async with asyncio.timeout(60):
            while (await why(client, ref))["turnedAway"][0]["count"] < 2:
                await asyncio.sleep(0.02)
        shown = await gateway.command("why", ref)
        assert "not accepted" in shown.stdout and "and once more" in shown.stdout


@pytest.mark.parametrize(("drop", "passed_on"), [("old", False), ("summarize", True)])
async def test_dropped_from_a_full_queue(start: Start, models: ModelServer, drop: str, passed_on: bool) -> None:
    held = asyncio.Event()
    models.queue(Reply("A", hold=held, hold_after=0))
    async with start(**queue(mode="followup", cap=1, drop=drop)) as (_, client):
        await send(client, "a")
        await models.wait_for_requests(1)
        await send(client, "b")
        await send(client, "c", "c [[reply:C]]")
        state, told = await ended(client, "b")
        held.set()
        assert state == "superseded" and "more messages were waiting than the queue holds (1)" in told
        assert ("its beginning was put before the next one" in told) is passed_on
        assert (await ended(client, "c"))[0] == "answered"


async def test_refused_because_too_many_wait(start: Start, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("A", hold=held, hold_after=0))
    async with start(**queue(mode="followup", cap=1, drop="new")) as (_, client):
        await send(client, "a")
        await models.wait_for_requests(1)
        await send(client, "b")
        with contextlib.suppress(RequestFailed):
            await send(client, "c")
        state, told = await ended(client, "c")
        held.set()
        assert state == "failed" and "Not taken: 1 messages of this session are waiting already." in told


async def test_stopped_interrupted_and_reset(start: Start, models: ModelServer) -> None:
    async with start(**queue(mode="interrupt")) as (_, client):
        for key, stop, words in (
            ("a", ("chat.abort", {"sessionKey": "main", "runId": "a"}), "a client asked for it"),
            (
                "b",
                ("chat.send", {"sessionKey": "main", "message": "/stop", "idempotencyKey": "s"}),
                "someone said stop",
            ),
            ("c", ("sessions.reset", {"key": "main"}), "the session was reset"),
            ("d", ("chat.send", {"sessionKey": "main", "message": "e", "idempotencyKey": "e"}), "a newer message"),
        ):
            models.queue(never())
            before = len(models.requests)
            await send(client, key)
            await models.wait_for_requests(before + 1)
            await client.call(*stop)
            state, told = await ended(client, key)
            assert state == "superseded" and "Stopped on " in told and words in told, key


async def test_taken_into_another_run(start: Start, models: ModelServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    command = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    models.queue(Reply("", calls=[Call("exec", {"command": command})]), Reply("both"))
    async with start(**queue(mode="steer")) as (_, client):
        await client.call("sessions.patch", {"key": "main", "verboseLevel": "on"})
        await send(client, "a")
        await client.event(lambda event, payload: event == "agent" and payload["stream"] == "tool")
        await send(client, "b")
        gate.touch()
        await wait(client, "b")
        told = await why(client, "b")
        assert told["message"]["state"] == "superseded"
        assert "Run a received its text on " in "\n".join(told["story"])
        assert any(line.endswith("“both”") for line in told["answeredBy"]["story"])


async def test_a_budget_that_is_used_up(start: Start) -> None:
    agents = {"defaults": {"model": "mock/mock-1", "userTimezone": "UTC", "budget": {"sessionTokens": 1}}}
    async with start(agents=agents) as (_, client):
        await send(client, "a", "a [[reply:first]]")
        await wait(client, "a")
        await send(client, "b")
        state, told = await ended(client, "b")
        assert state == "failed" and "sessionTokens" in told


async def test_too_old_when_the_gateway_came_back(start_process: StartProcess, models: ModelServer) -> None:
    models.queue(never())
    async with start_process() as (gateway, client):
        await send(client, "a", "book the train for tonight")
        await models.wait_for_requests(1)
        await send(client, "b")
        gateway.kill()
        stored.ledger(gateway, f"UPDATE messages SET accepted_at = accepted_at - {EXPIRY_MS}")
        await gateway.start()
        async with gateway.client() as again:
            for key in ("a", "b"):
                answer = await wait(again, key)
                assert (answer["status"], "had waited 24 hours" in answer["error"]) == ("error", True)
                state, told = await ended(again, key)
                assert state == "expired" and "Expired on " in told and "Send it again if it still matters." in told
            with pytest.raises(RequestFailed, match="24 hours"):
                await send(again, "a")
            history = (await again.call("chat.history", {"sessionKey": "main"}))["messages"]
            assert [message["role"] for message in history] == ["user", "assistant"] * 2
            assert "24 hours" in history[1]["errorMessage"]
            listed = await again.call("messages.list", {"state": "expired"})
            assert [row["runId"] for row in listed["messages"]] == ["b", "a"]
            await again.chat("and now? [[reply:here]]", run_id="c")
            assert (await ended(again, "c"))[0] == "answered"
        gateway.kill()
        await gateway.start()
        async with gateway.client() as again:
            with pytest.raises(RequestFailed, match="24 hours"):
                await send(again, "a")
    assert len(models.requests) == 2


async def test_a_restart_before_it_began(start_process: StartProcess, models: ModelServer) -> None:
    models.queue(never())
    async with start_process() as (gateway, client):
        await send(client, "a")
        await models.wait_for_requests(1)
        await send(client, "b", "b [[reply:B]]")
        gateway.kill()
        await gateway.start()
        async with gateway.client() as again:
            assert "The Gateway stopped once while it worked on it" in (await ended(again, "a"))[1]
            state, told = await ended(again, "b")
            assert state == "answered" and "The Gateway stopped before it began and took it up again." in told


@pytest.mark.parametrize(
    ("error", "words"),
    [("ENOSPC", "No space left on device"), ("EIO", "Input/output error"), ("EROFS", "Read-only file system")],
)
@pytest.mark.parametrize("path", ["*.jsonl", "*/ledger.db"])
@pytest.mark.files_only("the disk of the Gateway refuses the files of sessions")
async def test_a_disk_that_takes_nothing(
    start: Start, models: ModelServer, tmp_path: Path, error: str, words: str, path: str
) -> None:
    full, held = tmp_path / "full", asyncio.Event()
    fault = [{"at": "write", "path": path, "do": error, "while": str(full)}]
    env = {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(fault)}
    models.queue(Reply("the answer", hold=held, hold_after=0))
    async with start(env) as (_, client):
        await send(client, "a")
        await models.wait_for_requests(1)
        full.touch()
        held.set()
        async with asyncio.timeout(60):
            while f"It waits for the disk now: {words}." not in await history(client, "a"):
                await asyncio.sleep(0.02)
        full.unlink()
        state, told = await ended(client, "a")
        assert state == "answered" and f"for the disk: {words}." in told and "It had to wait " in told


# On a channel


@pytest.fixture
async def signal() -> AsyncIterator[SignalDaemon]:
    async with SignalDaemon(US) as daemon:
        yield daemon


def on_signal(signal: SignalDaemon, **more: Any) -> dict[str, Any]:
    section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
    return {"channels": {"signal": section}, **more}


async def newest(client: WireClient, state: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            rows = (await client.call("messages.list", {"state": state}))["messages"]
            if rows:
                return rows[0]
            await asyncio.sleep(0.02)


async def test_a_failure_on_a_channel_is_told_there_once(
    start: Start, models: ModelServer, signal: SignalDaemon
) -> None:
    models.queue(Reply(status=401, message="this key was revoked"))
    async with start(**on_signal(signal)) as (_, client):
        await signal.connected()
        await signal.say("hello", sender=ANN)
        (sent,) = await signal.called("send")
        row = await newest(client, "failed")
        assert sent["message"].startswith("⚠️ ") and "revoked" in sent["message"]
        async with asyncio.timeout(60):
            while "The notice was delivered to signal." not in await history(client, row["id"]):
                await asyncio.sleep(0.02)


async def test_what_the_send_policy_keeps_from_being_answered_has_an_end(
    start: Start, models: ModelServer, signal: SignalDaemon
) -> None:
    policy = {"sendPolicy": {"rules": [{"match": {"channel": "signal"}, "action": "deny"}], "default": "allow"}}
    async with start(**on_signal(signal, session=policy)) as (_, client):
        await signal.connected()
        envelope = await signal.say("hello", sender=ANN)
        row = await newest(client, "silent")
        told = await history(client, row["id"])
        assert "the session's send policy does not allow replies" in told and "needed no run" in told
        await signal.repeat_all()
        await signal.say("again", sender=ANN)
        async with asyncio.timeout(60):
            while len(rows := (await client.call("messages.list", {}))["messages"]) < 2:
                await asyncio.sleep(0.02)
        assert [row["text"] for row in rows] == ["again", "hello"]
        assert envelope and not models.requests and not signal.of("send")


async def test_texts_put_together_are_one_message_under_each_of_their_names(
    start: Start, models: ModelServer, signal: SignalDaemon
) -> None:
    inbound = {"messages": {"inbound": {"byChannel": {"signal": 300}}}}
    async with start(**on_signal(signal, **inbound)) as (gateway, client):
        await signal.connected()
        await signal.say("first", sender=ANN)
        await signal.say("second [[reply:both]]", sender=ANN)
        await signal.called("send")
        row = await newest(client, "answered")
        assert len(row["messageIds"]) == 2
        for name in row["messageIds"]:
            told = await why(client, name)
            assert told["message"]["id"] == row["id"]
            assert "It was put together from 2 messages" in "\n".join(told["story"])
        shown = await gateway.command("why", row["messageIds"][0], "--json")
        assert json.loads(shown.stdout)["message"]["state"] == "answered"
