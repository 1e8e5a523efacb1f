"""``session.maintenance``: sessions that are old or too many are archived, and transcripts take bounded space.

An archived session is no longer listed. Its transcript stays as an archive until that is old enough to go, or
until the space is needed. Nothing happens unless the configuration asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from openclaw.clock import duration_ms
from openclaw.config.agents import main_session_key
from openclaw.runs.session_change import earlier_transcripts
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.sessions.reset import activity_at, transcript_ref
from openclaw.storage.session_query import SessionQuery, updated_at
from openclaw.storage.sessions import SessionRow
from openclaw.storage.transcripts import Compressed

if TYPE_CHECKING:
    from openclaw.agent.runtime import Runtime
    from openclaw.config.schema.messages import SessionMaintenance
    from openclaw.gateway.session_directory import SessionDirectory
    from openclaw.runs.runs import Runs

log = logging.getLogger(__name__)

DAY_MS = 86_400_000
LEDGER_DAYS = 90
"""The ledger keeps a message for this many days after its end."""
USUAL_AGE = "30d"
USUAL_ENTRIES = 500
PER_PASS = 200
"""The most sessions of an agent that one pass archives."""
_ARCHIVE = re.compile(r"\.jsonl(?:\.zst)?\.(?:deleted|reset)\.(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d)")
"""The name of an archive, with the time at which it was made."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class MaintenanceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What ``session.maintenance`` asks for."""

    enforced: bool
    """Without it, the sessions that would be archived are only logged."""
    age_ms: int
    entries: int
    archive_ms: int | None
    """The age at which archives are deleted, or None to keep them."""
    disk_bytes: int | None
    """The most that the files of an agent's sessions take."""
    low_bytes: int
    """The size that a cleanup aims at."""


def size_bytes(value: str | int) -> int:
    """Parse ``500mb``, ``2 GB`` or a bare number of bytes. Raises ValueError with the problem."""
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or len(match[1]) > 20:
        raise ValueError(f"{value!r} is not a size; write something like 500mb or 2gb")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


def limits_of(settings: SessionMaintenance) -> MaintenanceLimits | None:
    """Return the limits of the configuration, or None if it sets none and all sessions are kept."""
    if settings == type(settings)():
        return None
    age_ms = duration_ms(settings.prune_after or settings.prune_days or USUAL_AGE, "d")
    if not age_ms:
        raise ValueError("a pruneAfter of 0 would put every session away; leave it out to keep the usual 30d")
    archive_ms: int | None = age_ms
    retention = settings.reset_archive_retention
    if isinstance(retention, bool):
        archive_ms = age_ms if retention else None
    elif retention is not None:
        archive_ms = duration_ms(retention, "d")
    disk = size_bytes(settings.max_disk_bytes) if settings.max_disk_bytes is not None else None
    if disk == 0:
        raise ValueError("a maxDiskBytes of 0 would delete every transcript; leave it out for no limit")
    low = size_bytes(settings.high_water_bytes) if settings.high_water_bytes is not None else (disk or 0) * 8 // 10
    return MaintenanceLimits(
        enforced=settings.mode == "enforce",
        age_ms=age_ms,
        entries=settings.max_entries or USUAL_ENTRIES,
        archive_ms=archive_ms,
        disk_bytes=disk,
        low_bytes=min(low, disk or 0),
    )


class Maintenance:
    """Keeps an agent's sessions within their limits, compresses old transcripts and prunes the ledger."""

    def __init__(self, runtime: Runtime, runs: Runs, directory: SessionDirectory) -> None:
        self._runtime = runtime
        self._runs = runs
        self._directory = directory
        self._logged: dict[str, int] = {}
        """How many sessions the log last said would be put away, by agent."""

    async def compress(self, after_days: int | None = None, most: int = 200) -> Compressed:
        """Compress at most that many old transcripts. The next call continues with the rest.

        Without ``after_days`` the configured age counts. With 0 or less nothing is compressed.
        """
        days = self._runtime.config.current.session.archive.after_days if after_days is None else after_days
        if days <= 0:
            return Compressed()
        before = self._runtime.clock.now_ms() - days * DAY_MS
        return await self._runtime.stores.transcripts.compress(self._directory.agent_ids(), before, most=most)

    async def prune_ledger(self) -> None:
        before = self._runtime.clock.now_ms() - LEDGER_DAYS * DAY_MS
        while await self._runtime.stores.ledger.prune(before):
            pass  # Each call removes a few messages, so that others need not wait for the ledger.

    async def run_once(self) -> None:
        """Make one pass. A message that comes meanwhile keeps its session."""
        config = self._runtime.config.current.session.maintenance
        try:
            limits = limits_of(config)
        except ValueError as error:
            log.warning("session.maintenance: %s", error)
            return
        if limits is None:
            return
        for agent_id, folders in self._directory.transcript_folders().items():
            due = await self._due(agent_id, limits)
            if not limits.enforced:
                self._log_due(agent_id, len(due))
                continue
            for row in due:
                await self._archive(row)
            await self._bound_files(agent_id, folders, limits)

    def _log_due(self, agent_id: str, count: int) -> None:
        if count and self._logged.get(agent_id) != count:
            log.warning(
                "session.maintenance would put %d sessions of %s away; set its mode to enforce", count, agent_id
            )
        self._logged[agent_id] = count

    async def _due(self, agent_id: str, limits: MaintenanceLimits) -> list[SessionRow]:
        """Return the sessions to archive, the oldest first."""
        before = self._runtime.clock.now_ms() - limits.age_ms
        too_many = await self._runtime.stores.sessions.count(agent_id) - limits.entries
        due: list[SessionRow] = []
        for row in await self._oldest(agent_id, None if too_many > 0 else before):
            active_at = activity_at(row.entry)
            old = active_at is not None and active_at < before
            if (len(due) < too_many or old) and not self._is_kept(row):
                due.append(row)
        return due

    async def _oldest(self, agent_id: str, before: int | None = None) -> Sequence[SessionRow]:
        query = SessionQuery(agent_id=agent_id, updated_before=before, oldest_first=True, limit=PER_PASS)
        return (await self._runtime.stores.sessions.select(query)).rows

    def _is_kept(self, row: SessionRow) -> bool:
        """Return whether the session is a main session or in use. Such sessions are never archived."""
        config = self._runtime.config.current
        main = row.key in ("global", main_session_key(config, row.agent_id))
        return main or self._runs.in_use(row.key)

    async def _archive(self, row: SessionRow) -> list[str]:
        """Archive a session unless it was used meanwhile. Returns the paths of its archives."""
        session, seen = SessionRef(row.agent_id, row.key), updated_at(row.entry)
        sessions, transcripts = self._runtime.stores.sessions, self._runtime.stores.transcripts

        async def remove() -> list[str]:
            entry = await sessions.get(session.agent_id, session.key)
            if entry is None or updated_at(entry) != seen or self._runs.occupied(session.key):
                return []

            def drop(current: SessionEntry | None) -> SessionEntry | None:
                return None if current is not None and updated_at(current) == seen else current

            if await sessions.update(session.agent_id, session.key, drop) is not None:
                return []
            log.info("session %s was put away (session.maintenance)", session.key)
            refs = [transcript_ref(session.agent_id, entry), *earlier_transcripts(session, entry)]
            return [path for ref in refs for path in await transcripts.archive(ref, "deleted")]

        return await self._runs.exclusively(session.key, remove)

    async def _bound_files(self, agent_id: str, folders: Sequence[Path], limits: MaintenanceLimits) -> None:
        now_s = self._runtime.clock.now_ms() / 1000
        files = await asyncio.to_thread(_files, folders)
        archives = sorted(
            (file for file in files if file.archived_s is not None), key=lambda file: file.archived_s or 0
        )
        used = sum(file.size for file in files)
        over = limits.disk_bytes is not None and used > limits.disk_bytes
        for file in archives:
            old = limits.archive_ms is not None and (file.archived_s or 0) < now_s - limits.archive_ms / 1000
            if old or (over and used > limits.low_bytes):
                await asyncio.to_thread(_delete, file.path)
                used -= file.size
        if not over or used <= limits.low_bytes:
            return
        for row in await self._oldest(agent_id):
            if used <= limits.low_bytes:
                return
            if not self._is_kept(row):
                archived = [Path(path) for path in await self._archive(row)]
                used -= sum(file.size for file in await asyncio.to_thread(_files, archived))
                for path in archived:
                    await asyncio.to_thread(_delete, path)


class SessionFile(msgspec.Struct, frozen=True):
    path: Path
    size: int
    archived_s: float | None
    """When it became an archive, or None if it is not one."""


def _files(roots: Iterable[Path]) -> list[SessionFile]:
    """The files at these places, and those in the folders among them. Blocking."""
    files: list[SessionFile] = []
    paths = [path for root in roots for path in (root.iterdir() if root.is_dir() else [root])]
    for path in paths:
        try:
            status = path.lstat()
        except OSError:
            continue
        if path.is_file() and not path.is_symlink():
            files.append(SessionFile(path, status.st_size, _archived_s(path.name)))
    return files


def _archived_s(name: str) -> float | None:
    match = _ARCHIVE.search(name)
    if match is None:
        return None
    try:
        return datetime.strptime(match[1], "%Y-%m-%dT%H-%M-%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        log.info("%s was deleted (session.maintenance)", path)
    except OSError as error:
        log.warning("%s cannot be deleted: %s", path, error)
