"""A wall clock that jumps a day, back or forward: nothing forgotten, repeated or put in the wrong order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.clock import SystemClock
from openclaw.config.store import ConfigStore
from openclaw.gateway.assemble import close_gateway, open_gateway
from openclaw.gateway.gateway import Gateway
from openclaw.inbound.intake import Incoming, take_in
from openclaw.runs.hub import Submission
from openclaw.storage.base import TranscriptRef
from tests.support.gateway import GatewayProcess, model_config
from tests.support.model_server import ModelServer

DAY_MS = 24 * 3600 * 1000
KEY = "agent:main:main"


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
    GatewayProcess(state, model_config(models.base_url, models.api_key))  # Only writes the configuration.
    config = ConfigStore(str(state / "openclaw.json"), clock, os.environ)
    config.load_or_create()
    made = await open_gateway(str(state), config, clock, {"HOME": str(tmp_path)})
    await made.hub.find_unfinished()
    await made.hub.recover()
    yield made
    await close_gateway(made)


async def say(gateway: Gateway, key: str) -> Submission:
    fields: dict[str, Any] = {"source": "webchat", "route": {"channel": "webchat"}}
    message = Incoming(run_id=key, agent_id="main", session_key=KEY, prompt=f"{key} [[reply:done {key}]]", **fields)
    return await take_in(message, gateway.runtime, gateway.hub)


@pytest.mark.parametrize("jump", [-DAY_MS, DAY_MS])
async def test_messages_around_a_jump_keep_their_order_and_their_names(
    gateway: Gateway, clock: JumpingClock, models: ModelServer, jump: int
) -> None:
    for place, key in enumerate(("a", "b", "c")):
        clock.offset_ms = (0, jump, 0)[place]
        assert (await say(gateway, key)).new
        assert (await gateway.hub.wait(key, 15)).status == "ok"
    for offset in (0, jump):
        clock.offset_ms = offset
        for key in ("a", "b", "c"):
            assert not (await say(gateway, key)).new, "a message that was answered before the jump was taken as new"
    rows = await gateway.ledger.recent(session_key=KEY)
    assert [row.run_id for row in rows] == ["c", "b", "a"]
    assert {row.state for row in rows} == {"answered"}
    entry = await gateway.sessions.get("main", KEY)
    assert entry is not None
    transcript = await gateway.transcripts.open(TranscriptRef(agent_id="main", session_id=entry["sessionId"]))
    assert transcript is not None
    assert not transcript.warnings
    assert len(models.requests) == 3


async def test_a_run_under_way_is_not_cut_short_by_a_jump(
    gateway: Gateway, clock: JumpingClock, models: ModelServer
) -> None:
    submitted = await say(gateway, "a")
    assert submitted.record is not None
    await models.wait_for_requests(1)
    clock.offset_ms = DAY_MS
    assert (await gateway.hub.wait("a", 15)).status == "ok"
