"""Work that is too much for the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from openclaw import worker_thread
from openclaw.worker_thread import MANY, release_later, with_many


async def test_few_messages_are_worked_on_at_once_and_many_in_a_thread() -> None:
    assert await with_many(MANY, threading.get_ident) == threading.get_ident()
    assert await with_many(MANY + 1, threading.get_ident) != threading.get_ident()


async def test_many_objects_are_freed_in_a_thread_after_their_other_owners_dropped_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    freed_in: list[int] = []

    class Message:
        def __del__(self) -> None:
            freed_in.append(threading.get_ident())

    monkeypatch.setattr(worker_thread, "RELEASE_AFTER_S", 0)
    messages = [Message() for _ in range(3 * MANY)]
    release_later(list(messages))
    del messages
    assert not freed_in
    async with asyncio.timeout(60):
        while len(freed_in) < 3 * MANY:
            await asyncio.sleep(0.01)
    assert threading.get_ident() not in freed_in
