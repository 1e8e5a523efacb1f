"""What channels share that are called by their platform.

Secrets are compared, turns are kept, answers are given, and messages are marked as read.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from openclaw.channels.base import WebhookAnswer
from openclaw.clock import Clock

MAX_RECEIPTS = 64
MOMENT_S = 0.3
ANSWER_S = 60.0
"""A message that is not on disk by then is asked for again: the platform gets an error and delivers it later."""


def is_same(given: str | bytes, wanted: str | bytes) -> bool:
    """Compares a secret in a time that tells nothing about it. Bytes that are no text are simply wrong."""
    first = given.encode("utf-8", "surrogatepass") if isinstance(given, str) else given
    second = wanted.encode("utf-8", "surrogatepass") if isinstance(wanted, str) else wanted
    return hmac.compare_digest(first, second)


async def answered(work: Callable[[], Awaitable[None]], log: logging.Logger) -> WebhookAnswer:
    """Does the work and confirms it. If it fails or takes too long, the platform is told to deliver again."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await work()
    except TimeoutError:
        log.warning("what the platform sent could not be kept within %g s; it is asked for again", ANSWER_S)
        return WebhookAnswer(status=503, text="try again")
    except Exception:
        log.exception("what the platform sent could not be handled; it is asked for again")
        return WebhookAnswer(status=500, text="try again")
    return WebhookAnswer(text="ok")


class ConversationOrder:
    """Lets the requests of one conversation through one after the other, in the order in which they came."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, key: str) -> AsyncGenerator[None]:
        lock, waiting = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            _, waiting = self._locks[key]
            if waiting > 1:
                self._locks[key] = (lock, waiting - 1)
            else:
                del self._locks[key]


class ReadReceipts:
    """Marks messages as read, in the background and with one call at a time for a conversation.

    With a message all before it are read. So of those that come within a moment or during a call, only the newest is
    marked. ``mark`` gets the conversation and the message, and raises nothing.
    """

    def __init__(self, mark: Callable[[str, str], Awaitable[None]], clock: Clock) -> None:
        self._mark = mark
        self._clock = clock
        self._newest: dict[str, str] = {}
        """Conversations with a call under way, and the message to mark next. Empty: none."""
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, conversation: str, message_id: str) -> None:
        under_way = conversation in self._newest
        if not under_way and len(self._newest) >= MAX_RECEIPTS:
            return  # Nobody misses a receipt.
        self._newest[conversation] = message_id
        if not under_way:
            task = asyncio.create_task(self._mark_all(conversation))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _mark_all(self, conversation: str) -> None:
        try:
            while self._newest[conversation]:
                await self._clock.sleep(MOMENT_S)
                message_id, self._newest[conversation] = self._newest[conversation], ""
                await self._mark(conversation, message_id)
        finally:
            del self._newest[conversation]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._newest.clear()
