"""``SessionStore`` on files: one ``sessions.json`` with its journal for each agent, or one for all agents."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, cast

from openclaw.clock import Clock
from openclaw.paths import normalize_agent_id, sessions_dir
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import DEFAULT_AGENT, agent_of, is_cron_run_alias
from openclaw.storage.disk_errors import Repairs
from openclaw.storage.files.disk import AppendFile, Disk
from openclaw.storage.files.store_file import StoreFile, private_copy
from openclaw.storage.session_query import SessionPage, SessionQuery, select_rows, updated_at
from openclaw.storage.sessions import Change, SessionRow

log = logging.getLogger(__name__)
Name: TypeAlias = tuple[str, str]
"""The agent and the session key."""
Place: TypeAlias = tuple[int, str, str]
"""The sort key of a row: its negative ``updatedAt``, its session key and its agent."""
LOOK_SECONDS = 1.0
"""How often the store looks for outside edits and folds changes."""
QUIET_SECONDS = 0.05
"""Changes are folded when none came for this time, so that ``sessions.json`` is up to date after a turn."""
BUSY_SECONDS = 0.2
"""The same for a file that was folded within the last ``LOOK_SECONDS``. A fold costs as much as the way of a message
into the queue, and otherwise every message of a quick succession would have one of its own."""
FOLD_SHARE = 40
"""The pause between two folds is this many times as long as a fold takes."""
LONGEST_WAIT_S = 5.0
MOST_AGENTS = 256
MOST_UNLISTED = 1000


class FileSessionStore:
    def __init__(
        self,
        state_dir: str,
        *,
        clock: Clock,
        store_template: str | None,
        default_agent: str,
        repairs: Repairs | None = None,
    ) -> None:
        self._clock = clock
        self._repairs = repairs
        self._shared = bool(store_template) and "{agentId}" not in (store_template or "")
        """Whether all agents have one store."""
        self._default_agent = default_agent
        self._disk = Disk()
        self._files: dict[str, StoreFile] = {}
        """The files by path. Several agents may share one."""
        self._path_of = lru_cache(maxsize=MOST_AGENTS)(lambda agent: str(store_path(state_dir, agent, store_template)))
        self._all_rows = RowIndex()
        self._agent_rows: defaultdict[str, RowIndex] = defaultdict(RowIndex)
        self._by_session: dict[str, dict[Name, SessionRow]] = {}
        self._unlisted: dict[Name, Any] = {}
        """Changes that are not in the indexes yet. ``_list`` takes them in when somebody asks for rows."""
        self._opening = asyncio.Lock()
        self._folds: set[asyncio.Task[None]] = set()
        self._settling: dict[StoreFile, asyncio.Task[None]] = {}
        self._tender: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        state_dir: str,
        *,
        clock: Clock,
        store_template: str | None = None,
        agent_ids: Sequence[str] = (),
        repairs: Repairs | None = None,
    ) -> FileSessionStore:
        """Reads the stores of these agents and of all agents on disk. The first id is the default agent."""
        configured = [normalize_agent_id(agent) for agent in agent_ids]
        store = cls(
            state_dir,
            clock=clock,
            store_template=store_template,
            default_agent=configured[0] if configured else DEFAULT_AGENT,
            repairs=repairs,
        )
        folders = sorted((Path(state_dir) / "agents").glob("*/sessions"))
        on_disk = [normalize_agent_id(folder.parent.name) for folder in folders if folder.is_dir()]
        for agent in dict.fromkeys([*configured, *on_disk]):
            await store._file(agent)
        store._tender = asyncio.create_task(store._tend(), name="session-store")
        return store

    async def get(self, agent_id: str, key: str) -> SessionEntry | None:
        file = self._files.get(self.path(agent_id))
        entry = file.values.get(key) if file else None
        return cast("SessionEntry", entry.copy()) if isinstance(entry, dict) else None

    async def update(self, agent_id: str, key: str, change: Change, *, durable: bool = True) -> SessionEntry | None:
        entry, written = await self.write(agent_id, key, change, at_once=durable)
        if durable or written.sync_failed:
            # Whoever waited for the failed sync was refused and may have come back with this change.
            await written.sync()
        return entry

    async def write(
        self, agent_id: str, key: str, change: Change, *, at_once: bool = True
    ) -> tuple[SessionEntry | None, AppendFile]:
        file = self._files.get(self.path(agent_id)) or await self._file(agent_id)
        if not file.dirty and file.edited:
            # Edits are merged before the first own change, because a key that both changed would keep only ours.
            await self._settled(file)
        current = file.values.get(key)
        changed = change(private_copy(current) if isinstance(current, dict) else None)
        stored, written = await file.put(key, cast("dict[str, Any] | None", changed), at_once=at_once)
        if file.wants_fold and not self._folds:
            self._bring_up_to_date(file)
        elif file not in self._settling and file.dirty:
            self._settling[file] = asyncio.create_task(self._settle(file), name=f"settle {file.path}")
        return cast("SessionEntry", stored.copy()) if stored is not None else None, written

    async def select(self, query: SessionQuery) -> SessionPage:
        rows = await self.rows(query.agent_id)
        if query.key is not None:
            agents = self._agent_rows if query.agent_id is None else [normalize_agent_id(query.agent_id)]
            found = (self._all_rows.get((agent, query.key)) for agent in agents)
            rows = sorted((row for row in found if row is not None), key=_place)
        return select_rows(rows, query)

    async def rows(self, agent_id: str | None = None) -> Sequence[SessionRow]:
        """Returns the rows of one agent or of all, newest ``updatedAt`` first, without reading the disk."""
        for file in list(self._files.values()):
            if file.edited:
                await self._settled(file)
        self._list()
        if agent_id is None:
            return self._all_rows.rows()
        index = self._agent_rows.get(normalize_agent_id(agent_id))
        return index.rows() if index else []

    async def find_session_id(self, session_id: str) -> SessionRow | None:
        """Finds the latest row of that session. A cron job's own row comes before the alias of one run."""
        self._list()
        rows = self._by_session.get(session_id, {}).values()
        return min(rows, key=lambda row: (is_cron_run_alias(row.key), -updated_at(row.entry), row.key), default=None)

    async def count(self, agent_id: str) -> int:
        self._list()
        index = self._agent_rows.get(normalize_agent_id(agent_id))
        return len(index) if index else 0

    async def close_agent(self, agent_id: str) -> None:
        agent = normalize_agent_id(agent_id)
        async with self._opening:
            file = None if self._shared else self._files.pop(self.path(agent), None)
        if file is None:
            return
        if (settling := self._settling.get(file)) is not None:
            settling.cancel()
        await asyncio.gather(*self._folds)
        await file.close()
        self._unlisted |= {(agent, key): None for key in file.values}

    def path(self, agent_id: str) -> str:
        return self._path_of(agent_id)

    @property
    def agent_ids(self) -> list[str]:
        self._list()
        return [agent for agent, index in self._agent_rows.items() if len(index)]

    async def flush(self) -> None:
        """Returns once every ``sessions.json`` is up to date."""
        for file in list(self._files.values()):
            await file.fold()

    async def close(self) -> None:
        if self._tender is not None:
            self._tender.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._tender
        for settling in self._settling.values():
            settling.cancel()
        await asyncio.gather(*self._folds)
        for file in self._files.values():
            try:
                await file.close()
            except OSError as error:
                # The journal has all changes. The next start writes the snapshot.
                log.warning("session store %s could not be folded at close: %s", file.path, error)
        await self._disk.close()

    # Opening and tending

    async def _file(self, agent_id: str) -> StoreFile:
        path = self.path(agent_id)
        async with self._opening:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = await self._open_file(path, normalize_agent_id(agent_id))
            return file

    async def _open_file(self, path: str, agent: str) -> StoreFile:
        shared = self._shared

        def note(key: str, value: Any) -> None:
            owner = agent_of(key, default_agent=self._default_agent) if shared else agent
            self._unlisted[owner, key] = value

        file = StoreFile(Path(path), self._disk, self._clock, note, self._repairs)
        for key, value in (await file.open()).items():
            note(key, value)
        return file

    async def _tend(self) -> None:
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            if len(self._unlisted) > MOST_UNLISTED:
                self._list()
            for file in list(self._files.values()):
                now = self._clock.monotonic()
                if file.dirty and now - file.folded_at < _rest(file, now):
                    continue
                # The fold is a task of its own, because closing cancels this loop but must not cancel a fold.
                await self._settled(file)

    async def _settle(self, file: StoreFile) -> None:
        """Folds when the changes pause. While they go on, ``_tend`` folds from time to time."""
        try:
            changes = -1
            while file.dirty and changes != file.changes:
                changes = file.changes
                await self._clock.sleep(_rest(file, self._clock.monotonic()))
        finally:
            del self._settling[file]
        if file.dirty:
            self._bring_up_to_date(file)

    async def _settled(self, file: StoreFile) -> None:
        await asyncio.wait([self._bring_up_to_date(file)])

    def _bring_up_to_date(self, file: StoreFile) -> asyncio.Task[None]:
        task = asyncio.create_task(self._fold_or_look(file), name=f"fold {file.path}")
        self._folds.add(task)
        task.add_done_callback(self._folds.discard)
        return task

    async def _fold_or_look(self, file: StoreFile) -> None:
        try:
            if not file.dirty:
                await file.look()
            if file.dirty:
                await file.fold()
        except OSError as error:
            log.error("session store %s cannot be written (%s); changes are kept in its journal", file.path, error)
        except Exception:
            log.exception("session store %s could not be brought up to date", file.path)

    # Indexes

    def _list(self) -> None:
        """Brings the indexes up to date. Call it before you use them."""
        changes, self._unlisted = self._unlisted, {}
        for name, value in changes.items():
            # A value that is not an entry stays in the file and is not listed.
            row = SessionRow(*name, cast("SessionEntry", value)) if isinstance(value, dict) else None
            old, new = _session_id(self._all_rows.get(name)), _session_id(row)
            for index in (self._all_rows, self._agent_rows[name[0]]):
                index.put(name, row)
            if old is not None and old != new:
                del self._by_session[old][name]
                if not self._by_session[old]:
                    del self._by_session[old]
            if new is not None and row is not None:
                self._by_session.setdefault(new, {})[name] = row


def _session_id(row: SessionRow | None) -> str | None:
    value = row.entry.get("sessionId") if row is not None else None
    return value if isinstance(value, str) else None


def _rest(file: StoreFile, now: float) -> float:
    """Returns the pause between two folds of a file."""
    least = BUSY_SECONDS if now - file.folded_at < LOOK_SECONDS else QUIET_SECONDS
    return min(LONGEST_WAIT_S, max(least, FOLD_SHARE * file.fold_seconds))


def _place(row: SessionRow) -> Place:
    return -updated_at(row.entry), row.key, row.agent_id


class RowIndex:
    """Rows, newest first. Changes are only noted, and sorted in at the next listing, because listings are rare."""

    def __init__(self) -> None:
        self._rows: dict[Name, SessionRow] = {}
        self._moved: set[Name] = set()
        self._placed: dict[Name, Place] = {}
        self._order: list[Place] = []
        self._listed: list[SessionRow] = []
        """The rows in the order of ``_order``."""

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, name: Name) -> SessionRow | None:
        return self._rows.get(name)

    def put(self, name: Name, row: SessionRow | None) -> None:
        """Sets a row, or removes it."""
        if row is not None:
            self._rows[name] = row
        else:
            self._rows.pop(name, None)
        self._moved.add(name)

    def rows(self) -> list[SessionRow]:
        if self._moved:
            self._put_in_order()
        return self._listed.copy()

    def _put_in_order(self) -> None:
        if len(self._moved) * 8 > len(self._rows):
            self._listed = sorted(self._rows.values(), key=_place)
            self._order = [_place(row) for row in self._listed]
            self._placed = {(position[2], position[1]): position for position in self._order}
        else:
            for name in self._moved:
                self._move(name)
        self._moved.clear()

    def _move(self, name: Name) -> None:
        if (before := self._placed.pop(name, None)) is not None:
            at = bisect_left(self._order, before)
            del self._order[at], self._listed[at]
        if (row := self._rows.get(name)) is not None:
            position = self._placed[name] = _place(row)
            at = bisect_left(self._order, position)
            self._order.insert(at, position)
            self._listed.insert(at, row)


def store_path(state_dir: str, agent_id: str, template: str | None = None) -> Path:
    """Returns the path of an agent's ``sessions.json``. ``template`` is the setting ``session.store``."""
    agent = normalize_agent_id(agent_id)
    if template and template.strip():
        return Path(template.strip().replace("{agentId}", agent)).expanduser().absolute()
    return Path(sessions_dir(state_dir, agent)) / "sessions.json"


def sessions_folders(state_dir: str, template: str | None) -> Callable[[str], Path]:
    """Returns a function from an agent to the folder of its ``sessions.json`` and its transcripts."""
    return lambda agent: store_path(state_dir, agent, template).parent
