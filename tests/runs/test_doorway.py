"""Few at a time on their way to the model, and nobody kept out for long."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from openclaw.runs import doorway
from openclaw.runs.doorway import Doorway, Guest

_numbers = itertools.count()


def _key() -> str:
    """Of a session of its own."""
    return f"agent:main:{next(_numbers)}"


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
        guest = await door.enter(_key())
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
    first = await door.enter(_key())
    second, third = asyncio.create_task(door.enter(_key())), asyncio.create_task(door.enter(_key()))
    await settle()
    second.cancel()
    await settle()
    assert not third.done(), "nobody has left"
    first.leave()
    (await third).leave()
    fourth = asyncio.create_task(door.enter(_key()))
    await settle()
    assert fourth.done(), "the place of the one who gave up was given back"


async def test_who_stays_too_long_is_not_counted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway, "LONGEST_S", 0.0)
    door = Doorway(most=1)
    stays = await door.enter(_key())  # And never leaves.
    second = await asyncio.wait_for(door.enter(_key()), 60)
    assert second is not stays
    stays.leave()  # Later than it was counted out: nobody's place is given away twice.
    second.leave()


async def test_nobody_stands_in_line_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway, "PATIENCE_S", 0.0)
    door = Doorway(most=1)
    held = await door.enter(_key())
    late = await asyncio.wait_for(door.enter(_key()), 60)
    monkeypatch.setattr(doorway, "PATIENCE_S", 600.0)
    waiting = asyncio.create_task(door.enter(_key()))
    held.leave()
    await settle()
    assert not waiting.done(), "the one who was let in all the same is still inside"
    late.leave()
    await asyncio.wait_for(waiting, 60)


async def test_a_sessions_messages_come_in_one_after_the_other_and_others_pass_them_by() -> None:
    door, inside = Doorway(), list[str]()

    async def come(name: str, session: str) -> Guest:
        guest = await door.enter(session)
        inside.append(name)
        return guest

    coming = [asyncio.create_task(come(name, session)) for name, session in (("a1", "a"), ("a2", "a"), ("a3", "a"))]
    await settle()
    other = await come("b1", "b")
    assert inside == ["a1", "b1"]
    coming[0].result().leave()
    await settle()
    assert inside == ["a1", "b1"], "it has asked its model, but is not known to be written down"
    coming[0].result().settled()
    await settle()
    assert inside == ["a1", "b1", "a2"]
    coming[1].result().settled()
    await settle()
    assert inside == ["a1", "b1", "a2", "a3"]
    other.settled()
    coming[2].result().settled()
    assert (await come("a4", "a")) is not None


async def test_who_gives_up_lets_nobody_pass_the_one_before_it() -> None:
    door = Doorway()
    first = await door.enter("a")
    second, third = asyncio.create_task(door.enter("a")), asyncio.create_task(door.enter("a"))
    await settle()
    second.cancel()
    await settle()
    assert not third.done()
    first.settled()
    (await asyncio.wait_for(third, 60)).settled()


async def test_a_word_that_stops_waits_for_what_came_before_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Doorway()
    await door.after("a")
    first = await door.enter("a")
    stop = asyncio.create_task(door.after("a"))
    await settle()
    assert not stop.done()
    first.settled()
    await asyncio.wait_for(stop, 60)
    await door.enter("a")  # And nothing ever becomes of it.
    monkeypatch.setattr(doorway, "PATIENCE_S", 0.0)
    await asyncio.wait_for(door.after("a"), 60)


async def test_one_that_hangs_holds_up_its_session_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorway, "STUCK_S", 0.0)
    door = Doorway()
    await door.enter("a")  # And nothing ever becomes of it.
    (await asyncio.wait_for(door.enter("a"), 60)).settled()
