"""What channels share that are called by their platform: secrets are compared, turns are kept, answers are given."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from openclaw.channels.base import WebhookAnswer

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
