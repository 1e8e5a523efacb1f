"""What the Gateway tells an agent at its next turn: system events, one line each, kept on disk until a run has them.

A note is taken by exactly one run. That it was taken is on disk before the run stores its prompt, so that a run which
a crash interrupts takes the same notes again, and no other run does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import tzinfo
from typing import Any, TypeVar

import msgspec

from openclaw.clock import Clock
from openclaw.sessions.prompt_prefix import system_line
from openclaw.storage.documents import DocumentStore, SharedDocument
from openclaw.untrusted_text import disarmed

log = logging.getLogger("openclaw.sessions")

R = TypeVar("R")
MAX_PER_SESSION = 20
MAX_SESSIONS = 1000
MAX_TEXT = 4000
MAX_REMEMBERED = 256
"""The ids of the last notes that were taken are remembered, so that the same note is not added again."""
MAX_UNSAVED = 5000
FILE_NAME = "system-events.json"


class Note(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    session_key: str
    at: int
    text: str
    id: str = ""
    """A note with an id is added once, also if whoever adds it does so again after a crash."""
    wake: bool = False
    """The agent should hear of it soon, also after a restart."""
    taken_by: str = ""
    """The run that has it in its prompt, or is about to."""


class NoteBook(msgspec.Struct, kw_only=True):
    """The stored notes of every session, and the ids of the last notes that were claimed."""

    version: int = 1
    events: list[Note] = []
    done: list[str] = []

    def of(self, session_key: str) -> list[Note]:
        return [note for note in self.events if note.session_key == session_key]

    def put(self, note: Note) -> bool:
        """Adds a note and returns whether it is new."""
        waiting = [known for known in self.of(note.session_key) if not known.taken_by]
        if (note.id and self.knows(note.id)) or (not note.id and waiting and waiting[-1].text == note.text):
            return False
        self.events.append(note)
        # A reminder outlasts what the agent is merely told, such as the results of jobs that run all night.
        for old in sorted(waiting, key=lambda known: known.wake)[: max(0, len(waiting) + 1 - MAX_PER_SESSION)]:
            self.events.remove(old)
        sessions = dict.fromkeys(known.session_key for known in self.events)
        for key in list(sessions)[: max(0, len(sessions) - MAX_SESSIONS)]:
            self.events = [known for known in self.events if known.session_key != key]
        return True

    def knows(self, id: str) -> bool:
        return id in self.done or any(note.id == id for note in self.events)

    def take(self, session_key: str, run_id: str) -> list[Note]:
        """Hands the waiting notes of a session to a run. The same run gets them again."""
        taken: list[Note] = []
        for note in self.of(session_key):
            if note.taken_by in ("", run_id):
                note.taken_by = run_id
                taken.append(note)
            else:
                # A session has one run at a time, so the run that took it has ended.
                self.forget(note)
        return taken

    def forget(self, note: Note) -> None:
        self.events.remove(note)
        if note.id:
            self.done = [*self.done, note.id][-MAX_REMEMBERED:]

    def forget_taken(self, run_ids: Collection[str]) -> None:
        for note in [note for note in self.events if note.taken_by in run_ids]:
            self.forget(note)


class SessionNotes:
    """The waiting notes of every session. Without ``documents`` they live in memory only.

    A change is made in memory at once and saved together with the ones after it. Where several Gateways share the
    notes, it is repeated in the newest of them when it is saved.
    """

    def __init__(
        self, clock: Clock, zone: Callable[[], tzinfo | None] = lambda: None, documents: DocumentStore | None = None
    ) -> None:
        self._clock = clock
        self._zone = zone
        self._shared = documents is not None and documents.shared
        self._document = _document(documents) if documents is not None else None
        self._book = NoteBook()
        """The stored notes, with the changes that are not saved yet."""
        self._seen: bytes | None = None
        self._changes: list[Callable[[NoteBook], object]] = []
        """The unsaved changes."""
        self._saving: asyncio.Task[None] | None = None

    async def load(self, has_ended: Callable[[str], Awaitable[bool]]) -> None:
        """Reads what an earlier process left. Notes of runs that have ended are over."""
        await self.refresh()
        runs = {note.taken_by for note in self._book.events if note.taken_by}
        if ended := [run_id for run_id in runs if await has_ended(run_id)]:
            self._change(lambda book: book.forget_taken(ended))

    async def refresh(self) -> None:
        """Reads what other Gateways have changed."""
        if self._document is not None and (self._shared or not self._document.known):
            await self._document.current()
            self._adopt()

    def add(self, session_key: str, text: str) -> None:
        """Queues a note that nobody waits for."""
        self.put(session_key, text)

    def put(self, session_key: str, text: str, *, id: str = "", wake: bool = False) -> bool:
        """Queues a note and returns whether it is new. ``synced`` waits until it is on disk.

        A note equal to the one before it is ignored. A full queue loses its oldest note, one that wakes nobody first.
        """
        text = disarmed(" ".join(text.split())[:MAX_TEXT])
        if not text:
            return False
        note = Note(session_key=session_key, at=self._clock.now_ms(), text=text, id=id, wake=wake)
        return self._change(lambda book: book.put(msgspec.structs.replace(note)))

    def knows(self, id: str) -> bool:
        """Whether a note with this id waits, or was taken not long ago."""
        return self._book.knows(id)

    def peek(self, session_key: str) -> list[str]:
        """Returns the waiting notes of a session and keeps them."""
        return [note.text for note in self._book.events if note.session_key == session_key and not note.taken_by]

    def waking(self, besides: Collection[str] = ()) -> list[str]:
        """The sessions whose agent should hear of a waiting note soon. ``besides``: ids of notes that do not count."""
        return list(dict.fromkeys(note.session_key for note in self._book.events if _wakes(note, besides)))

    def waking_ids(self) -> list[str]:
        """The ids of the waiting notes that wake somebody. A note without an id has one made of its time."""
        return [_id_of(note) for note in self._book.events if _wakes(note, ())]

    async def take(self, session_key: str, run_id: str) -> list[str]:
        """Hands the waiting notes of a session to a run, as lines for its prompt. The same run gets them again."""
        if self._shared:
            await self.refresh()
        if not self._book.of(session_key):
            return []
        taken: list[Note] = []

        def take(book: NoteBook) -> list[Note]:
            taken[:] = book.take(session_key, run_id)
            return taken

        if self._change(take):
            await self.synced()
        return [system_line(note.text, note.at, self._zone()) for note in taken]

    async def synced(self) -> None:
        """Returns when every change so far is on disk. Raises ``OSError`` when the disk does not take it."""
        # One save that is under way does not hold the last changes, the next one does.
        for _ in range(2):
            if self._document is not None and (self._changes or (self._saving is not None and not self._saving.done())):
                if self._saving is None or self._saving.done():
                    self._saving = asyncio.create_task(self._save())
                await asyncio.shield(self._saving)

    def _change(self, change: Callable[[NoteBook], R]) -> R:
        result = change(self._book)
        if self._document is None:
            return result
        self._changes.append(change)
        if self._saving is None or self._saving.done():
            # While nothing can be saved, the oldest changes give way.
            del self._changes[:-MAX_UNSAVED]
            try:
                self._saving = asyncio.get_running_loop().create_task(self._save())
            except RuntimeError:
                return result  # Nobody waits; the next change is saved together with this one.
            self._saving.add_done_callback(_log_failure)
        return result

    async def _save(self) -> None:
        assert self._document is not None
        while changes := self._changes[:]:

            def apply(book: NoteBook, changes: Sequence[Callable[[NoteBook], object]] = changes) -> None:
                for change in changes:
                    change(book)

            await self._document.change(apply)
            del self._changes[: len(changes)]
            self._adopt()

    def _adopt(self) -> None:
        """Reload the stored notes and reapply the unsaved changes."""
        assert self._document is not None
        if self._document.data != self._seen:
            self._seen = self._document.data
            self._book = _decode(self._seen) if self._seen is not None else NoteBook()
            for change in self._changes:
                change(self._book)


def _document(documents: DocumentStore) -> SharedDocument[NoteBook]:
    lost = "waiting system events are lost"
    return SharedDocument(
        documents, FILE_NAME, NoteBook, _decode, msgspec.json.encode, damaged="drop", consequence=lost
    )


def _decode(data: bytes) -> NoteBook:
    return msgspec.json.decode(data, type=NoteBook)


def _wakes(note: Note, besides: Collection[str]) -> bool:
    return note.wake and not note.taken_by and _id_of(note) not in besides


def _id_of(note: Note) -> str:
    return note.id or f"{note.session_key} {note.at} {note.text}"


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("waiting system events are not on disk: %s", error)
