"""Shows a reply while it is being written: its finished blocks, a draft that changes in place, and notices of tools.

Each block is an outbox part that is stored before it is sent. It says how far it goes in its answer. So the end of the
run sends only the rest, and after a crash the blocks that were stored are not sent again. The finished reply is sent
like any other. Only the newest state of a draft matters: states that come faster than the channel takes them are left
out. In sessions with ``/verbose`` people on a channel see the tools that the agent uses.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import mimetypes
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from openclaw.clock import Chance, Clock, wait_within
from openclaw.config.schema.agents import BlockChunk
from openclaw.events import (
    AssistantEnded,
    AssistantStarted,
    CompactionEnded,
    Event,
    Spoken,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolStarted,
)
from openclaw.messages import TextBlock
from openclaw.outbound.answer_filter import closed_up, is_web, reasoning_message
from openclaw.outbound.blocks import JOINERS, BlockChunker, BlockRef, BlockSettings, Coalescer, ReplyBlock, file_digest
from openclaw.outbound.reply import MOST_REMEMBERED, MediaRef, ReplyShape, is_repeated, messaged_here, parts_for
from openclaw.outbound.reply_files import MOST_FILES, FilesOf
from openclaw.redact import redact
from openclaw.storage.disk_errors import until_written
from openclaw.storage.message_ledger import Ledger, LedgerRow, OutboxPart, OutboxRow
from openclaw.text import shortened

log = logging.getLogger("openclaw.outbound")

ANSWERS_PER_ATTEMPT = 1000


def stored_refs(rows: Sequence[OutboxRow]) -> list[BlockRef]:
    """How far the blocks go that are already in the outbox, in order."""
    matches: list[BlockRef] = []
    for row in rows:
        if (written := row.payload.get("block")) is not None:
            try:
                matches.append(msgspec.convert(written, BlockRef))
            except msgspec.ValidationError:
                log.warning("part %d of %s does not say how far it goes", row.part, row.run_id)
    return matches


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
        files: FilesOf,
        may_send: Callable[[], Awaitable[bool]],
        wake: Callable[[], None],
        chance: Chance = random.random,
    ) -> None:
        self._row, self._ledger, self._clock = row, ledger, clock
        self._shape, self._settings, self._notice, self._wake = shape, blocks, notice, wake
        self._files, self._may_send, self._chance = files, may_send, chance
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
        self._voice = False
        self._messaged: list[str] = []
        self._later: list[AnswerSection] = []
        """What the answer said that the chunker does not have yet."""
        self._held: list[str] = []
        """Files that wait for the end of the answer."""
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
        """Store what is complete so far, and nothing after it."""
        self._settling = True
        self._woken.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def stop(self) -> None:
        """Send nothing more, because somebody stopped the run."""
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
                self._later, self._held, self._voice = [], [], False
            case TextDelta(delta, reply_to, media, voice) if self._settings is not None:
                if self._reply_to and reply_to not in ("", self._reply_to) and not self._settings.at_message_end:
                    # What waits was said in answer to another message.
                    await self._blocks(force=True)
                    await self._send(self._coalescer.flush())
                self._reply_to = reply_to or self._reply_to
                self._voice = self._voice or voice
                self._later += self._answer.fresh(delta, media, self._unclaimed, self._chunker)
                if not self._settings.at_message_end and not self._answer.waits:
                    await self._sections()
                    await self._blocks(force=False)
            case AssistantEnded(message, speech, continues) if self._settings is not None:
                if not continues and message.stop_reason not in ("error", "aborted"):
                    self._voice = self._voice or (isinstance(speech, Spoken) and speech.voice)
                    self._later += self._answer.fresh("", (), self._unclaimed, self._chunker, complete=True)
                    await self._sections()
                    await self._blocks(force=True)
                    if held := self._held:
                        await self._send(self._coalescer.flush())
                        self._held = []
                        await self._send_files("", held)
                    self._answer.refs = []
            case _:
                if isinstance(event, ToolStarted):
                    await self._send(self._coalescer.flush())
                if (reply := messaged_here(event)) is not None:
                    self._messaged = [*self._messaged, reply][-MOST_REMEMBERED:]
                if text := self._notice(event):
                    await self._store(parts_for(self._row.route, [text], self._shape()))

    async def _sections(self) -> None:
        """Process an event. Files are sent where they stand, with the words before them."""
        sections, self._later = self._later, []
        for section in sections:
            self._chunker.feed(section.text)
            if section.files:
                blocks = self._chunker.drain(force=True)
                for block in blocks[:-1]:
                    await self._send(self._coalescer.add(block))
                await self._send(self._coalescer.flush())
                await self._files_of(section.files, blocks[-1] if blocks else None)

    async def _files_of(self, addresses: Sequence[str], block: ReplyBlock | None) -> None:
        """Send files with the block before them.

        Sound waits for the end of the answer, which may still say that it is a voice message, and so do the files
        behind it.
        """
        sound = not self._voice and any(_may_be_sound(address) for address in addresses)
        if self._held or sound:
            self._held += addresses
            await self._send([block] if block is not None else [])
            return
        if block is not None:
            self._answer.passed(block.end)
        await self._send_files(block.text if block is not None else "", addresses)

    async def _send_files(self, text: str, addresses: Sequence[str]) -> None:
        files = await until_written(lambda: self._files(addresses, self._voice), self._clock.sleep)
        self._answer.files += len(addresses)
        await self._deliver(files.under(closed_up(text)), files.media, "")

    async def _blocks(self, *, force: bool) -> None:
        for block in self._chunker.drain(force=force):
            await self._send(self._coalescer.add(block))

    async def _send(self, blocks: Sequence[ReplyBlock]) -> None:
        for block in blocks:
            self._answer.passed(block.end)
            if not is_repeated(block.text, self._messaged):
                await self._deliver(block.text, (), block.head)

    async def _deliver(self, text: str, media: Sequence[MediaRef], head: str) -> None:
        shape = self._shape()
        parts = parts_for(self._row.route, [text], shape, media, self._reply_to, first=self._sent)
        if not parts:
            return
        pause = shape.pause(self._chance) if self._sent else 0
        ref = self._answer.reference(head)
        parts[0].payload |= {"pauseMs": pause} if pause else {}
        parts[-1].payload["block"] = msgspec.to_builtins(ref)
        if await self._store(parts):
            self._answer.refs.append(ref)

    async def _store(self, parts: list[OutboxPart]) -> bool:
        if not await until_written(self._may_send, self._clock.sleep):
            return False  # The end of the run asks again, and decides about all that was not stored.
        stored = await until_written(lambda: self._ledger.outbox_add(self._row.id, parts), self._clock.sleep)
        if stored:
            self._sent += len(parts)
            self._wake()
        return stored


def _may_be_sound(address: str) -> bool:
    guessed = mimetypes.guess_type(urlsplit(address).path if is_web(address) else address)[0] or ""
    return guessed.startswith("audio/")


class AnswerSection(msgspec.Struct, frozen=True):
    """A piece of an answer, and the files that stand behind it, by address."""

    text: str
    files: tuple[str, ...] = ()


class _Answer:
    """How far one answer has come."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.refs: list[BlockRef] = []
        self.waits = False
        """The text may still turn out to be one that was sent in part before."""
        self.files = 0
        """How many of its files were sent."""
        self._named: dict[str, int] = {}
        """The addresses of its files, and where in the text each stands."""
        self._read = ""
        """The text behind the last reference."""
        self._hashed: Any = hashlib.sha256()
        self._end = 0
        self._given = 0
        """How far the text was given out by ``fresh``."""
        self._files_given = 0
        self._decided = False

    def fresh(
        self,
        delta: str,
        media: Sequence[str],
        unclaimed: list[BlockRef],
        chunker: BlockChunker,
        *,
        complete: bool = False,
    ) -> list[AnswerSection]:
        """Return the text to send, without what blocks of an earlier attempt contained."""
        self._read += delta
        for address in media:
            self._named.setdefault(address, self._end + len(self._read))
        while not self._decided and unclaimed:
            first = unclaimed[0]
            ahead, behind = first.end - self._end, len(self._named) < first.files
            if not complete and (ahead > len(self._read) or (behind and ahead == len(self._read))):
                self.waits = True
                return []
            existing = ahead < 0 or (ahead == 0 and first.files <= self.files)
            if existing or behind or ahead > len(self._read):
                break
            if self._digest(self._read[:ahead], first.files) != first.digest:
                break
            self.passed(first.end)
            self.number, self.files = first.answer, first.files
            self._given, self._files_given = first.end, first.files
            self.refs.append(unclaimed.pop(0))
            chunker.start(first.end, first.head)
        self._decided, self.waits = True, False
        return self._sections()

    def _sections(self) -> list[AnswerSection]:
        sections: list[AnswerSection] = []
        # The end of the run says how many more files there are than are sent.
        for address, position in list(self._named.items())[self._files_given : MOST_FILES]:
            position = max(position, self._given)
            if sections and position == self._given:
                sections[-1] = AnswerSection(sections[-1].text, (*sections[-1].files, address))
            else:
                sections.append(AnswerSection(self._read[self._given - self._end : position - self._end], (address,)))
            self._given = position
            self._files_given += 1
        if text := self._read[self._given - self._end :]:
            sections.append(AnswerSection(text))
            self._given += len(text)
        return sections

    def reference(self, head: str) -> BlockRef:
        """Report how far the answer was sent."""
        digest = self._digest("", self.files)
        return BlockRef(answer=self.number, end=self._end, digest=digest, head=head, files=self.files)

    def passed(self, end: int) -> None:
        """The text up to here was sent."""
        size = end - self._end
        self._hashed.update(self._read[:size].encode("utf-8", "surrogatepass"))
        self._read, self._end = self._read[size:], end

    def _digest(self, more: str, files: int) -> str:
        hashed = self._hashed.copy()
        hashed.update(more.encode("utf-8", "surrogatepass"))
        return file_digest(hashed, list(self._named)[:files])


THROTTLE_S = 0.3
"""The least time between two states."""
LONGEST = 16_000
"""A longer text is no longer shown as a draft."""
DRAFT_CHUNK = BlockChunk(min_chars=200, max_chars=800)
"""The pieces by which a draft grows in the mode ``block``."""


class DraftStream:
    """Follows one run. Call ``event`` for each event and ``end`` once, when the run has ended."""

    def __init__(
        self,
        clock: Clock,
        show: Callable[[str], Awaitable[bool]],
        *,
        chunker: BlockChunker | None = None,
        with_reasoning: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._show = show
        """Shows a text in place of the last one, and takes it away if the text is empty. False: it cannot."""
        self._with_reasoning = with_reasoning
        self._chunker = chunker
        self._said: list[str] = []
        self._thoughts: list[str] = []
        self._size = 0
        self._shown = ""
        self._woken = asyncio.Event()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def event(self, event: Event) -> None:
        if self._ended:
            return
        match event:
            case AssistantStarted():
                self._said, self._thoughts, self._size = [], [], 0
                if self._chunker is not None:
                    self._chunker.start()
                return
            case TextDelta(delta):
                self._add(self._said, self._grown(delta))
            case ThinkingDelta(delta) if self._with_reasoning():
                self._add(self._thoughts, delta)
            case _:
                return
        self._woken.set()
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="draft")

    async def end(self) -> None:
        """Take the draft away. Nothing is shown after that."""
        self._ended = True
        self._woken.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            if self._shown:
                await self._show("")

    def _add(self, to: list[str], text: str) -> None:
        to.append(text)
        self._size += len(text)

    def _grown(self, delta: str) -> str:
        if self._chunker is None:
            return delta
        self._chunker.feed(delta)
        return "".join(f"{block.gap or ''}{block.text}" for block in self._chunker.drain(force=False))

    def _state(self) -> str:
        text = "".join(self._said).strip()
        return text or reasoning_message("".join(self._thoughts))

    async def _work(self) -> None:
        while not self._ended and self._size <= LONGEST:
            self._woken.clear()
            text = self._state()
            if text and text != self._shown:
                if not await self._show(text):
                    self._ended = True
                    return
                self._shown = text
                await self._clock.sleep(THROTTLE_S)
            if not self._ended:
                await self._woken.wait()


MOST_OUTPUT = 8000
"""Longer results are cut, because they fill the screen of a phone many times over."""
_META = 120
# fmt: off
_EMOJI = {
    "exec": "🛠️", "read": "📖", "search": "🔎", "write": "✍️", "edit": "📝", "apply_patch": "📝", "process": "🧰",
    "browser": "🌐", "web_fetch": "🌐", "web_search": "🔎", "memory_search": "🧠", "memory_get": "🧠", "message": "✉️",
    "cron": "⏰", "image": "🖼️", "sessions_send": "🗨️", "sessions_spawn": "🧑‍🔧", "canvas": "🖼️", "nodes": "📱",
    "plan": "📋",
}
# fmt: on
_TELLING = ("command", "path", "file_path", "url", "query", "action", "name", "to", "target", "text")
"""Arguments that say most about a call, in the order in which they are looked for."""


def run_notice(event: Event, verbose: str) -> str:
    """Return the notice about an event of a run. Empty if there is none at this level (``off``, ``on`` or ``full``)."""
    if verbose not in ("on", "full"):
        return ""
    match event:
        case ToolStarted(name=name, arguments=arguments):
            return tool_summary(name, arguments)
        case ToolEnded(message=message, arguments=arguments) if verbose == "full":
            text = "\n".join(block.text for block in message.content if isinstance(block, TextBlock)).strip()
            return f"{tool_summary(message.tool_name, arguments)}\n{_fenced(text)}"
        case CompactionEnded(entry_id=entry, count=count) if entry is not None:
            return f"🧹 Auto-compaction complete (count {count})."
        case _:
            return ""


def tool_summary(name: str, arguments: dict[str, Any]) -> str:
    """``📖 Read: `notes.md```"""
    label = name.replace("_", " ").capitalize()
    reply = next((arguments[key] for key in _TELLING if isinstance(arguments.get(key), str) and arguments[key]), "")
    meta = shortened(redact(str(reply)), _META).replace("`", "'")
    flags = [flag for flag in ("elevated", "pty") if name == "exec" and arguments.get(flag) is True]
    details = " · ".join([*flags, f"`{meta}`"]) if meta else ""
    return f"{_EMOJI.get(name, '🧩')} {label}" + (f": {details}" if details else "")


def _fenced(text: str) -> str:
    if not text:
        return "(no output)"
    text = redact(text if len(text) <= MOST_OUTPUT else text[: MOST_OUTPUT - 1] + "…")
    fence = "````" if "```" in text else "```"
    return f"{fence}txt\n{text}\n{fence}"
