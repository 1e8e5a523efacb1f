"""kill -9 at any moment: nothing lost, nothing run twice, nothing written twice, everything in order."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.faults.channel_ordeal import US, ChannelOrdeal, endure_channel
from tests.faults.ordeal import POINTS, Ordeal, endure
from tests.support.model_server import ModelServer
from tests.support.signal_daemon import SignalDaemon


@pytest.mark.parametrize("group", range(4))
async def test_dying_at_each_step_of_a_message_loses_nothing_and_repeats_nothing(ordeal: Ordeal, group: int) -> None:
    """Every named step once, one life each; what a life leaves behind is settled and checked in the next."""
    struck: list[str] = []
    steps = POINTS[group::4]
    for place, step in enumerate(steps):
        assert await ordeal.start([{"at": step, "do": "kill"}])
        await ordeal.settle()
        ordeal.check()
        ordeal.armed.touch()
        ordeal.message(f"agent:main:s{place % 2}", "tools")
        ordeal.message(f"agent:main:s{place % 2}", "plain")
        await ordeal.deliver_until_death()
        struck += [step] if ordeal.struck else []
        ordeal.armed.unlink()
    await ordeal.start([])
    await ordeal.settle()
    ordeal.check()
    assert struck == steps, "a step was never reached"


@pytest.mark.parametrize(
    ("seed", "mode"), [(11, "followup"), (12, "followup"), (13, "collect"), (14, "steer"), (15, "followup")]
)
async def test_random_kills(tmp_path: Path, models: ModelServer, seed: int, mode: str) -> None:
    ordeal = Ordeal(tmp_path, models, seed, mode)
    try:
        await endure(ordeal, 5)
    finally:
        with contextlib.suppress(AssertionError):
            ordeal.kill()
    assert ordeal.deaths.total() == 5


@pytest.mark.parametrize("seed", [21, 22])
async def test_random_kills_while_people_write_on_a_channel_that_redelivers(
    tmp_path: Path, models: ModelServer, seed: int
) -> None:
    async with SignalDaemon(US) as signal:
        ordeal = ChannelOrdeal(tmp_path, models, signal, seed)
        try:
            await endure_channel(ordeal, 5)
        finally:
            with contextlib.suppress(AssertionError):
                ordeal.gateway.kill()
    assert ordeal.deaths.total() == 5
