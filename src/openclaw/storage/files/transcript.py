"""A live transcript: index and active branch in memory, every entry appended to its file as one line."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw import json_text
from openclaw.clock import Clock, iso_utc
from openclaw.messages import AssistantMessage, ToolResultMessage, UserMessage
from openclaw.sessions.tree import BranchContext, assistant_model, fields_of, is_displayed, select_window
from openclaw.storage.base import Context, Entry
from openclaw.storage.files.disk import AppendFile, Disk
from openclaw.storage.files.transcript_index import MAYBE_SHOWN_TYPES, SHOWN_TYPES, TranscriptIndex, read_spans, scan

FORMAT_VERSION = 3
_MESSAGES = (UserMessage, AssistantMessage, ToolResultMessage)
_INDEX_BYTES = 250
"""Roughly what one indexed entry costs in memory."""


class FileTranscript:
    """``Transcript`` on a JSONL file. Existing bytes are never changed, whatever state they are in."""

    def __init__(self, path: Path, session_id: str, *, cwd: str, parent: str | None, disk: Disk, clock: Clock) -> None:
        self._session_id = session_id
        self._cwd = cwd
        self._parent_session = parent
        self._clock = clock
        self._file = AppendFile(path, disk)
        self._index = TranscriptIndex()
        self._leaf = -1
        self._newest = 0
        """The first entry of the last append."""
        self._branch: BranchContext | None = BranchContext()
        self._decoded_bytes = 0

    def load(self) -> None:
        """Reads the file, if there is one. Runs in a thread, before anyone else knows this object."""
        if self._file.path.exists():
            self._index = scan(self._file.path)
            self._leaf = len(self._index) - 1
            self._branch = self._rebuild()

    @property
    def path(self) -> str:
        return str(self._file.path)

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def leaf_id(self) -> str | None:
        return self._index.ids[self._leaf] if self._leaf >= 0 else None

    @property
    def header(self) -> dict[str, Any] | None:
        return self._index.header

    @property
    def warnings(self) -> list[str]:
        return list(self._index.warnings)

    @property
    def weight(self) -> int:
        """Roughly the bytes of memory it takes."""
        # Twice: what is said, and what readers keep of it in the branch's cache.
        return 2 * self._decoded_bytes + len(self._index) * _INDEX_BYTES

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, entry_id: str) -> bool:
        return entry_id in self._index.by_id

    # Writing

    async def append(self, fields: dict[str, Any], *, entry_id: str | None = None, durable: bool = False) -> str:
        own = entry_id or self._new_id()
        self._add({own: fields})
        if durable:
            await self._file.sync()
        return own

    async def append_all(self, entries: Mapping[str, dict[str, Any]]) -> None:
        self._add(entries)

    async def sync(self) -> None:
        await self._file.sync()

    @property
    def file(self) -> AppendFile:
        return self._file

    def branch(self, entry_id: str | None) -> None:
        leaf = -1 if entry_id is None else self._index.by_id[entry_id]
        if leaf != self._leaf:
            self._leaf = leaf
            self._branch = None

    async def label(self, entry_id: str, text: str | None) -> str:
        if entry_id not in self._index.by_id:
            raise KeyError(entry_id)
        name = (text or "").strip()
        return await self.append({"type": "label", "targetId": entry_id, **({"label": name} if name else {})})

    def _add(self, entries: Mapping[str, dict[str, Any]]) -> None:
        """Those that are new, each below the one before it, in one write."""
        read_back = False
        for fields in entries.values():
            if not isinstance(kind := fields.get("type"), str) or kind in ("", "session"):
                raise ValueError(f"a transcript entry needs a type other than 'session', got {kind!r}")
            read_back = read_back or kind == "compaction"
        if self._file.look() == 0:
            self._notice_removal()
        if not self._file.end_is_sure:
            self._find_newest()
        index = self._index
        new = {own: fields for own, fields in entries.items() if own not in index.by_id}
        if not new:
            return
        lines = self._lines(new)
        header = self._header_line() if index.header is None and not index.ids else b""
        offset = self._file.append(header + b"\n".join(lines) + b"\n", looked=True) + len(header)
        if read_back:
            offset += self._file.drift()
        if header:
            index.header = fields_of(header)
        self._newest = len(index.ids)
        for (own, fields), line in zip(new.items(), lines, strict=True):
            self._take_in(own, fields, line, offset)
            offset += len(line) + 1

    def _lines(self, entries: Mapping[str, dict[str, Any]]) -> list[bytes]:
        parent, now = self.leaf_id, iso_utc(self._clock.now_ms())
        lines: list[bytes] = []
        for own, fields in entries.items():
            # Both in front, where readers look for them, and after the fields, which do not decide them.
            ours = {"id": own, "parentId": parent, "timestamp": now}
            lines.append(json_text.encode({"type": fields["type"], **ours, **fields, **ours}))
            parent = own
        return lines

    def _take_in(self, own: str, fields: dict[str, Any], line: bytes, offset: int) -> None:
        kind: str = fields["type"]
        self._leaf = self._index.put(own, kind, self._leaf, offset, len(line))
        if kind == "label":
            self._index.note_label(fields)
        branch = self._branch
        if branch is None:
            return
        if kind == "compaction":
            self._branch = self._rebuild(branch)
        else:
            # The very object that was given: who keeps notes about messages knows it again.
            message = fields.get("message")
            branch.add(own, kind, line, message if isinstance(message, _MESSAGES) else None)
            self._decoded_bytes += len(line)

    def _find_newest(self) -> None:
        """Another program may have written between our last look at the file and our write."""
        if drift := self._file.drift():
            self._index.shift(self._newest, drift)

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

    def _notice_removal(self) -> None:
        """An empty file where there was a transcript: what it held is gone, and the next entry starts it anew."""
        if self._index.header is not None or self._index.ids:
            self._index = TranscriptIndex()
            self._index.warn("the file was removed while it was in use; it was begun anew")
            self._leaf, self._branch, self._decoded_bytes = -1, BranchContext(), 0

    def begin_with(self, entries: Sequence[Entry]) -> None:
        """Fills a new transcript with a branch of another one, lines as they are, in one write."""
        header = self._header_line()
        lines = [_with_own_id(entry) for entry in entries]
        offset = self._file.append(b"".join([header, *(line + b"\n" for line in lines)]))
        self._index.take_line(1, header.rstrip(), offset)
        offset += len(header)
        for number, line in enumerate(lines, start=2):
            self._index.take_line(number, line, offset)
            offset += len(line) + 1
        self._leaf, self._branch = len(self._index) - 1, None

    # Reading

    def context(self) -> Context:
        if self._branch is None:
            self._find_newest()
            self._branch = self._rebuild()
        return self._branch.context()

    async def warm(self) -> None:
        """After ``branch``: reads in a thread what ``context`` needs, so that it does not have to."""
        if self._branch is None:
            leaf = self._leaf
            self._find_newest()
            rebuilt = await asyncio.to_thread(self._rebuild)
            if self._leaf == leaf and self._branch is None:
                self._branch = rebuilt

    def labels(self) -> dict[str, str]:
        return dict(self._index.labels)

    def tree(self) -> list[tuple[str, str | None, str]]:
        index = self._index
        return [(index.ids[place], index.parent_id(place), index.types[place]) for place in range(len(index))]

    async def entry(self, entry_id: str) -> Entry | None:
        place = self._index.by_id.get(entry_id)
        return None if place is None else (await self._entries([place]))[0]

    async def path_entries(self, *, limit: int | None = None) -> list[Entry]:
        return await self._entries(self._index.path(self._leaf, limit))

    async def shown_entries(self, limit: int) -> list[Entry]:
        """The last entries of the branch that people see, oldest first."""
        places: list[int] = []
        place, counted = self._leaf, 0
        while place >= 0 and counted < limit:
            kind = self._index.types[place]
            if kind in SHOWN_TYPES:
                places.append(place)
                counted += kind not in MAYBE_SHOWN_TYPES
            place = self._index.parents[place]
        entries = await self._entries(places[::-1])
        return [entry for entry in entries if entry.type not in MAYBE_SHOWN_TYPES or is_displayed(entry.raw)][-limit:]

    async def _entries(self, places: Sequence[int]) -> list[Entry]:
        self._find_newest()
        index = self._index
        named = [(index.ids[place], index.parent_id(place), index.types[place]) for place in places]
        raws = await asyncio.to_thread(list, read_spans(self._file.path, index.spans(places)))
        return [Entry(*names, raw) for names, raw in zip(named, raws, strict=True)]

    def _rebuild(self, before: BranchContext | None = None) -> BranchContext:
        """The context at the leaf; only entries that count are read.

        ``before`` is the context of the same branch without its last entry: what it holds is not read again.
        """
        index = self._index
        window = select_window(index.walk(self._leaf), self._first_kept)
        branch = BranchContext()
        if before is not None:
            branch.model, branch.thinking_level = before.model, before.thinking_level
        elif window.compaction is not None:
            edge = window.places[0] if window.places and window.places[0] < window.compaction else window.compaction
            self._settings_before(edge, branch)
        if window.compaction is not None:
            branch.summarize(index.ids[window.compaction], self._raw(window.compaction))
        known = before.last_messages(len(window.places)) if before is not None else {}
        wanted = [place for place in window.places if index.ids[place] not in known]
        lines = read_spans(self._file.path, index.spans(wanted))
        for place in window.places:
            own = index.ids[place]
            branch.add(own, index.types[place], b"" if own in known else next(lines), known.get(own))
        self._decoded_bytes = sum(index.lengths[place] for place in window.places)
        return branch

    def _first_kept(self, place: int) -> str | None:
        fields = fields_of(self._raw(place))
        if isinstance(kept := fields.get("firstKeptEntryId"), str):
            return kept
        # The first format counted lines, its header among them.
        number = fields.get("firstKeptEntryIndex")
        at = number - (self._index.header is not None) if isinstance(number, int) else -1
        return self._index.ids[at] if 0 <= at < len(self._index) else None

    def _settings_before(self, edge: int, branch: BranchContext) -> None:
        """Model and thinking level as they were when the window begins, searched from its edge backwards."""
        for place, kind, _ in self._index.walk(self._index.parents[edge]):
            if (kind == "thinking_level_change" and branch.thinking_level is None) or (
                kind == "model_change" and branch.model is None
            ):
                branch.note_setting(kind, self._raw(place))
            elif kind == "message" and branch.model is None:
                branch.model = assistant_model(self._raw(place))
            if branch.model is not None and branch.thinking_level is not None:
                return

    def _raw(self, place: int) -> bytes:
        return next(read_spans(self._file.path, self._index.spans([place])))

    # Life

    @property
    def busy(self) -> bool:
        return self._file.busy

    def moved_to(self, path: Path) -> None:
        """The file was renamed (archived): late entries follow it instead of starting a new one."""
        self._file.path = path

    def rest(self) -> None:
        """Gives the file descriptor back; the next append opens the file again."""
        if not self._file.busy:
            self._find_newest()
            self._file.close()


def _with_own_id(entry: Entry) -> bytes:
    """Lines of the first format leave id and parent to their place in the file; elsewhere they must say both."""
    fields = fields_of(entry.raw)
    if fields.get("id") == entry.id:
        return entry.raw
    return json_text.encode({**fields, "id": entry.id, "parentId": entry.parent_id})
