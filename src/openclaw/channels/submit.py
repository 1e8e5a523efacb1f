"""Submits the events of a platform to the Gateway: the same for all channels.

A channel parses its platform's records into ``Posted``, ``Edited``, ``Deleted`` or ``Reacted`` and passes them to
``submit_event``. It returns once the event is on disk, and only then does the channel acknowledge it to the platform.
Events of one conversation are submitted in order, those of different conversations concurrently.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from openclaw.channels.base import ChannelContext, WebhookAnswer
from openclaw.channels.bookmark import RecentDict
from openclaw.channels.media import RemoteFile, add_files
from openclaw.clock import Backoff, Clock
from openclaw.config.schema.channels import ChannelAccount
from openclaw.inbound.message import Inbound, Media
from openclaw.inbound.prompt_text import channel_name, display_name
from openclaw.untrusted_text import reaction_sign, short_id

MAX_TEXT = 256 * 1024
MAX_EMOJI = 5
RETRY_BACKOFF = Backoff(initial_s=0.5, max_s=8.0, jitter=0.0)
MAX_ATTEMPTS = 5
"""A message that fails for a reason other than the disk is dropped after this many attempts."""
MAX_INLINE_HASH = 64 * 1024
"""A longer body is hashed in a thread."""
MAX_RECEIPTS = 64
RECEIPT_DELAY_S = 0.3
ANSWER_S = 60.0
"""If a message is not on disk by then, the platform gets an error and delivers it again later."""


class Posted(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the agent. Its files are still on the platform's server."""

    inbound: Inbound
    files: tuple[RemoteFile, ...] = ()


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    """The new text of an earlier message. ``inbound`` has its id."""

    inbound: Inbound


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """The sender deleted a message. ``inbound`` has its id."""

    inbound: Inbound


class Reacted(msgspec.Struct, frozen=True, kw_only=True):
    """A reaction to a message. ``inbound.text`` describes it."""

    inbound: Inbound
    to_us: bool
    """Whether it is on a message that the agent sent."""


ChannelEvent: TypeAlias = Posted | Edited | Deleted | Reacted


async def submit_event(
    context: ChannelContext, event: ChannelEvent, fetch: Callable[[Any], Awaitable[Media]] | None = None
) -> bool:
    """Return once the event is on disk, rejected or dropped, and whether it was a message from an allowed sender.

    ``fetch`` downloads a file of a message. It raises ``NotFetched``.
    """
    match event:
        case Posted(inbound=inbound, files=files):
            if not files or fetch is None:
                return await submit(context, inbound)
            complete = False

            async def receive_with_files(inbound: Inbound) -> bool | None:
                nonlocal complete
                if not complete:
                    await add_files(context, inbound, files, fetch)
                    complete = True
                return await context.receive(inbound)

            return await submit(context, inbound, receive_with_files)
        case Edited(inbound=inbound):
            await submit(context, inbound, context.edited)
        case Deleted(inbound=inbound):
            await submit(context, inbound, context.deleted)
        case Reacted(inbound=inbound):
            if wants_reaction(context.account.settings, event):
                await submit(context, inbound, context.notice)
    return False


async def submit(
    context: ChannelContext, inbound: Inbound, receive: Callable[[Inbound], Awaitable[bool | None]] | None = None
) -> bool:
    """Return once the message is on disk, rejected or dropped, and whether its sender is allowed to write.

    While the disk fails it retries forever, so that no message is lost. After ``MAX_ATTEMPTS`` other failures it drops
    the message, because the later messages of the conversation wait for this one. ``receive`` defaults to the context's
    ``receive`` (``Pipeline.receive``).
    """
    log, attempt, receive = context.log, 0, receive or context.receive
    while True:
        attempt += 1
        try:
            return await receive(inbound) is not False
        except OSError as error:
            log.warning("message %s cannot be stored for now (attempt %d): %s", inbound.message_id, attempt, error)
        except Exception as error:
            if attempt >= MAX_ATTEMPTS:
                log.exception("message %s is dropped: it could not be submitted", inbound.message_id)
                return False
            log.warning("message %s could not be submitted (attempt %d): %r", inbound.message_id, attempt, error)
        await context.clock.sleep(RETRY_BACKOFF.delay_s(attempt, random.random))


# Reactions


def wants_reaction(settings: ChannelAccount, reaction: Reacted, mode: str | None = None) -> bool:
    """Return whether to notify the agent of a reaction. ``mode`` overrides the account's ``reactionNotifications``."""
    match mode or settings.reaction_notifications:
        case "own":
            return reaction.to_us
        case "allowlist":
            sender = reaction.inbound.sender
            allowed = {str(entry).strip().lower() for entry in settings.reaction_allowlist}
            return bool(allowed & {"*", *(name.lower() for name in (sender.id, *sender.other_ids))})
        case mode:
            return mode == "all"


def reaction_text(
    inbound: Inbound, emoji: str | Sequence[str], whose: str, target: str, *, removed: bool = False
) -> str:
    """Describe a reaction. ``whose`` is the message, such as ``your message``; ``target`` is its id.

    The agent trusts this text as the Gateway's, so it holds no free text: people choose the emoji on some platforms,
    and the id on others.
    """
    who = display_name(inbound.sender.name) or display_name(inbound.sender.id)
    did = "took back the reaction" if removed else "reacted with"
    signs = dict.fromkeys(
        reaction_sign(sign) for sign in ([emoji] if isinstance(emoji, str) else emoji)[:MAX_EMOJI] if sign
    )
    suffix = f" (id {message_id})" if (message_id := short_id(target)) else ""
    return f"{channel_name(inbound.channel)}: {who} {' '.join([did, *signs])} to {whose}{suffix}"


# Order


class ConversationOrder:
    """A fair lock per conversation: work on one conversation runs one piece at a time, in order of arrival."""

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
    """Background tasks: in order within a conversation, concurrent across conversations."""

    def __init__(self, log: logging.Logger, max_tasks: int) -> None:
        self._log = log
        self._max_tasks = max_tasks
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
        """Wait until fewer than ``max_tasks`` tasks are running."""
        while len(self._tasks) >= self._max_tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cancel all running tasks. The platform delivers their events again."""
        await cancel_all(self._tasks)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until they have ended."""
    for task in (pending := list(tasks)):
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


class PostSubmitter:
    """Submits posts in order within a conversation, and each message only once.

    For webhooks: the platform delivers an event again until it is acknowledged.
    """

    def __init__(self, context: ChannelContext, fetch: Callable[[Any], Awaitable[Media]]) -> None:
        self._context = context
        self._fetch = fetch
        self._order = ConversationOrder()
        self.submitted: RecentDict[str, None] = RecentDict()
        """The ids of messages that are on disk."""

    async def submit(self, post: Posted) -> bool:
        """Return whether the message was new and from an allowed sender."""
        message_id = post.inbound.message_id
        async with self._order.of(post.inbound.to):
            if message_id in self.submitted:
                return False
            admitted = await submit_event(self._context, post, self._fetch)
            self.submitted[message_id] = None
            return admitted


# Webhooks


def secrets_equal(received: str | bytes, expected: str | bytes) -> bool:
    """Compare secrets in constant time. Text with lone surrogates, which headers can hold, never raises."""
    first = received.encode("utf-8", "surrogatepass") if isinstance(received, str) else received
    second = expected.encode("utf-8", "surrogatepass") if isinstance(expected, str) else expected
    return hmac.compare_digest(first, second)


async def body_signature(secret: str, *parts: bytes) -> str:
    """Return the HMAC-SHA256 of a request, in hex. Anyone can send a long body, so it is hashed in a thread."""

    def digest() -> str:
        mac = hmac.new(secret.encode(), digestmod=hashlib.sha256)
        for part in parts:
            mac.update(part)
        return mac.hexdigest()

    return await asyncio.to_thread(digest) if sum(map(len, parts)) > MAX_INLINE_HASH else digest()


async def confirm_webhook(work: Awaitable[None], log: logging.Logger) -> WebhookAnswer:
    """Do the work and acknowledge it. If it fails or takes too long, the status makes the platform deliver again."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await work
    except TimeoutError:
        log.warning("a webhook request could not be stored within %g s; the platform will deliver it again", ANSWER_S)
        return WebhookAnswer(status=503, text="try again")
    except Exception:
        log.exception("a webhook request could not be handled; the platform will deliver it again")
        return WebhookAnswer(status=500, text="try again")
    return WebhookAnswer(text="ok")


# Receipts


class ReadReceipts:
    """Marks messages as read, in the background and with one call at a time for a conversation.

    Marking a message marks all earlier ones, so messages that arrive within ``RECEIPT_DELAY_S`` or during a call are
    merged into one. ``mark`` receives the conversation and the message id, and must not raise.
    """

    def __init__(self, mark: Callable[[str, str], Awaitable[None]], clock: Clock) -> None:
        self._mark = mark
        self._clock = clock
        self._newest: dict[str, str] = {}
        """Conversations with a call in progress, and the message to mark next, or an empty string."""
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, conversation: str, message_id: str) -> None:
        is_running = conversation in self._newest
        if not is_running and len(self._newest) >= MAX_RECEIPTS:
            return  # A missing receipt is harmless.
        self._newest[conversation] = message_id
        if not is_running:
            task = asyncio.create_task(self._mark_all(conversation))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _mark_all(self, conversation: str) -> None:
        try:
            while self._newest[conversation]:
                await self._clock.sleep(RECEIPT_DELAY_S)
                message_id, self._newest[conversation] = self._newest[conversation], ""
                await self._mark(conversation, message_id)
        finally:
            del self._newest[conversation]

    async def close(self) -> None:
        await cancel_all(self._tasks)
        self._newest.clear()
