from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw.gateway.assemble import start_scheduler
from openclaw.gateway.gateway import Gateway
from tests.support.clock import MovableClock
from tests.support.gateway_in_process import gateway_parts
from tests.support.loopback_channel import Loopback
from tests.support.scripted_model import ScriptedModel

CHANNEL = {"loopback": {"enabled": True, "dmPolicy": "open", "allowFrom": ["*", "ann"]}}


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
async def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def phone() -> Loopback:
    """The channel on which the owner, Ann, writes."""
    return Loopback()


@pytest.fixture
async def gateway(tmp_path: Path, model: ScriptedModel, clock: MovableClock, phone: Loopback) -> AsyncIterator[Gateway]:
    """A Gateway whose jobs and heartbeats run, with one channel."""
    async with gateway_parts(tmp_path, model, clock=clock, channel=phone, channels=CHANNEL) as parts:
        await parts.channel_services.start()
        await start_scheduler(parts)
        yield parts
