"""Nodes die, pause, leave and are cut off; their database restarts, is locked and fails over: nothing is lost, run
twice, out of order or without an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.channel_kill_schedules import US
from tests.faults.cluster_schedules import TROUBLES, ClusterSchedule, run_schedules
from tests.support.model_server import ModelServer
from tests.support.postgres import ServerPair, needs_postgres
from tests.support.signal_daemon import SignalDaemon


@pytest.fixture
async def server() -> AsyncIterator[ServerPair]:
    """Servers of their own, because they are restarted."""
    programs = needs_postgres()
    started = await asyncio.to_thread(lambda: ServerPair(programs))
    yield started
    await asyncio.to_thread(started.remove)


@pytest.mark.parametrize(("seed", "mode"), [(31, "followup"), (32, "steer")])
async def test_every_trouble_once_while_messages_enter_at_every_node(
    tmp_path: Path, models: ModelServer, server: ServerPair, seed: int, mode: str
) -> None:
    async with SignalDaemon(US) as daemon:
        schedule = ClusterSchedule(tmp_path, models, seed, mode, server=server, signal=daemon)
        await run_schedules(schedule, schedule.chance.sample(TROUBLES, len(TROUBLES)), messages=3)
    assert schedule.deaths.total() == len(TROUBLES) == len(schedule.jobs)
