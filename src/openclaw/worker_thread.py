"""Runs work that takes too long for the event loop in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

MANY = 1000
"""Work on more messages than this belongs in a thread: it takes milliseconds, and every session would wait for it."""
SWITCH_S = 0.0002
"""How long a busy thread may hold the interpreter while the event loop waits for it.

With Python's default of 5 ms a turn of another session, which waits for the interpreter some twenty times, takes a
tenth of a second longer while a thread is busy.
"""
RELEASE_AFTER_S = 2.0


async def finish_in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread. If the caller is cancelled, wait for its end before the cancellation goes on.

    So nothing that ``work`` changes is changed behind the back of the next caller.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def with_many(count: int, work: Callable[[], T]) -> T:
    """Run work on ``count`` messages: at once if they are few, otherwise in a thread."""
    return work() if count <= MANY else await finish_in_thread(work)


def release_later(objects: list[Any]) -> None:
    """Free many objects a few at a time in a thread, after their other owners have dropped them.

    The interpreter frees a list of 200,000 messages in one step, for which every session would wait.
    """
    if len(objects) > MANY:
        loop = asyncio.get_running_loop()
        loop.call_later(RELEASE_AFTER_S, loop.run_in_executor, None, _release, objects)


def _release(objects: list[Any]) -> None:
    while objects:
        del objects[-MANY:]
