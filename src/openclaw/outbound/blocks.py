"""Finished blocks of a reply that is still being written: where a block ends, and which blocks are sent together.

``BlockChunker`` takes the text as it arrives and keeps only what is not yet in a block. ``Coalescer`` joins small
blocks. Neither knows time or channels; the caller says when a pause is over.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from openclaw.config.agents import agent_config
from openclaw.config.channels import account_settings
from openclaw.config.schema import Config
from openclaw.config.schema.agents import BlockCoalesce
from openclaw.outbound.chunking import POSES_AS_BLOCK, Fence, find_fences, limits_for

BreakPreference: TypeAlias = Literal["paragraph", "newline", "sentence"]
JOINERS: dict[BreakPreference, str] = {"paragraph": "\n\n", "newline": "\n", "sentence": " "}
IDLE_MS = 1000
COALESCED_CHANNELS = frozenset({"discord", "slack", "signal", "googlechat", "mattermost"})
"""Channels that are better served with few long messages."""
COALESCED_CHARS = 1500
NATURAL_MS = (800, 2500)
_PARAGRAPH_END = re.compile(r"\n[\t ]*\n+")
_SENTENCE_END = re.compile(r"[.!?]")


class BlockSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the replies of one account are streamed."""

    at_message_end: bool = False
    """Blocks are made only when the message is complete."""
    min_chars: int = 800
    max_chars: int = 1200
    preference: BreakPreference = "paragraph"
    by_paragraph: bool = False
    """Each paragraph is a block and a message of its own (``chunkMode`` is ``newline``)."""
    join_min: int = 800
    join_max: int = 4000
    idle_ms: int = IDLE_MS
    """A pause after which joined blocks are sent. 0: only the end or a tool sends them."""


def block_settings(config: Config, channel: str, account_id: str | None) -> BlockSettings | None:
    """Return the settings, or None if replies of this account are not sent in blocks.

    A channel needs ``blockStreaming: true``. Only on Telegram is ``agents.defaults.blockStreamingDefault`` enough.
    """
    defaults, account = config.agents.defaults, account_settings(config, channel, account_id)
    requested = account.block_streaming if account is not None else None
    if requested is None:
        requested = channel == "telegram" and defaults.block_streaming_default == "on"
    if not requested:
        return None
    limits = limits_for(config, channel, account_id)
    chunk = defaults.block_streaming_chunk
    most = min(chunk.max_chars, limits.text)
    own = (account.block_streaming_coalesce if account is not None else None) or BlockCoalesce()
    common = defaults.block_streaming_coalesce
    built_in = COALESCED_CHARS if channel in COALESCED_CHANNELS else chunk.min_chars
    join_max = min(own.max_chars or common.max_chars or limits.text, limits.text)
    idle = own.idle_ms if own.idle_ms is not None else common.idle_ms
    return BlockSettings(
        at_message_end=defaults.block_streaming_break == "message_end",
        min_chars=min(chunk.min_chars, most),
        max_chars=most,
        preference=chunk.break_preference,
        by_paragraph=limits.mode == "newline",
        join_min=min(own.min_chars or common.min_chars or built_in, join_max),
        join_max=join_max,
        idle_ms=IDLE_MS if idle is None else idle,
    )


def pause_range(config: Config, agent_id: str) -> tuple[int, int]:
    """Return the shortest and the longest pause, in milliseconds, before each block but the first."""
    agent = agent_config(config, agent_id)
    delay = (agent.human_delay if agent else None) or config.agents.defaults.human_delay
    match delay.mode:
        case "off":
            return 0, 0
        case "natural":
            return NATURAL_MS
        case "custom":
            return delay.min_ms, max(delay.min_ms, delay.max_ms)


class BlockRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """How far a sent block goes in its answer. It is stored with the block, so that no text is sent twice."""

    answer: int
    """The number of the answer within its attempt. It tells apart the blocks of answers that say the same."""
    end: int
    """The characters of the answer that have been sent when this block has been."""
    digest: str
    """Identifies these characters."""
    head: str = ""
    """Goes before the rest: the reopened fence of a block of code."""
    files: int = 0
    """The files of the answer that have been sent by then, each address counted once."""


class Rest(msgspec.Struct, frozen=True):
    """What of an answer has not been sent in blocks."""

    text: str
    files: int = 0
    """How many of its files have been sent, each address counted once."""


def digest_of(text: str, files: Sequence[str] = ()) -> str:
    hashed = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    return file_digest(hashed, files)


def file_digest(of_text: Any, files: Sequence[str]) -> str:
    """Return the digest of a text that is hashed already, together with files, by their addresses."""
    if files:
        of_text.update("\0".join(("", *files)).encode("utf-8", "surrogatepass"))
    return of_text.hexdigest()[:32]


def rest_of(text: str, files: Sequence[str], refs: list[BlockRef]) -> Rest:
    """What of an answer has not been sent in blocks. It takes the references of the answer out of ``refs``.

    ``files`` are the addresses of the answer's files, each once.
    """
    fitting = [
        ref
        for ref in refs
        if ref.end <= len(text)
        and ref.files <= len(files)
        and digest_of(text[: ref.end], files[: ref.files]) == ref.digest
    ]
    if not fitting:
        return Rest(text)
    first = min(refs.index(ref) for ref in fitting)
    same = [ref for ref in fitting if ref.answer == refs[first].answer]
    last = max(same, key=lambda ref: (ref.end, ref.files))
    refs[:] = [ref for ref in refs if ref.answer != last.answer]
    rest = text[last.end :]
    return Rest(last.head + rest if rest.strip() else "", last.files)


class ReplyBlock(msgspec.Struct, frozen=True):
    """A piece of an answer that can be sent by itself."""

    text: str
    end: int
    """The characters of the answer up to and including this block."""
    head: str = ""
    """What goes before the rest of the answer."""
    gap: str | None = None
    """What stood between the block before and this one. None: that block was closed, and nothing did."""


class BlockChunker:
    """Finds the blocks in a text that arrives in pieces. Only the text that is in no block yet is kept and searched."""

    def __init__(
        self, min_chars: int, max_chars: int, preference: BreakPreference = "paragraph", *, by_paragraph: bool = False
    ) -> None:
        self._min = max(1, min_chars)
        self._wanted = max(1, max_chars)
        self._max = max(self._min, max_chars)
        self._preference: BreakPreference = preference
        self._by_paragraph = by_paragraph
        self._head = ""
        """A reopened fence that the buffer begins with. It does not belong to the answer."""
        self._buffer = ""
        self._end = 0
        """How much of the answer is in blocks."""
        self._gap: str | None = None

    def start(self, end: int = 0, head: str = "") -> None:
        """Begin a new answer, behind what is already sent of it."""
        self._buffer, self._head, self._end, self._gap = head, head, end, None

    def feed(self, text: str) -> None:
        self._buffer += text

    @property
    def held(self) -> str:
        return self._buffer

    def drain(self, *, force: bool) -> list[ReplyBlock]:
        """Return the blocks that are complete. ``force`` takes all that is left."""
        blocks: list[ReplyBlock] = []
        if self._by_paragraph and not force:
            while (block := self._paragraph()) is not None:
                blocks += [block] if block.text.strip() else []
            return blocks
        if not force and len(self._buffer) < self._min:
            return blocks
        if force and len(self._buffer) <= self._max:
            return [*blocks, *self._take(len(self._buffer))]
        while self._buffer and (force or len(self._buffer) >= self._min):
            fences = _fences(self._buffer)
            if force and len(self._buffer) <= self._max:
                cut = self._first_break(fences)
            else:
                cut = self._last_break(fences, 1 if force else self._min)
            if cut < 0:
                blocks += self._take(len(self._buffer)) if force else []
                break
            blocks += self._take(cut, fences)
            if not force and (len(self._buffer) < self._min or len(self._buffer) < self._max):
                break
        return blocks

    def _paragraph(self) -> ReplyBlock | None:
        """Return the next whole paragraph, or a part of one that is too long."""
        fences = _fences(self._buffer) if "\n" in self._buffer else []
        for gap in _PARAGRAPH_END.finditer(self._buffer):
            if gap.start() > self._wanted:
                break
            if _inside(fences, gap.start()) is None:
                taken = self._take(gap.start(), fences)
                return taken[0] if taken else ReplyBlock("", self._end)
        if len(self._buffer) < self._max:
            return None
        cut = self._last_break(fences, 1)
        taken = self._take(cut, fences) if cut > 0 else []
        return taken[0] if taken else None

    # Where to cut

    def _last_break(self, fences: list[Fence], least: int) -> int:
        """Return the last good place within the largest block, or -1."""
        most = self._wanted if least == 1 else self._max
        window, preference = self._buffer[:most], self._preference
        if preference == "paragraph":
            position = window.rfind("\n\n")
            while position >= least:
                for cut in (position, position + 1):
                    if least <= cut <= len(window) and _inside(fences, cut) is None:
                        return cut
                position = window.rfind("\n\n", 0, position)
        if preference != "sentence":
            position = window.rfind("\n")
            while position >= least:
                if _inside(fences, position) is None:
                    return position
                position = window.rfind("\n", 0, position)
        if preference != "newline":
            for cut in self._sentence_ends(window, least):
                if _inside(fences, cut) is None:
                    return cut
        elif len(self._buffer) < most:
            return -1
        for position in range(len(window) - 1, least - 1, -1):
            if window[position].isspace() and _inside(fences, position) is None:
                if least > 1 and self._may_pose_as_block(position):
                    continue
                return position
        return most if len(self._buffer) >= most else -1

    def _first_break(self, fences: list[Fence]) -> int:
        """Return the first good place in a text that would fit as a whole, so that paragraphs stay apart at the end."""
        buffer, preference = self._buffer, self._preference
        if preference == "paragraph":
            position = buffer.find("\n\n")
            while position >= 0:
                for cut in (position, position + 1):
                    if cut >= 1 and _inside(fences, cut) is None:
                        return cut
                position = buffer.find("\n\n", position + 1)
        if preference != "sentence":
            position = buffer.find("\n")
            while position >= 0:
                if position >= 1 and _inside(fences, position) is None:
                    return position
                position = buffer.find("\n", position + 1)
        if preference != "newline":
            for cut in self._sentence_ends(buffer, 1):
                if _inside(fences, cut) is None:
                    return cut
        return -1

    def _sentence_ends(self, window: str, least: int) -> list[int]:
        """Return the positions after full stops, last first. The next text must be there, unless all is there."""
        ends = [end.end() for end in _SENTENCE_END.finditer(window) if end.start() >= least]
        following = [(end, self._buffer[end : end + 1]) for end in reversed(ends)]
        if least == 1:
            return [end for end, char in following if not char or char.isspace()]
        return [end for end, char in following if char == "\n" or (char.isspace() and not self._may_pose_as_block(end))]

    def _may_pose_as_block(self, place: int) -> bool:
        """Return whether what comes behind the blank at ``place`` may turn out to begin a fence, a list or the like.

        It must not do that, and is only marked as words once enough of it is there.
        """
        rest = self._buffer[place + 1 : place + 12].lstrip(" \t")
        return not rest or (len(rest) < 3 and rest[0] in "`~#>-+*")

    def _take(self, cut: int, fences: list[Fence] | None = None) -> list[ReplyBlock]:
        """Take a block off the buffer. A block that ends inside a fence is closed, and the rest reopens it."""
        fence = _inside(fences or [], cut)
        if fence is not None:
            return self._take_code(fence)
        text, rest = self._buffer[:cut].rstrip(), self._buffer[cut:]
        inside_line = rest[:1] != "\n"
        if rest and rest[0].isspace():
            rest = rest[1:]
        rest = rest.lstrip("\n")
        if not text.strip():
            rest = rest.lstrip()
        elif inside_line and POSES_AS_BLOCK.match(rest, 0, 210):
            return self._moved_on(text, f"\\{rest}", "\\")
        return self._moved_on(text, rest, "")

    def _take_code(self, fence: Fence) -> list[ReplyBlock]:
        """Cut a block of code: at a line end, with room for the closing line, and never inside that line."""
        if self._buffer[: fence.start].strip() and fence.content + 2 + len(fence.close_line) > self._max:
            return self._take(fence.start - 1)  # The code does not fit after the words before it.
        room = max(self._max, len(fence.open_line) + len(fence.close_line) + 3) - len(fence.close_line)
        end = min(len(self._buffer), room)
        if fence.close < fence.end and fence.close <= end:
            cut = fence.close
        elif (newline := self._buffer.rfind("\n", fence.content, end)) >= fence.content:
            cut = newline + 1
        else:
            cut = max(fence.content + 1, min(end - 1, fence.close))
        body = self._buffer[:cut]
        text = f"{body}{'' if body.endswith(chr(10)) else chr(10)}{fence.close_line}"
        if fence.close < fence.end and cut == fence.close:
            return self._moved_on(text, self._buffer[fence.end :].lstrip("\n"), "")
        head = f"{fence.open_line}\n"
        return self._moved_on(text, head + self._buffer[cut:], head)

    def _moved_on(self, text: str, rest: str, head: str) -> list[ReplyBlock]:
        used = len(self._buffer) - len(self._head) - (len(rest) - len(head))
        dropped = self._buffer[len(text) : len(self._buffer) - len(rest) + len(head)]
        self._end += used
        gap, self._gap = self._gap, None if dropped.strip() or head.strip("\\") else dropped
        self._buffer, self._head = rest, head
        return [ReplyBlock(text, self._end, head, gap)] if text.strip() else []


def _fences(buffer: str) -> list[Fence]:
    """Return the fences of a text that goes on. One that is not closed yet has no end."""
    fences = find_fences(buffer)
    # Its closing line must have ended too: "```" may become the first half of "```py", which closes nothing.
    last = fences[-1] if fences else None
    if last and (last.close == last.end or last.end == len(buffer)) and not buffer[last.end :].strip():
        beyond = len(buffer) + 1
        fences[-1] = msgspec.structs.replace(fences[-1], close=beyond, end=beyond)
    return fences


def _inside(fences: list[Fence], place: int) -> Fence | None:
    """Return the fence that a cut at this place would break."""
    return next((fence for fence in fences if fence.start < place < fence.end), None)


class Coalescer:
    """Joins small blocks into messages. ``waits`` says that something waits for more blocks, a pause or the end."""

    def __init__(self, least: int, most: int, joiner: str, *, each: bool = False) -> None:
        self._least = least
        self._most = most
        self._joiner = joiner
        self._each = each
        self._waiting: ReplyBlock | None = None

    @property
    def waits(self) -> bool:
        return self._waiting is not None

    def add(self, block: ReplyBlock) -> list[ReplyBlock]:
        """Return the messages to send now."""
        if not block.text.strip():
            return []
        waiting = self._waiting
        if self._each:
            return [*self.flush(), block]
        if waiting is None:
            joined = block
        else:
            # Words that belong together are not torn apart, only because they came in two blocks.
            joiner = self._joiner if block.gap is None else block.gap
            text = block.text.removeprefix("\\") if waiting.head == "\\" else block.text
            joined = ReplyBlock(f"{waiting.text}{joiner}{text}", block.end, block.head, waiting.gap)
            if len(joined.text) > self._most:
                sent = self.flush()
                return sent + self.add(block)
        if len(joined.text) >= self._most:
            self._waiting = None
            return [joined]
        self._waiting = joined
        return []

    def paused(self) -> list[ReplyBlock]:
        """Nothing came for a while. A text that is too short goes on waiting."""
        return self.flush() if self._waiting is not None and len(self._waiting.text) >= self._least else []

    def flush(self) -> list[ReplyBlock]:
        waiting, self._waiting = self._waiting, None
        return [waiting] if waiting is not None else []

    def discard(self) -> None:
        self._waiting = None
