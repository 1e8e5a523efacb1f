"""What a platform tells a channel, and how it reaches the Gateway: the same for all channels.

A channel reads its platform's records as ``Posted``, ``Edited``, ``Deleted`` or ``Reacted``, and gives them to
``take_in``. It returns when the event is on disk, and only then does the channel tell its platform so. The events of
one conversation are taken in order, those of different ones side by side.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from openclaw.channels.base import ChannelContext, WebhookAnswer
from openclaw.channels.media import RemoteFile, add_files
from openclaw.clock import Backoff, Clock
from openclaw.config.schema.channels import ChannelAccount
from openclaw.foreign_text import disarmed_name
from openclaw.inbound.message import Inbound, Media
from openclaw.inbound.prompt_text import channel_name, display_name

MAX_TEXT = 256 * 1024
LONGEST_EMOJI = 100
OFFER_AGAIN = Backoff(initial_s=0.5, max_s=8.0, jitter=0.0)
OFFERS = 5
"""A message that fails for another reason than the disk is given up after this many attempts."""
MAX_RECEIPTS = 64
MOMENT_S = 0.3
ANSWER_S = 60.0
"""A message that is not on disk by then is asked for again: the platform gets an error and delivers it later."""


class Posted(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the agent. The platform still has its files."""

    inbound: Inbound
    files: tuple[RemoteFile, ...] = ()


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    """New words of an earlier message, whose id ``inbound`` has."""

    inbound: Inbound


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A message was taken back by its sender. ``inbound`` has its id."""

    inbound: Inbound


class Reacted(msgspec.Struct, frozen=True, kw_only=True):
    """A reaction to a message. ``inbound.text`` describes it."""

    inbound: Inbound
    to_us: bool
    """It is on a message of ours."""


ChannelEvent: TypeAlias = Posted | Edited | Deleted | Reacted


async def take_in(
    context: ChannelContext, event: ChannelEvent, fetch: Callable[[Any], Awaitable[Media]] | None = None
) -> bool:
    """Returns when the event is on disk, refused or given up. True: a message of somebody who may write.

    ``fetch`` fetches a file of a message. It raises ``NotFetched``.
    """
    match event:
        case Posted(inbound=inbound, files=files):
            if not files or fetch is None:
                return await offer(context, inbound)
            complete = False

            async def receive_with_files(inbound: Inbound) -> bool | None:
                nonlocal complete
                if not complete:
                    await add_files(context, inbound, files, fetch)
                    complete = True
                return await context.receive(inbound)

            return await offer(context, inbound, receive_with_files)
        case Edited(inbound=inbound):
            await offer(context, inbound, context.edited)
        case Deleted(inbound=inbound):
            await offer(context, inbound, context.deleted)
        case Reacted(inbound=inbound):
            if wants_reaction(context.account.settings, event):
                await offer(context, inbound, context.notice)
    return False


async def offer(
    context: ChannelContext, inbound: Inbound, hand_in: Callable[[Inbound], Awaitable[bool | None]] | None = None
) -> bool:
    """Returns when the message is on disk, refused or given up. True means that somebody who may write wrote it.

    While the disk fails it tries for ever, so that no message is lost. After other failures it gives the message up at
    the attempt ``OFFERS``, because the later messages of the conversation wait for this one. ``hand_in`` is ``receive``
    of the context (``Pipeline.receive``) unless another of its functions is given.
    """
    log, attempt, hand_in = context.log, 0, hand_in or context.receive
    while True:
        attempt += 1
        try:
            return await hand_in(inbound) is not False
        except OSError as error:
            log.warning("message %s cannot be kept for now (try %d): %s", inbound.message_id, attempt, error)
        except Exception as error:
            if attempt >= OFFERS:
                log.exception("message %s cannot be taken in and is given up", inbound.message_id)
                return False
            log.warning("message %s could not be taken in (try %d): %r", inbound.message_id, attempt, error)
        await context.clock.sleep(OFFER_AGAIN.delay_s(attempt, random.random))


# Reactions


def wants_reaction(settings: ChannelAccount, reaction: Reacted, mode: str | None = None) -> bool:
    """Whether the agent hears of a reaction. ``mode`` takes the place of the account's ``reactionNotifications``."""
    match mode or settings.reaction_notifications:
        case "own":
            return reaction.to_us
        case "allowlist":
            sender = reaction.inbound.sender
            allowed = {str(entry).strip().lower() for entry in settings.reaction_allowlist}
            return bool(allowed & {"*", *(name.lower() for name in (sender.id, *sender.other_ids))})
        case mode:
            return mode == "all"


def reaction_text(inbound: Inbound, emoji: str, whose: str, target: str, *, removed: bool = False) -> str:
    """A reaction in words. ``whose`` is the message, such as ``your message``; ``target`` is its id."""
    who = display_name(inbound.sender.name) or inbound.sender.id
    did = "took back the reaction" if removed else "reacted with"
    what = f"{did} {disarmed_name(emoji)[:LONGEST_EMOJI]}".rstrip()
    return f"{channel_name(inbound.channel)}: {who} {what} to {whose} (id {disarmed_name(target)})"


# Order


class ConversationOrder:
    """Lets the work of one conversation through piece by piece, in the order in which it came."""

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


class ConversationTasks:
    """Works in tasks: on each conversation in order, on different ones side by side."""

    def __init__(self, log: logging.Logger, most: int) -> None:
        """``most``: when so many pieces of work are under way, ``room`` waits."""
        self._log = log
        self._most = most
        self._turns = ConversationOrder()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, conversation: str, work: Callable[[], Awaitable[None]]) -> None:
        async def in_turn() -> None:
            try:
                async with self._turns.of(conversation):
                    await work()
            except Exception:
                self._log.exception("an event could not be handled")

        task = asyncio.create_task(in_turn())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def room(self) -> None:
        """Returns when more work may begin."""
        while len(self._tasks) >= self._most:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cancels what is under way. The platform delivers it again."""
        await cancelled(self._tasks)


async def cancelled(tasks: set[asyncio.Task[None]]) -> None:
    """Cancels tasks and waits for their end."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


# Webhooks


def is_same(given: str | bytes, wanted: str | bytes) -> bool:
    """Compares a secret in a time that tells nothing about it. Bytes that are no text are simply wrong."""
    first = given.encode("utf-8", "surrogatepass") if isinstance(given, str) else given
    second = wanted.encode("utf-8", "surrogatepass") if isinstance(wanted, str) else wanted
    return hmac.compare_digest(first, second)


async def answered(work: Awaitable[None], log: logging.Logger) -> WebhookAnswer:
    """Does the work and confirms it. If it fails or takes too long, the platform is told to deliver again."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await work
    except TimeoutError:
        log.warning("what the platform sent could not be kept within %g s; it is asked for again", ANSWER_S)
        return WebhookAnswer(status=503, text="try again")
    except Exception:
        log.exception("what the platform sent could not be handled; it is asked for again")
        return WebhookAnswer(status=500, text="try again")
    return WebhookAnswer(text="ok")


# Receipts


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
        await cancelled(self._tasks)
        self._newest.clear()
