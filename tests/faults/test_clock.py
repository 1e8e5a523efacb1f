"""A wall clock that jumps a day, back or forward: nothing forgotten, repeated or put in the wrong order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.clock import SystemClock
from openclaw.config.store import ConfigStore
from openclaw.gateway.assemble import close_gateway, open_gateway
from openclaw.gateway.gateway import Gateway
from openclaw.inbound.message import Inbound, Peer, Sender
from openclaw.runs.accept import Submission
from openclaw.sessions.keys import SessionRef
from openclaw.storage.message_ledger import LedgerRow, MessageBody, ReasonCode
from openclaw.storage.transcripts import TranscriptRef
from tests.support.gateway import GatewayProcess, model_config
from tests.support.model_server import ModelServer, Reply
from tests.support.submit import submit

DAY_MS = 24 * 3600 * 1000
KEY = "agent:main:main"
ANN = "+15550000042"


class JumpingClock(SystemClock):
    offset_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
async def gateway(tmp_path: Path, models: ModelServer, clock: JumpingClock) -> AsyncIterator[Gateway]:
    state = tmp_path / "state"
    # Only writes the configuration.
    channels = {"signal": {"enabled": False, "account": "+15550000001", "allowFrom": [ANN]}}
    reset = {"reset": {"mode": "daily", "atHour": 4}}
    GatewayProcess(state, model_config(models.base_url, models.api_key, channels=channels, session=reset))
    config = ConfigStore(str(state / "openclaw.json"), clock, os.environ)
    config.load_or_create()
    made = await open_gateway(str(state), config, clock, {"HOME": str(tmp_path)})
    await made.runs.find_unfinished()
    made.runs.start_unfinished()
    yield made
    await close_gateway(made)


async def say(gateway: Gateway, key: str) -> Submission:
    return await submit(gateway, f"{key} [[reply:done {key}]]", key)


@pytest.mark.parametrize("jump", [-DAY_MS, DAY_MS])
async def test_messages_around_a_jump_keep_their_order_and_their_names(
    gateway: Gateway, clock: JumpingClock, models: ModelServer, jump: int
) -> None:
    for place, key in enumerate(("a", "b", "c")):
        clock.offset_ms = (0, jump, 0)[place]
        assert (await say(gateway, key)).new
        assert (await gateway.runs.index.wait(key, 15)).status == "ok"
    for offset in (0, jump):
        clock.offset_ms = offset
        for key in ("a", "b", "c"):
            assert not (await say(gateway, key)).new, "a message that was answered before the jump was taken as new"
    rows = await gateway.runtime.stores.ledger.recent(session_key=KEY)
    assert [row.run_id for row in rows] == ["c", "b", "a"]
    assert {row.state for row in rows} == {"answered"}
    entry = await gateway.runtime.stores.sessions.get("main", KEY)
    assert entry is not None
    transcript = await gateway.runtime.stores.transcripts.open(
        TranscriptRef(agent_id="main", session_id=entry["sessionId"])
    )
    assert transcript is not None
    assert not transcript.warnings
    assert len(models.requests) == 3


async def test_a_run_under_way_is_not_cut_short_by_a_jump(
    gateway: Gateway, clock: JumpingClock, models: ModelServer
) -> None:
    submitted = await say(gateway, "a")
    assert submitted.run is not None
    await models.wait_for_requests(1)
    clock.offset_ms = DAY_MS
    assert (await gateway.runs.index.wait("a", 15)).status == "ok"


class Ann:
    """A person on a channel, who writes to the Gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def says(self, number: int, text: str) -> None:
        where = {"peer": Peer(kind="direct", id=ANN), "sender": Sender(id=ANN, e164=ANN), "to": f"signal:{ANN}"}
        message = Inbound(channel="signal", message_id=str(number), text=text, timestamp_ms=1, **where)
        await self.gateway.pipeline.receive(message)

    async def messages(self) -> list[LedgerRow]:
        """Hers, newest first, once each has its end."""
        rows = [
            row
            for row in await self.gateway.runtime.stores.ledger.recent()
            if row.reason.code is not ReasonCode.NEW_SESSION
        ]
        for row in rows:
            assert (await self.gateway.runs.index.wait(row.run_id, 15)).status == "ok"
        return rows

    async def session(self) -> str:
        entry = await self.gateway.runtime.stores.sessions.get("main", KEY)
        assert entry is not None
        return entry["sessionId"]


@pytest.mark.parametrize("jump", [-DAY_MS, DAY_MS, 400 * DAY_MS])
async def test_what_a_channel_delivers_again_after_a_jump_is_still_known(
    gateway: Gateway, clock: JumpingClock, models: ModelServer, jump: int
) -> None:
    """The memory of seen messages is short and goes by the clock; the ledger's is not and does not."""
    ann = Ann(gateway)
    for offset in (0, jump, 0):
        clock.offset_ms = offset
        await ann.says(1, "hello [[reply:hi]]")
        await ann.says(2, "/status")
    assert len(await ann.messages()) == 2
    assert len(models.requests) == 1


async def test_a_clock_set_back_does_not_end_a_session(gateway: Gateway, clock: JumpingClock) -> None:
    ann, seen = Ann(gateway), set[str]()
    for number, offset in enumerate((0, -DAY_MS, -30 * DAY_MS, 0)):
        clock.offset_ms = offset
        await ann.says(number, "hello")
        await ann.messages()
        seen.add(await ann.session())
    assert len(seen) == 1


async def test_a_clock_set_ahead_begins_the_next_day_once_and_keeps_the_day_before(
    gateway: Gateway, clock: JumpingClock
) -> None:
    ann, seen = Ann(gateway), list[str]()
    for number, offset in enumerate((0, 2 * DAY_MS, 2 * DAY_MS, 0)):
        clock.offset_ms = offset
        await ann.says(number, f"message {number} [[reply:done]]")
        await ann.messages()
        seen.append(await ann.session())
    assert seen[1:] == [seen[1]] * 3 and seen[0] != seen[1]
    rows = await ann.messages()
    assert [row.state for row in rows] == ["answered"] * 4
    earlier = await gateway.runtime.stores.transcripts.open(
        TranscriptRef(agent_id="main", session_id=seen[0]), create=False
    )
    assert earlier is not None


async def test_timers_of_a_run_go_by_what_has_passed_and_not_by_the_clock(
    gateway: Gateway, clock: JumpingClock, models: ModelServer
) -> None:
    """A limit of an hour is not over because somebody set the clock a day ahead; one of a moment still ends."""
    held = asyncio.Event()
    models.queue(Reply("in time", hold=held, hold_after=0), Reply("never", hold=asyncio.Event(), hold_after=0))
    for run_id, timeout_s in (("long", 3600.0), ("short", 0.3)):
        body = MessageBody(timeout_seconds=timeout_s)
        await submit(gateway, "x", run_id, session=SessionRef("main", f"agent:main:{run_id}"), body=body)
        await models.wait_for_requests(1 if run_id == "long" else 2)
    clock.offset_ms = -DAY_MS
    assert (await gateway.runs.index.wait("short", 15)).status == "error"
    clock.offset_ms = DAY_MS
    assert (await gateway.runs.index.wait("long", 0.2)).status == "timeout"
    held.set()
    assert (await gateway.runs.index.wait("long", 15)).status == "ok"
