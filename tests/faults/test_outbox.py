"""A reply on its way while the Gateway, the daemon or the disk fails: it arrives, and what is in doubt is told.

The daemon cannot tell a second send from a new message. So a reply in doubt is sent again, is marked, and not for ever.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from openclaw.outbound.deliver import PART_EXPIRY_MS
from openclaw.storage.message_ledger import END_STATES
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

US, ANN = "+15550000001", "+15550000042"
AGAIN = "(possibly sent twice) Hi Ann"


@pytest.fixture
async def signal() -> AsyncIterator[SignalDaemon]:
    async with SignalDaemon(US) as daemon:
        yield daemon


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer, signal: SignalDaemon) -> AsyncIterator[ForkedGateway]:
    """Not started yet."""
    section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
    config = model_config(models.base_url, models.api_key, channels={"signal": {**section, "textChunkLimit": 40}})
    made = ForkedGateway(tmp_path / "state", config)
    yield made
    with contextlib.suppress(AssertionError):
        made.kill()


def plan(gateway: ForkedGateway, *faults: dict[str, Any]) -> None:
    gateway.env |= {"OPENCLAW_FAULT_INJECTION": "allow", "OPENCLAW_FAULT_PLAN": json.dumps(faults)}


def configure(gateway: ForkedGateway, change: Callable[[dict[str, Any]], None]) -> None:
    path = gateway.state_dir / "openclaw.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


async def died(gateway: ForkedGateway) -> None:
    assert gateway._process is not None
    await asyncio.wait_for(asyncio.to_thread(gateway._process.wait), 60)


async def begin(gateway: ForkedGateway, signal: SignalDaemon, text: str, *faults: dict[str, Any]) -> None:
    plan(gateway, *faults)
    await gateway.start()
    await signal.connected()
    await signal.say(text, sender=ANN)


async def live_again(gateway: ForkedGateway, signal: SignalDaemon, *faults: dict[str, Any]) -> None:
    await died(gateway)
    signal.disconnect()
    plan(gateway, *faults)
    with contextlib.suppress(AssertionError):  # What is left to deliver may end it before it says that it listens.
        await gateway.start()


async def settled(client: WireClient) -> tuple[list[dict[str, Any]], str]:
    """The deliveries of the only message and its story, once the message and every part have come to an end."""
    async with asyncio.timeout(60):
        while True:
            for row in (await client.call("messages.list", {}))["messages"]:
                facts = await client.call("messages.get", {"id": row["id"]})
                # Blocks are sent while the reply is being written, so that all of them may be sent before its end.
                ended = facts["state"] in END_STATES
                if (
                    ended
                    and facts["deliveries"]
                    and all(part["state"] in ("sent", "dead") for part in facts["deliveries"])
                ):
                    story = await client.call("messages.why", {"ref": str(row["id"])})
                    return facts["deliveries"], "\n".join(story["story"])
            await asyncio.sleep(0.02)


def got(signal: SignalDaemon) -> list[str]:
    return [call["message"] for call in signal.of("send")]


@pytest.mark.parametrize("before", [True, False])
async def test_dying_while_the_daemon_has_the_reply_loses_nothing_and_says_what_is_in_doubt(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer, before: bool
) -> None:
    signal.strike_next("send", gateway.kill, before=before)
    await begin(gateway, signal, "hello [[reply:Hi Ann]]")
    await live_again(gateway, signal)
    async with gateway.client() as client:
        (part,), story = await settled(client)
    # Nobody can know which of the two it was; the person has the reply in both, and sees that it may be a repeat.
    assert got(signal) == ["Hi Ann", AGAIN][1 if before else 0 :]
    assert (part["state"], part["attempts"], part["possiblyDuplicate"]) == ("sent", 2, True)
    assert "Delivered to signal after 2 tries (possibly delivered twice" in story
    assert len(models.requests) == 1


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    ("point", "hit"), [("tool.before", 1), ("tool.stored", 1), ("answer.after", 2), ("finish.before", 1)]
)
async def test_what_a_run_said_before_the_kill_is_delivered_too(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer, point: str, hit: int, blocks: bool
) -> None:
    """The words before a tool call are in no later answer of the run."""
    configure(gateway, lambda config: config["channels"]["signal"].update(blockStreaming=blocks))
    models.queue(Reply("Let me look.", calls=[Call("exec", {"command": "true"})]), Reply("All is well."))
    await begin(gateway, signal, "how is it?", {"at": point, "do": "kill", "hit": hit})
    await live_again(gateway, signal)
    async with gateway.client() as client:
        await settled(client)
    mark = "(possibly sent twice) "  # With blocks, the first words may have been on their way.
    unmarked = [text for text in got(signal) if not text.startswith(mark)]
    assert len(unmarked) == len(set(unmarked))
    assert [*dict.fromkeys(text.removeprefix(mark) for text in got(signal))] == ["Let me look.", "All is well."]


async def test_an_answer_before_a_steered_message_is_delivered_though_the_run_died(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer
) -> None:
    configure(gateway, lambda config: config.update(messages={"queue": {"mode": "steer"}}))
    held = asyncio.Event()
    models.queue(Reply("First.", hold=held, hold_after=0), Reply("Second."))
    await begin(gateway, signal, "one", {"at": "steer.after", "do": "kill"})
    await models.wait_for_requests(1)
    await signal.say("two", sender=ANN)
    async with gateway.client() as client, asyncio.timeout(60):
        while not any("taken into" in one["reason"] for one in (await client.call("messages.list", {}))["messages"]):
            await asyncio.sleep(0.02)
    held.set()
    await live_again(gateway, signal)
    async with gateway.client() as client:
        await settled(client)
    assert got(signal) == ["First.", "Second."]


async def test_a_gateway_that_dies_at_every_send_stops_repeating_itself(
    gateway: ForkedGateway, signal: SignalDaemon
) -> None:
    arrived = {"at": "outbox.arrived", "do": "kill"}
    await begin(gateway, signal, "hello [[reply:Hi Ann]]", arrived)
    for _ in range(2):
        await live_again(gateway, signal, arrived)
    await live_again(gateway, signal, arrived)
    async with gateway.client() as client:
        (part,), story = await settled(client)
    assert got(signal) == ["Hi Ann", AGAIN, AGAIN]
    assert (part["state"], part["possiblyDuplicate"]) == ("dead", True)
    assert "Whether the reply reached signal is not known: in doubt 3 times, so not sent again" in story


async def test_a_connection_that_breaks_after_the_send_is_told_the_same_way(
    gateway: ForkedGateway, signal: SignalDaemon
) -> None:
    signal.drop_next("send")
    await begin(gateway, signal, "hello [[reply:Hi Ann]]")
    async with gateway.client() as client:
        (part,), _ = await settled(client)
    assert got(signal) == ["Hi Ann", AGAIN]
    assert (part["state"], part["possiblyDuplicate"]) == ("sent", True)


async def test_a_daemon_that_is_away_gets_the_reply_once_when_it_is_back(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("Hi Ann", hold=held, hold_after=0))
    await begin(gateway, signal, "hello")
    await models.wait_for_requests(1)
    await signal.stop()
    held.set()
    async with gateway.client() as client:
        (row,) = (await client.call("messages.list", {}))["messages"]
        ended = await client.call("agent.wait", {"runId": row["runId"], "timeoutMs": 50_000})
        assert ended["status"] == "ok"
        told = await client.call("messages.why", {"ref": row["runId"]})
        assert "The reply is waiting to be delivered to signal" in "\n".join(told["story"])
        gateway.kill()
        await gateway.start()
        await signal.start()
    async with gateway.client() as client:
        (part,), _ = await settled(client)
    assert got(signal) == ["Hi Ann"]
    assert (part["state"], part["possiblyDuplicate"]) == ("sent", False)


async def test_what_was_sent_is_not_sent_again_because_the_disk_was_full(
    gateway: ForkedGateway, signal: SignalDaemon, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    signal.strike_next("send", full.touch)
    fault = {"at": "write", "path": "*/ledger.db", "do": "ENOSPC", "while": str(full)}
    await begin(gateway, signal, "hello [[reply:Hi Ann]]", fault)
    await signal.called("send")
    async with gateway.client() as client:
        (row,) = (await client.call("messages.list", {}))["messages"]
        facts = await client.call("messages.get", {"id": row["id"]})
        assert [part["state"] for part in facts["deliveries"]] == ["sending"]
        full.unlink()
        (part,), _ = await settled(client)
    assert got(signal) == ["Hi Ann"]
    assert (part["state"], part["possiblyDuplicate"]) == ("sent", False)


async def test_a_reply_that_is_a_day_old_is_not_sent_any_more(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer
) -> None:
    await begin(gateway, signal, "hello [[reply:Hi Ann]]", {"at": "finish.after", "do": "kill"})
    await died(gateway)
    with contextlib.closing(sqlite3.connect(gateway.state_dir / "ledger.db")) as database:
        database.execute("UPDATE outbox SET created_at = created_at - ?", (PART_EXPIRY_MS,))
        database.commit()
    await live_again(gateway, signal)
    async with gateway.client() as client:
        (part,), story = await settled(client)
        await signal.say("and now? [[reply:Still here]]", sender=ANN)
        await signal.called("send")
    assert got(signal) == ["Still here"]
    assert part["state"] == "dead"
    assert "The reply was not delivered to signal: expired: the channel was not there in time." in story


async def test_what_was_given_up_is_listed_tried_again_and_dropped(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer
) -> None:
    signal.refuse_next("send", -1, "Unregistered user")
    await begin(gateway, signal, "hello [[reply:Hi Ann]]")
    async with gateway.client() as client:
        (part,), _ = await settled(client)
        assert part["state"] == "dead"
        (listed,) = (await client.call("outbox.list", {}))["parts"]
        assert (listed["state"], listed["text"], listed["to"]) == ("dead", "Hi Ann", f"signal:{ANN}")
        assert (await client.call("outbox.retry", {"ids": [listed["id"]]}))["retried"] == 1
        async with asyncio.timeout(60):
            while (await client.call("outbox.list", {}))["parts"]:
                await asyncio.sleep(0.02)
    assert got(signal)[-1] == "Hi Ann" and len(models.requests) == 1


@pytest.mark.parametrize("point", ["outbox.added", "outbox.arrived", "answer.before", "finish.before", "finish.after"])
async def test_blocks_that_were_sent_before_a_kill_are_not_sent_again(
    tmp_path: Path, models: ModelServer, signal: SignalDaemon, point: str
) -> None:
    section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "allowFrom": [ANN]}
    section |= {"blockStreaming": True, "blockStreamingCoalesce": {"minChars": 1, "maxChars": 60, "idleMs": 1}}
    config = model_config(models.base_url, models.api_key, channels={"signal": section})
    config["agents"]["defaults"]["blockStreamingChunk"] = {"minChars": 10, "maxChars": 60}
    gateway = ForkedGateway(tmp_path / "state", config)
    paragraphs = ["First paragraph.", "Second paragraph.", "Third paragraph.", "Fourth and last."]
    text = "\n\n".join(paragraphs)
    pieces = [text[place : place + 6] for place in range(0, len(text), 6)]
    models.answer_with(lambda request: Reply(text=text, pieces=pieces, delay_ms=3))
    try:
        await begin(gateway, signal, "go", {"at": point, "do": "kill"})
        await live_again(gateway, signal)
        async with gateway.client() as client:
            deliveries, _ = await settled(client)
    finally:
        with contextlib.suppress(AssertionError):
            gateway.kill()
    mark = "(possibly sent twice) "
    unmarked = [one for one in got(signal) if not one.startswith(mark)]
    # At most the block that was on its way comes a second time, and says so.
    assert len(got(signal)) - len(unmarked) <= 1
    assert len(set(unmarked)) == len(unmarked)
    shown = dict.fromkeys(one.removeprefix(mark) for one in got(signal))
    assert "".join("".join(shown).split()) == "".join(text.split())
    assert all(part["state"] == "sent" for part in deliveries)


@pytest.mark.parametrize(("point", "gone"), [("finish.before", False), ("finish.after", True)])
async def test_a_file_of_a_reply_survives_a_kill_and_arrives_once(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer, point: str, gone: bool
) -> None:
    """Once the message has ended, the file is stored: nobody needs the one in the workspace any more."""
    workspace = gateway.state_dir / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "a.txt").write_text("the file")
    models.queue(Reply("Here.\nMEDIA:./a.txt"))
    await begin(gateway, signal, "go", {"at": point, "do": "kill"})
    await died(gateway)
    if gone:
        (workspace / "a.txt").unlink()
    await live_again(gateway, signal)
    async with gateway.client() as client:
        (part,), _ = await settled(client)
    (call,) = signal.of("send")
    assert (call["message"], part["state"]) == ("Here.", "sent")
    assert base64.b64decode(call["attachments"][0].partition("base64,")[2]) == b"the file"
    assert len(models.requests) == 1
