"""Makes one turn of quick texts of one sender. Nothing is lost, and the order is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from openclaw.clock import Clock
from openclaw.config.schema.messages import InboundDebounce
from openclaw.inbound.message import Inbound

log = logging.getLogger("openclaw.inbound.debounce")
Key: TypeAlias = tuple[str, str, str, str, str]
AcceptTurn: TypeAlias = Callable[[list[Inbound]], Awaitable[None]]
"""Takes in the messages of one turn. It raises when it could not."""
WINDOWS_AT_MOST = 5
"""After this many windows a sender is answered, even if more texts keep coming."""
MOST_MESSAGES = 20
MOST_CHARS = 20_000
MOST_WAITING = 1000
"""The limit of messages held back in all conversations. Beyond it the turns of the oldest begin early."""
_NOBODY: Key = ("", "", "", "", "")
_TAKEN_FROM_THE_LATEST = (
    *("quoted", "thread_label", "thread_starter", "conversation_label"),
    *("group_subject", "group_channel", "group_space", "group_members"),
)
"""Fields of a joined message that come from the latest message that has them."""


class Debouncer:
    """Holds texts back and makes turns of them, which are lists. ``merged`` makes one message of such a list.

    A message that did not wait goes to ``accept_turn``. If that fails, the task that ``add`` returned raises the error,
    and the caller has to try again. Messages that waited go to ``retry_turn``, which tries again by itself.

    ``window_ms`` is called for every message, so that a changed configuration counts at once. ``is_control`` finds
    commands and stop words. They never wait and never mix with other text.
    """

    def __init__(
        self,
        accept_turn: AcceptTurn,
        retry_turn: AcceptTurn,
        *,
        clock: Clock,
        window_ms: Callable[[Inbound], int],
        is_control: Callable[[str], bool],
    ) -> None:
        self._accept_turn = accept_turn
        self._retry_turn = retry_turn
        self._clock = clock
        self._window_ms = window_ms
        self._is_control = is_control
        self._waiting: dict[Key, _Waiting] = {}
        self._held = 0
        self._last: dict[Key, asyncio.Task[None]] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._slow: set[asyncio.Task[None]] = set()
        self._closed = False

    def release_now(self, item: Inbound) -> asyncio.Task[None]:
        """Begin a turn of one message that is held on disk already. Later messages of its sender wait for its end.

        Such a turn may take long, so nobody who receives from a channel waits for it.
        """
        key = conversation_of(item)
        if key in self._waiting:
            self._flush(key)
        task = self._start(key, [item], self._retry_turn)
        self._slow.add(task)
        task.add_done_callback(self._slow.discard)
        return task

    @property
    def is_full(self) -> bool:
        """Whether so many turns of held messages are under way that later ones have to wait."""
        return len(self._slow) >= MOST_WAITING

    def is_behind(self, item: Inbound) -> bool:
        """Return whether the turn of an earlier message of the sender, which is held, is still under way."""
        key = conversation_of(item) if self._slow else None
        return key is not None and self._last.get(key) in self._slow

    def add(self, item: Inbound) -> asyncio.Task[None] | None:
        """Take a message. Returns the task of its turn, or None for a message that waits for more.

        The task raises what ``accept_turn`` raises. For a message that waits, the error is logged.
        """
        key = conversation_of(item)
        if key is None or not self.may_wait(item):
            if key in self._waiting:
                self._flush(key)
            return self._start(key, [item])
        waiting = self._waiting.get(key)
        if waiting is not None and item.message_id and item.message_id in [held.message_id for held in waiting.items]:
            return None  # The channel delivered the message a second time.
        if waiting is not None and _does_not_fit(waiting, item):
            self._flush(key)
            waiting = None
        self._hold(key, waiting, item, self._window_ms(item) / 1000)
        return None

    def find(self, item: Inbound) -> Inbound | None:
        """Return the message of the same sender with the item's id, if it waits."""
        waiting = self._waiting.get(conversation_of(item) or _NOBODY)
        if waiting is None or not item.message_id:
            return None
        return next((held for held in waiting.items if held.message_id == item.message_id), None)

    def change(self, item: Inbound) -> Inbound | None:
        """Give a message that waits its new words, and return it. None when it does not wait (any more)."""
        if (held := self.find(item)) is None:
            return None
        items = self._waiting[conversation_of(item) or _NOBODY].items
        changed = items[items.index(held)] = msgspec.structs.replace(held, text=item.text)
        return changed

    def withdraw(self, item: Inbound) -> bool:
        """Remove a message that waits. Returns False when it does not wait (any more)."""
        if (held := self.find(item)) is None:
            return False
        waiting = self._waiting[key := conversation_of(item) or _NOBODY]
        waiting.items.remove(held)
        self._held -= 1
        if not waiting.items:
            del self._waiting[key]
            if waiting.timer is not None:
                waiting.timer.cancel()
        return True

    def may_wait(self, item: Inbound) -> bool:
        """Return whether the item may wait for more words of its sender."""
        if self._closed or conversation_of(item) is None or self._window_ms(item) <= 0:
            return False
        # A forwarded text keeps its own heading, and people wait for an answer to a file.
        if item.native_command or item.forwarded_from or item.media:
            return False
        return bool(item.text.strip()) and not self._is_control(item.text)

    async def close(self) -> None:
        """Begin the turns of everything that waits, and return when they have ended. Later messages do not wait."""
        self._closed = True
        for key in list(self._waiting):
            self._flush(key)
        while self._under_way:
            await asyncio.gather(*self._under_way, return_exceptions=True)

    def _hold(self, key: Key, waiting: _Waiting | None, item: Inbound, window: float) -> None:
        now = self._clock.monotonic()
        if waiting is None:
            waiting = self._waiting[key] = _Waiting(now)
        waiting.items.append(item)
        waiting.chars += len(item.text)
        waiting.due = min(now + window, waiting.since + window * WINDOWS_AT_MOST)
        self._held += 1
        if len(waiting.items) >= MOST_MESSAGES:
            self._flush(key)
        elif waiting.timer is None:
            waiting.timer = asyncio.create_task(self._wait(key, waiting))
        while self._held > MOST_WAITING:
            self._flush(next(iter(self._waiting)))

    async def _wait(self, key: Key, waiting: _Waiting) -> None:
        while (left := waiting.due - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        waiting.timer = None
        self._flush(key)

    def _flush(self, key: Key) -> None:
        waiting = self._waiting.pop(key)
        self._held -= len(waiting.items)
        if waiting.timer is not None:
            waiting.timer.cancel()
        task = self._start(key, waiting.items, self._retry_turn)
        task.add_done_callback(lambda done: _report(done, waiting.items))

    def _start(self, key: Key | None, items: list[Inbound], take: AcceptTurn | None = None) -> asyncio.Task[None]:
        earlier = self._last.get(key) if key is not None else None
        task = asyncio.create_task(self._accept_after(earlier, items, take or self._accept_turn))
        self._under_way.add(task)
        if key is not None:
            self._last[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))
        return task

    async def _accept_after(self, earlier: asyncio.Task[None] | None, items: list[Inbound], take: AcceptTurn) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        await take(items)

    def _ended(self, key: Key | None, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if key is not None and self._last.get(key) is task:
            del self._last[key]


class _Waiting:
    def __init__(self, now: float) -> None:
        self.items: list[Inbound] = []
        self.since = now
        self.due = now
        self.chars = 0
        self.timer: asyncio.Task[None] | None = None


def _does_not_fit(waiting: _Waiting, item: Inbound) -> bool:
    """Return whether the item would make the turn too long, or quotes another message than the others do."""
    if waiting.chars + len(item.text) > MOST_CHARS:
        return True
    return item.quoted is not None and any(held.quoted not in (None, item.quoted) for held in waiting.items)


def _report(task: asyncio.Task[None], items: list[Inbound]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        ids = ", ".join(item.message_id for item in items)
        log.error("%s message %s could not be accepted: %s", items[0].channel, ids, error, exc_info=error)


def debounce_ms(settings: InboundDebounce, channel: str) -> int:
    """Return the channel's window, else the general one. 0 means off."""
    return max(0, settings.by_channel.get(channel.strip().lower(), settings.debounce_ms))


def conversation_of(inbound: Inbound) -> Key | None:
    """Return the conversation and sender of a message, or None when the sender is unknown."""
    sender = inbound.sender.id.strip() or (inbound.sender.e164 or "").strip()
    if not sender:
        return None
    thread = "" if inbound.thread_id is None else str(inbound.thread_id)
    return (inbound.channel.lower(), inbound.account_id, f"{inbound.peer.kind}:{inbound.peer.id}", thread, sender)


def merged(items: list[Inbound]) -> Inbound:
    """Join the items into one message. The newest item decides where and to what the answer goes."""
    newest = items[-1]
    if len(items) == 1:
        return newest

    latest = {
        name: next((value for item in reversed(items) if (value := getattr(item, name)) is not None), None)
        for name in _TAKEN_FROM_THE_LATEST
    }
    return msgspec.structs.replace(
        newest,
        text="\n".join(item.text for item in items),
        message_ids=tuple(one for item in items for one in item.message_ids or (item.message_id,) if one),
        mentioned=any(item.mentioned for item in items),
        mentions_others=any(item.mentions_others for item in items),
        can_detect_mention=any(item.can_detect_mention for item in items),
        untrusted=tuple(dict.fromkeys(line for item in items for line in item.untrusted)),
        **latest,
    )
