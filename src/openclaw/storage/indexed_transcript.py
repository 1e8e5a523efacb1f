"""What every open transcript does with its index and its active branch, wherever its lines are kept.

Also here are the rules that both stores of transcripts follow when one is forked, archived or shortened, and
``TranscriptLines``, by which sums of tokens and the search index read transcripts that are not files.
"""

from __future__ import annotations

import abc
import secrets
import uuid
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from openclaw import json_text
from openclaw.clock import Clock, iso_utc
from openclaw.messages import AssistantMessage, ToolResultMessage, UserMessage
from openclaw.sessions.keys import safe_file_name
from openclaw.sessions.tree import BranchContext, assistant_model, fields_of, is_displayed, select_window
from openclaw.storage.files.transcript_index import (
    DAMAGE_TYPE,
    MAYBE_SHOWN_TYPES,
    SHOWN_TYPES,
    TranscriptIndex,
    readable,
)
from openclaw.storage.transcripts import Entry, Transcript
from openclaw.worker_thread import with_many

FORMAT_VERSION = 3
LONGEST_TAIL = 1000
"""The most entries that ``TranscriptStore.tail`` returns."""
_MESSAGES = (UserMessage, AssistantMessage, ToolResultMessage)
SETTINGS_WITHIN = 200
"""The most entries before a compaction's kept ones that are searched for the model and the thinking level."""
_INDEX_BYTES = 250
"""The approximate memory that one indexed entry takes."""
_DAMAGE_TEXT = "The file of this conversation is damaged here. The readable part is shown; a message may be missing."
Rebuilding: TypeAlias = Generator[list[int], list[bytes], BranchContext]
"""Builds a context. It yields places whose lines it needs, and is sent the lines."""


class IndexedTranscript(abc.ABC):
    """A transcript whose index is in memory. A subclass keeps and reads its lines."""

    def __init__(self, session_id: str, *, cwd: str, parent: str | None, clock: Clock) -> None:
        self._session_id = session_id
        self._cwd = cwd
        self._parent_session = parent
        self._clock = clock
        self._index = TranscriptIndex()
        self._leaf = -1
        self._branch: BranchContext | None = BranchContext()
        self._before: BranchContext | None = None
        """The branch before the compaction that was just added, until the new one is made of it."""
        self._decoded_bytes = 0

    @property
    @abc.abstractmethod
    def path(self) -> str: ...

    @abc.abstractmethod
    async def append(self, fields: dict[str, Any], *, entry_id: str | None = None, durable: bool = False) -> str: ...

    @abc.abstractmethod
    async def _read(self, places: Sequence[int]) -> list[bytes]:
        """Returns the lines at these places."""
        ...

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def leaf_id(self) -> str | None:
        return self._index.ids[self._leaf] if self._leaf >= 0 else None

    @property
    def warnings(self) -> list[str]:
        return list(self._index.warnings)

    @property
    def weight(self) -> int:
        """The approximate memory that the transcript takes, in bytes."""
        # The messages count twice, because readers keep values computed from them in the branch's cache.
        return 2 * self._decoded_bytes + len(self._index) * _INDEX_BYTES

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._index.by_id

    async def label(self, entry_id: str, text: str | None) -> str:
        if entry_id not in self._index.by_id:
            raise KeyError(entry_id)
        name = (text or "").strip()
        return await self.append({"type": "label", "targetId": entry_id, **({"label": name} if name else {})})

    def _new_entries(self, entries: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Returns the entries that are not in the transcript yet."""
        return {own: fields for own, fields in entries.items() if own not in self._index.by_id}

    def _encoded_lines(self, entries: Mapping[str, dict[str, Any]]) -> list[bytes]:
        """The entries as lines: each has its id, its parent and the time, and hangs on the one before."""
        parent, now = self.leaf_id, iso_utc(self._clock.now_ms())
        lines: list[bytes] = []
        for own, fields in entries.items():
            # They come first because readers look there, and again last so that ``fields`` cannot replace them.
            ours = {"id": own, "parentId": parent, "timestamp": now}
            lines.append(json_text.encode({"type": fields["type"], **ours, **fields, **ours}))
            parent = own
        return lines

    def _note_written(self, own: str, fields: dict[str, Any], line: bytes, offset: int) -> None:
        """Notes in memory that an entry was written: where its line is, and what the branch now ends with."""
        kind: str = fields["type"]
        self._leaf = self._index.put(own, kind, self._leaf, offset, len(line))
        if kind == "label":
            self._index.note_label(fields)
        branch = self._branch
        if branch is None:
            return
        if kind == "compaction":
            self._before, self._branch = branch, None
        else:
            # The branch keeps the same message object, so that caches by identity work.
            message = fields.get("message")
            branch.add(own, kind, line, message if isinstance(message, _MESSAGES) else None)
            self._decoded_bytes += len(line)

    def _header_line(self) -> bytes:
        header: dict[str, Any] = {
            "type": "session",
            "version": FORMAT_VERSION,
            "id": self._session_id,
            "timestamp": iso_utc(self._clock.now_ms()),
            "cwd": self._cwd,
        }
        if self._parent_session:
            header["parentSession"] = self._parent_session
        return json_text.encode(header) + b"\n"

    def _new_id(self) -> str:
        for _ in range(100):
            if (drawn := secrets.token_hex(4)) not in self._index.by_id:
                return drawn
        return str(uuid.uuid4())

    # Reading

    def labels(self) -> dict[str, str]:
        return dict(self._index.labels)

    def tree(self) -> list[tuple[str, str | None, str]]:
        index = self._index
        return [
            (index.ids[position], index.parent_id(position), index.types[position]) for position in range(len(index))
        ]

    async def entry(self, entry_id: str) -> Entry | None:
        position = self._index.by_id.get(entry_id)
        return None if position is None else (await self._entries([position]))[0]

    async def _entries(self, places: Sequence[int]) -> list[Entry]:
        index = self._index  # It may be replaced while the lines are read.
        raws = await self._read(places) if places else []

        def made() -> list[Entry]:
            return [
                Entry(index.ids[position], index.parent_id(position), index.types[position], readable(raw))
                for position, raw in zip(places, raws, strict=True)
            ]

        return await with_many(len(places), made)

    async def path_entries(self, *, limit: int | None = None) -> list[Entry]:
        index, leaf = self._index, self._leaf
        return await self._entries(await with_many(limit or len(index), lambda: index.path(leaf, limit)))

    async def shown_entries(self, limit: int, before: str | None = None) -> list[Entry]:
        """Returns the last entries of the branch that people see, oldest first, with a marker where it is damaged.

        ``before`` is the id of an entry: those before it are meant. There are none before an unknown one.
        """
        index = self._index
        places: list[int] = []
        marks: list[int] = []
        position, counted = self._leaf, 0
        if before is not None:
            start = index.by_id.get(before)
            position = index.parents[start] if start is not None else -1
        elif position + 1 == len(index) and position + 1 in index.damaged:
            marks.append(position + 1)
        while position >= 0 and counted < limit:
            kind = index.types[position]
            if kind in SHOWN_TYPES:
                places.append(position)
                counted += kind not in MAYBE_SHOWN_TYPES
            if position in index.damaged:
                marks.append(position)
            position = index.parents[position]
        places.reverse()
        entries = zip(places, await self._entries(places), strict=True)
        # A marker stands before the entry at its place.
        shown = [
            (position, 1, entry)
            for position, entry in entries
            if entry.type not in MAYBE_SHOWN_TYPES or is_displayed(entry.raw)
        ]
        shown += [(position, 0, self._damage_marker(position)) for position in marks]
        return [entry for _, _, entry in sorted(shown, key=lambda item: item[:2])][-limit:]

    async def shown_around(self, entry_id: str, limit: int) -> list[Entry]:
        index = self._index
        middle = index.by_id.get(entry_id)
        if middle is None:
            return []
        before = await self.shown_entries(limit // 2, entry_id)
        after: deque[int] = deque(maxlen=max(limit - len(before) - 1, 0))
        position = self._leaf
        while position > middle:
            if index.types[position] in SHOWN_TYPES:
                after.appendleft(position)  # Drops the last of the branch when it is full.
            position = index.parents[position]
        places = [middle, *(after if position == middle else ())]
        entries = zip(places, await self._entries(places), strict=True)
        return before + [
            entry
            for position, entry in entries
            if position == middle or entry.type not in MAYBE_SHOWN_TYPES or is_displayed(entry.raw)
        ]

    def _damage_marker(self, position: int) -> Entry:
        own = f"damage-{position}"
        fields = {"customType": DAMAGE_TYPE, "display": True, "data": {"text": _DAMAGE_TEXT}, "timestamp": None}
        return Entry(own, None, "custom", json_text.encode({"type": "custom", "id": own, "parentId": None, **fields}))

    def _rebuilding(self, before: BranchContext | None = None) -> Rebuilding:
        """Builds the context at the leaf. It asks only for the lines that are part of it.

        ``before`` is the context of the same branch without its last entry. Its messages are not read again.
        """
        index = self._index
        summary, first_kept = b"", None
        for position, kind, _ in index.walk(self._leaf):
            if kind == "compaction":
                (summary,) = yield [position]
                first_kept = self._first_kept(position, summary)
                break
        window = select_window(index.walk(self._leaf), lambda _: first_kept)
        branch = BranchContext()
        if before is not None:
            branch.model, branch.thinking_level = before.model, before.thinking_level
        elif window.compaction is not None:
            edge = window.places[0] if window.places and window.places[0] < window.compaction else window.compaction
            yield from self._settings_before(edge, branch)
        if window.compaction is not None:
            branch.summarize(index.ids[window.compaction], summary)
        cached = before.last_messages(len(window.places)) if before is not None else {}
        needed = [position for position in window.places if index.ids[position] not in cached]
        lines = iter((yield needed) if needed else [])
        for position in window.places:
            own = index.ids[position]
            branch.add(own, index.types[position], b"" if own in cached else next(lines), cached.get(own))
        self._decoded_bytes = sum(index.lengths[position] for position in window.places)
        return branch

    def _first_kept(self, position: int, line: bytes) -> str | None:
        fields = fields_of(line)
        if isinstance(entry_id := fields.get("firstKeptEntryId"), str):
            before = max((at for at in self._index.damaged if at < position), default=-1)
            # If the first kept entry is the damaged one, what comes after it was kept too.
            return self._index.ids[before] if entry_id not in self._index.by_id and before >= 0 else entry_id
        # The first format names a line number, which counts the header too.
        number = fields.get("firstKeptEntryIndex")
        at = number - (self._index.header is not None) if isinstance(number, int) else -1
        return self._index.ids[at] if 0 <= at < len(self._index) else None

    def _settings_before(self, edge: int, branch: BranchContext) -> Generator[list[int], list[bytes], None]:
        """Finds the model and the thinking level that hold where the window begins, by reading backwards.

        The search ends after ``SETTINGS_WITHIN`` entries, so that a context costs no more the more was compacted away.
        A run whose settings are not found there appends them again.
        """
        for position, kind, _ in islice(self._index.walk(self._index.parents[edge]), SETTINGS_WITHIN):
            if (kind == "thinking_level_change" and branch.thinking_level is None) or (
                kind == "model_change" and branch.model is None
            ):
                (line,) = yield [position]
                branch.note_setting(kind, line)
            elif kind == "message" and branch.model is None:
                (line,) = yield [position]
                branch.model = assistant_model(line)
            if branch.model is not None and branch.thinking_level is not None:
                return


# What both stores do


def check_types(entries: Mapping[str, dict[str, Any]]) -> None:
    """Raises ``ValueError`` when an entry has no usable type."""
    for fields in entries.values():
        if not isinstance(kind := fields.get("type"), str) or kind in ("", "session"):
            raise ValueError(f"a transcript entry needs a type other than 'session', got {kind!r}")


def with_own_id(entry: Entry) -> bytes:
    """Returns the line with its id and parent. Lines of the first format have neither."""
    fields = fields_of(entry.raw)
    if fields.get("id") == entry.id:
        return entry.raw
    return json_text.encode({**fields, "id": entry.id, "parentId": entry.parent_id})


async def copy_labels(source: Transcript, forked: Transcript) -> None:
    """Gives a fork the labels that were given to its entries while another branch was active. They are on disk then."""
    for entry_id, text in source.labels().items():
        if entry_id in forked and forked.labels().get(entry_id) != text:
            await forked.label(entry_id, text)
    await forked.sync()


def archive_stamp(reason: str, now_ms: int) -> str:
    """Returns what the name of an archived transcript gets behind it."""
    return f"{safe_file_name(reason)}.{iso_utc(now_ms).replace(':', '-')}"


def shortened_lines(lines: Sequence[bytes], most: int) -> tuple[list[bytes], int]:
    """Returns the header with the last lines, whose first becomes the root, and how many lines there were without it.

    An entry whose parent was removed gets the entry before it as its parent.
    """
    header = lines[:1] if lines and fields_of(lines[0]).get("type") == "session" else []
    remaining, entry_ids, last = [*header], set[str](), None
    for line in lines[max(len(header), len(lines) - most) :]:
        entry = fields_of(line)
        if isinstance(entry.get("id"), str):
            if entry.get("parentId") not in entry_ids:
                entry["parentId"] = last
                line = json_text.encode(entry)
            last = entry["id"]
            entry_ids.add(entry["id"])
        remaining.append(line)
    return remaining, len(lines) - len(header)


# Transcripts that are not files


class StoredTranscript(msgspec.Struct, frozen=True, kw_only=True):
    """A transcript that is not a file, as it is now."""

    id: int
    agent_id: str
    session_id: str
    path: str
    last_line: int
    """The number of its last line. The first has the number 1."""


class TranscriptLines(Protocol):
    """Transcripts that are not files, for those who read every line once: sums and the search index."""

    async def stored(self, places: Sequence[Path], since_ms: int = 0) -> list[StoredTranscript]:
        """Returns the transcripts with these names. A folder stands for all that were written since then."""
        ...

    async def lines_after(self, transcript_id: int, number: int) -> list[tuple[int, bytes]]:
        """Returns the next lines with their numbers. Empty when there are no more."""
        ...
