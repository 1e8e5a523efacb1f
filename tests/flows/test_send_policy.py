"""The send policy when a reply is made: what was under way when it changed is not delivered, and ``why`` says so."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.flows.test_replies import ANN, SMALL, STREAM, Start, sent, signal, start, streamed
from tests.flows.test_why import history
from tests.support.gateway import WireClient
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

__all__ = ["signal", "start"]
NOT_ALLOWED = "the session's send policy does not allow replies"


async def deny(client: WireClient) -> None:
    await client.call("sessions.patch", {"key": "main", "sendPolicy": "deny"})


async def ended(client: WireClient, count: int = 1) -> list[dict[str, Any]]:
    """Waits until so many messages of people have their end. Returns them, the oldest first."""
    async with asyncio.timeout(60):
        while True:
            rows = (await client.call("messages.list", {}))["messages"]
            done = [row for row in rows if row["source"] == "signal" and row.get("endedAt")]
            if len(done) >= count:
                return done[::-1]
            await asyncio.sleep(0.01)


async def test_a_reply_under_way_is_not_delivered_and_commands_are_answered(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("Too late.", hold=held, hold_after=0), Reply("In time."))
    async with start() as gateway, gateway.client() as client:
        await signal.say("go", sender=ANN)
        await models.wait_for_requests(1)
        await deny(client)
        held.set()
        (row,) = await ended(client)
        assert row["state"] == "silent"
        told = await history(client, row["id"])
        assert f"The reply was not sent: {NOT_ALLOWED}." in told and "“Too late.”" in told
        await signal.say("/send on", sender=ANN)
        (answer,) = await sent(signal, 1)
        assert "Send policy set to on" in answer
        await signal.say("again", sender=ANN)
        assert (await sent(signal, 2))[1:] == ["In time."]
        shown = await client.call("chat.history", {"sessionKey": "main"})
    assert "Too late." in str(shown["messages"])


async def test_the_rest_of_a_streamed_reply_is_not_delivered(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    held = asyncio.Event()
    pieces = ("First paragraph.\n\n", "Second ", "paragraph of this text.\n\n", "Third.")
    models.queue(streamed(*pieces, hold=held, hold_after=2))
    async with start(STREAM, SMALL) as gateway, gateway.client() as client:
        await signal.say("go", sender=ANN)
        assert await sent(signal, 1) == ["First paragraph."]
        await deny(client)
        held.set()
        (row,) = await ended(client)
        assert row["state"] == "answered"
        told = await history(client, row["id"])
        assert "Delivered to signal." in told and f"The rest was not sent: {NOT_ALLOWED}." in told
        assert await sent(signal, 1) == ["First paragraph."]


async def test_the_notice_of_a_failed_run_is_not_delivered(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(
        Reply(calls=[Call("read", {"path": "AGENTS.md"})], hold=held, hold_after=0),
        Reply(status=401, message="revoked"),
    )
    async with start() as gateway, gateway.client() as client:
        await signal.say("go", sender=ANN)
        await models.wait_for_requests(1)
        await deny(client)
        held.set()
        (row,) = await ended(client)
        assert row["state"] == "failed"
        assert f"The notice was not sent: {NOT_ALLOWED}." in await history(client, row["id"])
    assert not signal.of("send")


async def test_a_message_that_waits_is_not_run(start: Start, signal: SignalDaemon, models: ModelServer) -> None:
    held = asyncio.Event()
    models.queue(Reply("Too late.", hold=held, hold_after=0))
    queue = {"queue": {"mode": "followup", "debounceMs": 0}}
    async with start(messages=queue) as gateway, gateway.client() as client:
        await signal.say("go", sender=ANN)
        await models.wait_for_requests(1)
        await signal.say("and then", sender=ANN)
        async with asyncio.timeout(60):
            while len((await client.call("messages.list", {}))["messages"]) < 2:
                await asyncio.sleep(0.01)
        await deny(client)
        held.set()
        rows = await ended(client, 2)
        assert [row["state"] for row in rows] == ["silent", "silent"]
        assert NOT_ALLOWED in await history(client, rows[1]["id"])
    assert len(models.requests) == 1 and not signal.of("send")


async def test_the_result_of_a_sub_agent_stays_in_the_session(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(
        Reply(calls=[Call("sessions_spawn", {"task": "add", "label": "sum"})]),
        Reply("Started."),
        Reply("seven", hold=held, hold_after=0),
        Reply("The sum is 7."),
    )
    async with start() as gateway, gateway.client() as client:
        await signal.say("go", sender=ANN)
        assert await sent(signal, 1) == ["Started."]
        (row,) = await ended(client)
        await deny(client)
        held.set()
        ledger = gateway.gateway.runtime.stores.ledger
        async with asyncio.timeout(60):
            while await ledger.jobs(ended=False) or not await ledger.jobs(ended=True):
                await asyncio.sleep(0.01)
        told = await history(client, row["id"])
        assert f"its result was not posted on the channel, because {NOT_ALLOWED}" in told
        shown = await client.call("chat.history", {"sessionKey": "main"})
        assert "The sum is 7." in str(shown["messages"])
        posted = [one for one in (await client.call("messages.list", {}))["messages"] if one["source"] == "agent"]
        assert f"The reply was not sent: {NOT_ALLOWED}." in await history(client, posted[0]["id"])
    assert await sent(signal, 1) == ["Started."]


async def test_the_answer_of_a_job_is_not_delivered_and_the_job_says_so(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    rule = {"match": {"channel": "signal"}, "action": "deny"}
    models.queue(Reply("Good morning."))
    job = {
        "name": "greet",
        "schedule": {"kind": "every", "everyMs": 3_600_000},
        "sessionTarget": "isolated",
        "payload": {"kind": "agentTurn", "message": "greet"},
        "delivery": {"mode": "announce", "channel": "signal", "to": ANN},
    }
    async with start(session={"sendPolicy": {"rules": [rule]}}) as gateway, gateway.client() as client:
        made = await client.call("cron.add", job)
        await client.call("cron.run", {"id": made["id"], "mode": "force"})
        (run,) = (await client.call("cron.runs", {"id": made["id"]}))["entries"]
        assert (run["status"], run["error"]) == ("error", "send blocked by session policy")
    assert len(models.requests) == 1 and not signal.of("send")
