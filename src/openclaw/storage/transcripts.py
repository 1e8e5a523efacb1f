"""The protocols of a transcript and of the store that opens, archives and compresses transcripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from openclaw.messages import Message


class TranscriptRef(msgspec.Struct, frozen=True, kw_only=True):
    """The name of one transcript."""

    agent_id: str
    session_id: str
    file: str | None = None
    """The session entry's ``sessionFile``. It is preferred to the path made from the ids."""
    thread_id: str | int | None = None


class Entry(msgspec.Struct, frozen=True):
    """One line of a transcript. Only its envelope is parsed."""

    id: str
    parent_id: str | None
    type: str
    raw: bytes
    """The line as it is in the file, without its newline."""


class Context(msgspec.Struct, frozen=True):
    """What the model sees of a transcript, at its current leaf."""

    messages: list[Message]
    """The summary of the last compaction (as a user message), then the messages after it. Never change the list."""
    entry_ids: list[str]
    """The id of the entry of each message, in the same order."""
    model: tuple[str, str] | None
    """Provider and model id of the last ``model_change`` or assistant message of the branch."""
    thinking_level: str
    compaction_id: str | None
    branch_cache: dict[Any, Any]
    """A cache for values that callers compute from the messages. A branch only grows, so what was computed for its
    beginning stays valid. Another branch has another cache."""


class Transcript(Protocol):
    """A transcript that is open: its index and active branch are in memory, and its file holds every entry.

    Only the session's lane appends. Any number of readers may read at the same time.
    """

    @property
    def path(self) -> str:
        """The name under which sums and logs know the transcript. In file mode its file is there."""
        ...

    @property
    def session_id(self) -> str: ...

    @property
    def leaf_id(self) -> str | None: ...

    @property
    def warnings(self) -> list[str]:
        """The defects of the file: damaged lines, a torn end, a missing header. The store has logged them."""
        ...

    def __len__(self) -> int:
        """Counts the entries, without the header."""
        ...

    def __contains__(self, entry_id: str) -> bool: ...

    async def append(self, fields: dict[str, Any], *, entry_id: str | None = None, durable: bool = False) -> str:
        """Adds an entry at the leaf and returns its id.

        ``fields`` holds ``type`` and the payload, whose values may be msgspec records. The transcript adds id, parentId
        and timestamp. An ``entry_id`` that exists is not appended again, so that a resumed run may repeat itself. The
        line is written when this returns, and with ``durable`` it is on disk.
        """
        ...

    async def append_all(self, entries: Mapping[str, dict[str, Any]], *, soon: bool = False) -> None:
        """Adds several entries by their ids, each as the child of the one before. All are written, or none.

        They are written when this returns. With ``soon`` they may be written a moment later, which is for a caller who
        can make them again or waits for a later write. It spares PostgreSQL a round trip; files write at once anyway.
        """
        ...

    async def sync(self) -> None:
        """Returns once everything appended so far is on disk."""
        ...

    def context(self) -> Context:
        """Returns the model's context at the current leaf. It is cached, and extended with every entry."""
        ...

    async def branch(self, entry_id: str | None) -> None:
        """Move the leaf, with None to before the first entry. Raise ``KeyError`` if the entry does not exist.

        The store remembers the move only when an entry is appended there.
        """
        ...

    async def label(self, entry_id: str, text: str | None) -> str:
        """Names an entry, or clears its name, by appending an entry. Returns the id of the new entry."""
        ...

    def labels(self) -> dict[str, str]: ...

    def tree(self) -> list[tuple[str, str | None, str]]:
        """Returns (id, parentId, type) of every entry, in the order of the file."""
        ...

    async def entry(self, entry_id: str) -> Entry | None: ...

    async def path_entries(self, *, limit: int | None = None) -> list[Entry]:
        """Returns the active branch, oldest entry first, with ``limit`` only its last entries."""
        ...

    async def shown_around(self, entry_id: str, limit: int) -> list[Entry]:
        """Returns at most ``limit`` entries that people see, with this entry in their middle, oldest first.

        Nothing follows an entry that is not on the active branch. Empty if there is no such entry.
        """
        ...


class Shortened(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``TranscriptStore.shorten``."""

    archived: str | None
    """The path of the whole file. None when there was nothing to shorten."""
    kept: int
    """The number of lines that are left, without the header."""


class Compressed(msgspec.Struct, kw_only=True):
    """The result of ``TranscriptStore.compress``."""

    files: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left: int = 0
    """How many more are old enough. The next call goes on with them."""
    problems: list[str] = []


class TranscriptStore(Protocol):
    async def open(self, ref: TranscriptRef, *, cwd: str = "", create: bool = True) -> Transcript | None:
        """Opens a transcript. While it stays in memory, every caller gets the same object.

        Without ``create``, return None if the transcript does not exist.
        """
        ...

    def begin(self, ref: TranscriptRef, *, cwd: str = "") -> None:
        """Prepares the transcript of a session whose id is new, without looking for an existing file."""
        ...

    async def fork(self, source: Transcript, ref: TranscriptRef, *, cwd: str = "") -> Transcript:
        """Makes a new transcript that begins with the active branch of ``source``, with the same ids and labels.

        Raises ``FileExistsError`` when ``ref`` is not new.
        """
        ...

    async def tail(self, ref: TranscriptRef, limit: int, before: str | None = None) -> list[Entry]:
        """Returns the last entries of the active branch that people see, oldest first.

        These are messages, compactions and markers. If the transcript is not open, only the end of its file is read.
        ``before`` is the id of an entry of the branch: only entries before it are returned, and none if it is unknown.
        """
        ...

    async def locate(self, ref: TranscriptRef) -> str | None:
        """Return the name of this transcript (``Transcript.path``), or None if the transcript does not exist."""
        ...

    def default_path(self, ref: TranscriptRef) -> str:
        """Returns the name that the transcript has, or gets when it is made."""
        ...

    async def head(self, ref: TranscriptRef) -> list[bytes]:
        """Returns the first few lines. None of them when it takes much to read them."""
        ...

    async def page(self, ref: TranscriptRef, cursor: int, most_bytes: int) -> tuple[list[bytes], int | None]:
        """Returns whole lines as they are stored, and the cursor of the next page. The first cursor is 0."""
        ...

    async def create(self, ref: TranscriptRef, data: bytes) -> None:
        """Makes a transcript of these lines, which are kept byte for byte. It is on disk when this returns."""
        ...

    async def archive(self, ref: TranscriptRef, reason: str) -> list[str]:
        """Renames the files to ``<file>.<reason>.<ISO time with ':' as '-'>`` and returns the new paths."""
        ...

    async def shorten(self, ref: TranscriptRef, max_lines: int) -> Shortened:
        """Keeps the header and the last lines, of which the first becomes the root. A copy of the whole file stays."""
        ...

    async def compress(self, agent_ids: Iterable[str], before_ms: int, *, most: int = 200) -> Compressed:
        """Compresses transcripts that were last written before that time, at most ``most``, the oldest first.

        They open as before. A transcript that is in use is not compressed.
        """
        ...

    async def forget(self, session_id: str) -> None:
        """Drops the open transcript from memory, after a reset or a deletion."""
        ...

    def folder(self, agent_id: str) -> str:
        """The folder in the names (``Transcript.path``) of this agent's transcripts."""
        ...

    async def close(self) -> None: ...
