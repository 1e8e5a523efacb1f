"""Sends a reply while it is being written: its finished blocks, and notices of what the agent does.

Each message is an outbox part that is stored before it is sent. A block says how far it goes in its answer. So the end
of the run sends only the rest, and after a crash the blocks that were stored are not sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from openclaw.clock import Clock, wait_within
from openclaw.events import AssistantEnded, AssistantStarted, Event, TextDelta, ToolStarted
from openclaw.outbound.blocks import JOINERS, BlockChunker, BlockRef, BlockSettings, Coalescer, ReplyBlock
from openclaw.outbound.reply import ReplyShape, parts_for
from openclaw.storage.base import Ledger, LedgerRow, OutboxPart, OutboxRow
from openclaw.storage.disk_errors import until_written

log = logging.getLogger("openclaw.outbound")

ANSWERS_PER_ATTEMPT = 1000


def stored_refs(rows: Sequence[OutboxRow]) -> list[BlockRef]:
    """How far the blocks go that are already in the outbox, in order."""
    found: list[BlockRef] = []
    for row in rows:
        if (written := row.payload.get("block")) is not None:
            try:
                found.append(msgspec.convert(written, BlockRef))
            except msgspec.ValidationError:
                log.warning("part %d of %s does not say how far it goes", row.part, row.run_id)
    return found


class ReplyStream:
    """Follows one run. Call ``event`` for each event and ``settle`` before the message is ended."""

    def __init__(
        self,
        row: LedgerRow,
        ledger: Ledger,
        clock: Clock,
        *,
        shape: Callable[[], ReplyShape],
        blocks: BlockSettings | None,
        notice: Callable[[Event], str],
        wake: Callable[[], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._row, self._ledger, self._clock = row, ledger, clock
        self._shape, self._settings, self._notice, self._wake = shape, blocks, notice, wake
        self._chance = chance
        settings = blocks or BlockSettings()
        self._chunker = BlockChunker(
            settings.min_chars, settings.max_chars, settings.preference, by_paragraph=settings.by_paragraph
        )
        self._coalescer = Coalescer(
            settings.join_min, settings.join_max, JOINERS[settings.preference], each=settings.by_paragraph
        )
        self._idle_s = settings.idle_ms / 1000
        self._answer = _Answer(0)
        self._answers = 0
        self._unclaimed: list[BlockRef] = []
        """Blocks of an attempt that did not end. An answer that begins with the same words goes on behind them."""
        self._sent = 0
        self._reply_to = ""
        self._events: deque[Event] = deque()
        self._woken = asyncio.Event()
        self._settling = False
        self._task: asyncio.Task[None] | None = None

    def event(self, event: Event) -> None:
        if self._settling or not (self._settings is not None or self._notice(event)):
            return
        self._events.append(event)
        self._woken.set()
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name=f"reply stream {self._row.run_id}")

    async def settle(self) -> None:
        """Stores what is complete so far, and nothing after it."""
        self._settling = True
        self._woken.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def stop(self) -> None:
        """Sends nothing more, because somebody stopped the run."""
        self._settling = True
        self._events.clear()
        self._woken.set()

    async def _work(self) -> None:
        try:
            if self._row.attempts:
                rows = await until_written(lambda: self._ledger.outbox_of(self._row.id), self._clock.sleep)
                self._unclaimed, self._sent = stored_refs(rows), len(rows)
            while True:
                while self._events:
                    await self._take(self._events.popleft())
                if self._settling:
                    return
                if not self._coalescer.waits or not self._idle_s:
                    await self._woken.wait()
                elif not await wait_within(self._woken, self._idle_s, self._clock):
                    await self._send(self._coalescer.paused())
                self._woken.clear()
        except Exception:
            # The end of the run sends what was not sent.
            log.exception("the reply of %s is no longer sent while it is being written", self._row.run_id)
            self._settling = True

    async def _take(self, event: Event) -> None:
        match event:
            case AssistantStarted() if self._settings is not None:
                await self._send(self._coalescer.flush())
                self._unclaimed += self._answer.refs
                self._answers += 1
                self._answer = _Answer(self._row.attempts * ANSWERS_PER_ATTEMPT + self._answers)
                self._chunker.start()
            case TextDelta(delta, reply_to) if self._settings is not None:
                self._reply_to = reply_to or self._reply_to
                self._chunker.feed(self._answer.fresh(delta, self._unclaimed, self._chunker))
                if not self._settings.at_message_end and not self._answer.waits:
                    await self._blocks(force=False)
            case AssistantEnded(message, continues=continues) if self._settings is not None:
                if not continues and message.stop_reason not in ("error", "aborted"):
                    self._chunker.feed(self._answer.fresh("", self._unclaimed, self._chunker, complete=True))
                    await self._blocks(force=True)
                    self._answer.refs = []
            case _:
                if isinstance(event, ToolStarted):
                    await self._send(self._coalescer.flush())
                if text := self._notice(event):
                    await self._store(parts_for(self._row.route, [text], self._shape()))

    async def _blocks(self, *, force: bool) -> None:
        for block in self._chunker.drain(force=force):
            await self._send(self._coalescer.add(block))

    async def _send(self, blocks: Sequence[ReplyBlock]) -> None:
        for block in blocks:
            shape = self._shape()
            parts = parts_for(self._row.route, [block.text], shape, reply_to=self._reply_to, first=self._sent)
            if not parts:
                continue
            low, high = self._settings.pause_ms if self._settings is not None else (0, 0)
            pause = low + int(self._chance() * (high - low + 1)) if high and self._sent else 0
            ref = self._answer.reference(block)
            parts[0].payload |= {"pauseMs": pause} if pause else {}
            parts[-1].payload["block"] = msgspec.to_builtins(ref)
            if await self._store(parts):
                self._answer.refs.append(ref)

    async def _store(self, parts: list[OutboxPart]) -> bool:
        stored = await until_written(lambda: self._ledger.outbox_add(self._row.id, parts), self._clock.sleep)
        if stored:
            self._sent += len(parts)
            self._wake()
        return stored


class _Answer:
    """How far one answer has come."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.refs: list[BlockRef] = []
        self.waits = False
        """The text may still turn out to be one that was sent in part before."""
        self._read = ""
        """The text behind the last reference."""
        self._hashed: Any = hashlib.sha256()
        self._end = 0
        self._decided = False

    def fresh(self, delta: str, unclaimed: list[BlockRef], chunker: BlockChunker, *, complete: bool = False) -> str:
        """The text that is to be sent, without what blocks of an earlier attempt have said."""
        self._read += delta
        if self._decided:
            return delta
        while unclaimed:
            first = unclaimed[0]
            ahead = first.end - self._end
            if ahead > len(self._read) and not complete:
                self.waits = True
                return ""
            if ahead <= 0 or ahead > len(self._read) or self._digest(self._read[:ahead]) != first.digest:
                break
            self._pass(ahead)
            self.number = first.answer
            self.refs.append(unclaimed.pop(0))
            chunker.start(first.end, first.head)
        self._decided, self.waits = True, False
        return self._read

    def reference(self, block: ReplyBlock) -> BlockRef:
        self._pass(block.end - self._end)
        return BlockRef(answer=self.number, end=self._end, digest=self._hashed.hexdigest()[:32], head=block.head)

    def _digest(self, more: str) -> str:
        hashed = self._hashed.copy()
        hashed.update(more.encode("utf-8", "surrogatepass"))
        return hashed.hexdigest()[:32]

    def _pass(self, size: int) -> None:
        self._hashed.update(self._read[:size].encode("utf-8", "surrogatepass"))
        self._read, self._end = self._read[size:], self._end + size
