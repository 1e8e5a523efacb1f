"""What people write in a group without addressing the agent reaches it with the next message that does, even later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import stored
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import model_config
from tests.support.model_server import ModelServer
from tests.support.postgres import needs_postgres
from tests.support.signal_daemon import SignalDaemon

US, ANN, BOB, GROUP = "+15550000001", "+15550000042", "+15550000043", "Z3JvdXAtb25l"


@pytest.fixture(params=["files", "postgres"])
async def signal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SignalDaemon]:
    if request.param == "postgres":
        needs_postgres()
        monkeypatch.setenv("OPENCLAW_TEST_STORAGE", "postgres")
    async with SignalDaemon(US, groups=(GROUP,)) as daemon:
        yield daemon


@pytest.fixture
def gateway(tmp_path: Path, models: ModelServer, signal: SignalDaemon) -> ForkedGateway:
    section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, "groupPolicy": "open"}
    more: dict[str, Any] = {"messages": {"groupChat": {"mentionPatterns": ["clawd"]}}}
    return ForkedGateway(
        tmp_path / "state", model_config(models.base_url, models.api_key, channels={"signal": section}, **more)
    )


async def say(signal: SignalDaemon, text: str, sender: str = ANN) -> None:
    info = {"groupId": GROUP, "type": "DELIVER"}
    await signal.deliver(signal.message(text, sender=sender, name="Ann" if sender == ANN else "Bob", groupInfo=info))


async def until_pending(gateway: ForkedGateway, count: int) -> None:
    async with asyncio.timeout(60):
        while len(stored.ledger(gateway, "SELECT step FROM held WHERE key LIKE 'pending|%'")) < count:
            await asyncio.sleep(0.02)


async def test_pending_messages_outlive_a_kill_and_are_told_once(
    gateway: ForkedGateway, signal: SignalDaemon, models: ModelServer
) -> None:
    async with gateway:
        await signal.connected()
        await say(signal, "lunch at noon?")
        await say(signal, "better at one", BOB)
        await until_pending(gateway, 2)
        gateway.kill()
        await gateway.start()
        await signal.connected()
        await say(signal, "clawd, when? [[reply:at one]]")
        await signal.called("send")
        gateway.kill()
        await gateway.start()
        await signal.connected()
        await say(signal, "clawd, and where? [[reply:here]]")
        await models.wait_for_requests(2)
    first, second = (models.requests[number].body["messages"][-1]["content"] for number in (-2, -1))
    assert str(first).index("lunch at noon?") < str(first).index("better at one") < str(first).index("clawd, when?")
    assert "lunch at noon?" not in str(second) and "since your last reply" not in str(second)
