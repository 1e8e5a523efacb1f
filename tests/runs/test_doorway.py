"""Few at a time on their way to the model, and nobody kept out for long."""

from __future__ import annotations

import asyncio

import pytest

from openclaw.runs import doorway
from openclaw.runs.doorway import Doorway, Guest


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens by itself unless a test wants it to."""
    monkeypatch.setattr(doorway, "LONGEST_S", 600.0)
    monkeypatch.setattr(doorway, "PATIENCE_S", 600.0)


async def test_those_who_wait_come_in_as_others_leave_in_the_order_they_came() -> None:
    door = Doorway(most=2)
    inside: list[str] = []

    async def come(name: str) -> Guest:
        guest = await door.enter()
        inside.append(name)
        return guest

    coming = [asyncio.create_task(come(name)) for name in "abcd"]
    await settle()
    assert inside == ["a", "b"]
    first = coming[0].result()
    first.leave()
    first.leave()  # Twice is once.
    await settle()
    assert inside == ["a", "b", "c"]
    coming[1].result().leave()
    await settle()
    assert inside == ["a", "b", "c", "d"]


async def test_one_who_gives_up_waiting_takes_nobodys_place() -> None:
    door = Doorway(most=1)
    first = await door.enter()
    second, third = asyncio.create_task(door.enter()), asyncio.create_task(door.enter())
    await settle()
    second.cancel()
    await settle()
    assert not third.done(), "nobody has left"
    first.leave()
    (await third).leave()
    fourth = asyncio.create_task(door.enter())
    await settle()
    assert fourth.done(), "the place of the one who gave up was given back"


async def test_who_stays_too_long_is_not_counted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway, "LONGEST_S", 0.0)
    door = Doorway(most=1)
    stays = await door.enter()  # And never leaves.
    second = await asyncio.wait_for(door.enter(), 60)
    assert second is not stays
    stays.leave()  # Later than it was counted out: nobody's place is given away twice.
    second.leave()


async def test_nobody_stands_in_line_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway, "PATIENCE_S", 0.0)
    door = Doorway(most=1)
    held = await door.enter()
    late = await asyncio.wait_for(door.enter(), 60)
    monkeypatch.setattr(doorway, "PATIENCE_S", 600.0)
    waiting = asyncio.create_task(door.enter())
    held.leave()
    await settle()
    assert not waiting.done(), "the one who was let in all the same is still inside"
    late.leave()
    await asyncio.wait_for(waiting, 60)
