"""kill -9 at any moment: nothing lost, nothing run twice, nothing written twice, everything in order."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.faults.channel_kill_schedules import US, ChannelKillSchedule, run_channel_schedules
from tests.faults.kill_schedules import POINTS, KillSchedule, run_schedules
from tests.support.model_server import ModelServer
from tests.support.signal_daemon import SignalDaemon


@pytest.mark.parametrize("death", ["kill", "power cut"])
@pytest.mark.parametrize("group", range(4))
async def test_dying_at_each_step_of_a_message_loses_and_repeats_nothing(
    schedule: KillSchedule, group: int, death: str
) -> None:
    """Every named step once, one life each; what a life leaves behind is settled and checked in the next."""
    struck: list[str] = []
    steps = POINTS[group::4]
    for place, step in enumerate(steps):
        assert await schedule.start([{"at": step, "do": death}])
        await schedule.settle()
        schedule.check()
        schedule.armed.touch()
        schedule.message(f"agent:main:s{place % 2}", "tools")
        schedule.message(f"agent:main:s{place % 2}", "plain")
        await schedule.deliver_until_death()
        struck += [step] if schedule.struck else []
        schedule.armed.unlink()
    await schedule.start([])
    await schedule.settle()
    schedule.check()
    assert struck == steps, "a step was never reached"


@pytest.mark.parametrize(
    ("seed", "mode", "death"),
    [
        (11, "followup", "kill"),
        (12, "followup", "power cut"),
        (13, "collect", "kill"),
        (14, "steer", "kill"),
        (15, "steer", "power cut"),
        (16, "collect", "power cut"),
    ],
)
async def test_random_deaths(tmp_path: Path, models: ModelServer, seed: int, mode: str, death: str) -> None:
    schedule = KillSchedule(tmp_path, models, seed, mode, death=death)
    try:
        await run_schedules(schedule, 5)
    finally:
        with contextlib.suppress(AssertionError):
            schedule.kill()
    assert schedule.deaths.total() == 5


@pytest.mark.parametrize("seed", [21, 22])
async def test_random_kills_while_people_write_on_a_channel_that_redelivers(
    tmp_path: Path, models: ModelServer, seed: int
) -> None:
    async with SignalDaemon(US) as signal:
        schedule = ChannelKillSchedule(tmp_path, models, signal, seed)
        try:
            await run_channel_schedules(schedule, 5)
        finally:
            with contextlib.suppress(AssertionError):
                schedule.gateway.kill()
    assert schedule.deaths.total() == 5
