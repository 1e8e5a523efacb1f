"""Few at a time on their way to the model, and nobody kept out for long."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from openclaw.runs.admission import Admission, Ticket

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
    monkeypatch.setattr("openclaw.runs.admission.LONGEST_S", 600.0)
    monkeypatch.setattr("openclaw.runs.admission.PATIENCE_S", 600.0)


async def test_those_who_wait_come_in_as_others_leave_in_the_order_they_came() -> None:
    admission = Admission(most=2)
    inside: list[str] = []

    async def come(name: str) -> Ticket:
        ticket = await admission.admit(_key())
        inside.append(name)
        return ticket

    coming = [asyncio.create_task(come(name)) for name in "abcd"]
    await settle()
    assert inside == ["a", "b"]
    first = coming[0].result()
    first.release()
    first.release()  # Twice is once.
    await settle()
    assert inside == ["a", "b", "c"]
    coming[1].result().release()
    await settle()
    assert inside == ["a", "b", "c", "d"]


async def test_one_who_gives_up_waiting_takes_nobodys_place() -> None:
    admission = Admission(most=1)
    first = await admission.admit(_key())
    second, third = asyncio.create_task(admission.admit(_key())), asyncio.create_task(admission.admit(_key()))
    await settle()
    second.cancel()
    await settle()
    assert not third.done(), "nobody has left"
    first.release()
    (await third).release()
    fourth = asyncio.create_task(admission.admit(_key()))
    await settle()
    assert fourth.done(), "the place of the one who gave up was given back"


async def test_who_stays_too_long_is_not_counted_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.runs.admission.LONGEST_S", 0.0)
    admission = Admission(most=1)
    stays = await admission.admit(_key())  # And never leaves.
    second = await asyncio.wait_for(admission.admit(_key()), 60)
    assert second is not stays
    stays.release()  # Later than it was counted out: nobody's place is given away twice.
    second.release()


async def test_nobody_stands_in_line_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.runs.admission.PATIENCE_S", 0.0)
    admission = Admission(most=1)
    held = await admission.admit(_key())
    late = await asyncio.wait_for(admission.admit(_key()), 60)
    monkeypatch.setattr("openclaw.runs.admission.PATIENCE_S", 600.0)
    waiting = asyncio.create_task(admission.admit(_key()))
    held.release()
    await settle()
    assert not waiting.done(), "the one who was let in all the same is still inside"
    late.release()
    await asyncio.wait_for(waiting, 60)


async def test_a_sessions_messages_come_in_one_after_the_other_and_others_pass_them_by() -> None:
    admission, inside = Admission(), list[str]()

    async def come(name: str, session: str) -> Ticket:
        ticket = await admission.admit(session)
        inside.append(name)
        return ticket

    coming = [asyncio.create_task(come(name, session)) for name, session in (("a1", "a"), ("a2", "a"), ("a3", "a"))]
    await settle()
    other = await come("b1", "b")
    assert inside == ["a1", "b1"]
    coming[0].result().release()
    await settle()
    assert inside == ["a1", "b1"], "it has asked its model, but is not known to be written down"
    coming[0].result().done()
    await settle()
    assert inside == ["a1", "b1", "a2"]
    coming[1].result().done()
    await settle()
    assert inside == ["a1", "b1", "a2", "a3"]
    other.done()
    coming[2].result().done()
    assert (await come("a4", "a")) is not None


async def test_who_gives_up_lets_nobody_pass_the_one_before_it() -> None:
    admission = Admission()
    first = await admission.admit("a")
    second, third = asyncio.create_task(admission.admit("a")), asyncio.create_task(admission.admit("a"))
    await settle()
    second.cancel()
    await settle()
    assert not third.done()
    first.done()
    (await asyncio.wait_for(third, 60)).done()


async def test_a_word_that_stops_waits_for_what_came_before_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    admission = Admission()
    await admission.wait_for_earlier("a")
    first = await admission.admit("a")
    stop = asyncio.create_task(admission.wait_for_earlier("a"))
    await settle()
    assert not stop.done()
    first.done()
    await asyncio.wait_for(stop, 60)
    await admission.admit("a")  # And nothing ever becomes of it.
    monkeypatch.setattr("openclaw.runs.admission.PATIENCE_S", 0.0)
    await asyncio.wait_for(admission.wait_for_earlier("a"), 60)


async def test_one_that_hangs_holds_up_its_session_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.runs.admission.STUCK_S", 0.0)
    admission = Admission()
    await admission.admit("a")  # And nothing ever becomes of it.
    (await asyncio.wait_for(admission.admit("a"), 60)).done()
