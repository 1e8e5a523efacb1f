"""The messages of a session are accepted in the order they came, and none is kept out for long."""

from __future__ import annotations

import asyncio

import pytest

from openclaw.runs.admission import Admission


class Message:
    """Is admitted when it may be, and done when the test says so."""

    def __init__(self, admission: Admission, session_key: str) -> None:
        self.admitted = False
        self.may_end = asyncio.Event()
        self._admission, self._session_key = admission, session_key
        self.task = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        async with self._admission.admit(self._session_key):
            self.admitted = True
            await self.may_end.wait()

    async def end(self) -> None:
        self.may_end.set()
        await asyncio.wait_for(self.task, 60)


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_a_sessions_messages_are_admitted_one_after_the_other_and_others_pass_them_by() -> None:
    admission = Admission()
    first, second, third = (Message(admission, "a") for _ in range(3))
    other = Message(admission, "b")
    await settle()
    assert first.admitted and other.admitted and admission.in_use("a")
    assert not second.admitted and not third.admitted
    await first.end()
    await settle()
    assert second.admitted and not third.admitted
    await second.end()
    await settle()
    assert third.admitted
    await third.end()
    await other.end()
    assert not admission.in_use("a")


async def test_a_refused_message_admits_the_next() -> None:
    admission = Admission()
    with pytest.raises(ValueError, match="refused"):
        async with admission.admit("a"):
            raise ValueError("refused")
    later = Message(admission, "a")
    await settle()
    assert later.admitted
    await later.end()


async def test_a_cancelled_message_lets_nobody_pass_the_one_before_it() -> None:
    admission = Admission()
    first, second, third = (Message(admission, "a") for _ in range(3))
    await settle()
    second.task.cancel()
    await settle()
    assert not third.admitted
    await first.end()
    await settle()
    assert third.admitted
    await third.end()


async def test_a_message_that_stops_a_run_waits_for_what_came_before_but_not_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = Admission()
    await admission.wait_for_earlier("a")
    first = Message(admission, "a")
    await settle()
    stop = asyncio.create_task(admission.wait_for_earlier("a"))
    await settle()
    assert not stop.done()
    await first.end()
    await asyncio.wait_for(stop, 60)
    hanging = Message(admission, "a")
    await settle()
    monkeypatch.setattr("openclaw.runs.admission.PATIENCE_S", 0.0)
    await asyncio.wait_for(admission.wait_for_earlier("a"), 60)
    await hanging.end()


async def test_a_message_that_hangs_holds_up_its_session_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw.runs.admission.STUCK_S", 0.0)
    admission = Admission()
    hanging = Message(admission, "a")
    await settle()
    async with asyncio.timeout(60), admission.admit("a"):
        assert not hanging.task.done()
    await hanging.end()
