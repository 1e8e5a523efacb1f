"""What the Gateway tells an agent at its next turn: system events, one line each, kept on disk until a run has them.

A note is taken by exactly one run. That it was taken is on disk before the run stores its prompt, so that a run which
a crash interrupts takes the same notes again, and no other run does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from datetime import tzinfo
from pathlib import Path
from typing import Any

import msgspec

from openclaw.clock import Clock
from openclaw.config.store import write_private
from openclaw.foreign_text import disarmed
from openclaw.sessions.prompt_prefix import system_line

log = logging.getLogger("openclaw.sessions")

MAX_PER_SESSION = 20
MAX_SESSIONS = 1000
MAX_TEXT = 4000
MAX_REMEMBERED = 256
"""The ids of the last notes that were taken are remembered, so that the same note is not added again."""
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


class _File(msgspec.Struct, kw_only=True, omit_defaults=False):
    version: int = 1
    events: list[Note] = []
    done: list[str] = []


class SessionNotes:
    """The waiting notes of every session. Without ``folder`` they live in memory only."""

    def __init__(
        self, clock: Clock, zone: Callable[[], tzinfo | None] = lambda: None, folder: Path | None = None
    ) -> None:
        self._clock = clock
        self._zone = zone
        self._path = folder / FILE_NAME if folder is not None else None
        self._notes: dict[str, deque[Note]] = {}
        self._done: deque[str] = deque(maxlen=MAX_REMEMBERED)
        self._version = 0
        """Counts the changes."""
        self._saved = 0
        """The change up to which everything is on disk."""
        self._saving: asyncio.Task[None] | None = None

    async def load(self, has_ended: Callable[[str], Awaitable[bool]]) -> None:
        """Reads what an earlier process left. Notes of runs that have ended are over."""
        if self._path is None:
            return
        try:
            file = msgspec.json.decode(await asyncio.to_thread(self._path.read_bytes), type=_File)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as problem:
            log.warning("%s cannot be read, so waiting system events are lost: %s", self._path, problem)
            return
        self._done.extend(file.done)
        for note in file.events:
            if note.taken_by and await has_ended(note.taken_by):
                self._forget(note)
            else:
                self._notes.setdefault(note.session_key, deque()).append(note)

    def add(self, session_key: str, text: str) -> None:
        """Queues a note that nobody waits for."""
        self.put(session_key, text)

    def put(self, session_key: str, text: str, *, id: str = "", wake: bool = False) -> bool:
        """Queues a note and returns whether it is new. ``synced`` waits until it is on disk.

        A note equal to the one before it is ignored; a full queue loses its oldest note.
        """
        text = disarmed(" ".join(text.split())[:MAX_TEXT])
        waiting = [note for note in self._notes.get(session_key, ()) if not note.taken_by]
        if not text or (id and self.knows(id)) or (not id and waiting and waiting[-1].text == text):
            return False
        queue = self._notes.setdefault(session_key, deque())
        queue.append(Note(session_key=session_key, at=self._clock.now_ms(), text=text, id=id, wake=wake))
        for note in waiting[: max(0, len(waiting) + 1 - MAX_PER_SESSION)]:
            queue.remove(note)
        while len(self._notes) > MAX_SESSIONS:
            del self._notes[next(iter(self._notes))]
        self._changed()
        return True

    def knows(self, id: str) -> bool:
        """Whether a note with this id waits, or was taken not long ago."""
        return id in self._done or any(note.id == id for queue in self._notes.values() for note in queue)

    def peek(self, session_key: str) -> list[str]:
        """Returns the waiting notes of a session and keeps them."""
        return [note.text for note in self._notes.get(session_key, ()) if not note.taken_by]

    def waking(self, besides: Collection[str] = ()) -> list[str]:
        """The sessions whose agent should hear of a waiting note soon. ``besides``: ids of notes that do not count."""
        return [key for key, queue in self._notes.items() if any(_wakes(note, besides) for note in queue)]

    async def take(self, session_key: str, run_id: str) -> list[str]:
        """Hands the waiting notes of a session to a run, as lines for its prompt. The same run gets them again."""
        queue = self._notes.get(session_key)
        if queue is None:
            return []
        taken: list[Note] = []
        for note in list(queue):
            if note.taken_by in ("", run_id):
                note.taken_by = run_id
                taken.append(note)
            else:
                # A session has one run at a time, so the run that took it has ended.
                queue.remove(note)
                self._forget(note)
        if not queue:
            del self._notes[session_key]
        self._changed()
        if taken:
            await self.synced()
        return [system_line(note.text, note.at, self._zone()) for note in taken]

    async def synced(self) -> None:
        """Returns when every change so far is on disk. Raises ``OSError`` when the disk does not take it."""
        wanted = self._version
        while self._path is not None and self._saved < wanted:
            if self._saving is None or self._saving.done():
                self._saving = asyncio.create_task(self._save())
            await asyncio.shield(self._saving)

    def _forget(self, note: Note) -> None:
        if note.id:
            self._done.append(note.id)

    def _changed(self) -> None:
        self._version += 1
        if self._path is not None and (self._saving is None or self._saving.done()):
            try:
                self._saving = asyncio.get_running_loop().create_task(self._save())
            except RuntimeError:
                return  # Nobody waits; the next change is saved together with this one.
            self._saving.add_done_callback(_log_failure)

    async def _save(self) -> None:
        assert self._path is not None
        while self._saved < (version := self._version):
            events = [note for queue in self._notes.values() for note in queue]
            text = msgspec.json.encode(_File(events=events, done=list(self._done))).decode()
            await asyncio.to_thread(write_private, str(self._path), text)
            self._saved = version


def _wakes(note: Note, besides: Collection[str]) -> bool:
    return note.wake and not note.taken_by and not (note.id and note.id in besides)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("waiting system events are not on disk: %s", error)
