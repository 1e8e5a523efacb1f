"""Brings sessions in that this version did not write: those of another state folder, and those of older layouts.

``import_sessions`` only reads the other folder, and follows no link out of it. Of an entry it takes over what gives no
rights. Every line of a transcript is written as it was found, but a header of format 4 says 3: messages are the same in
both, and 2026.9 does not import an archived transcript that says 4. One line of ours
follows them: it says where they come from, and continues the branch that was active there.

``migrate_sessions`` takes over ``<state>/sessions/`` and ``<state>/sessions/<agent>/``, the older layouts. Files are
copied and compared by hash. Only then the old folder is renamed; it is never deleted.

Both can be repeated after an interruption: what is here already is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from openclaw import json_text
from openclaw.clock import Clock, iso_utc
from openclaw.paths import make_private_dir, normalize_agent_id, sessions_dir
from openclaw.sessions.entry import SessionEntry, normalize_entry
from openclaw.sessions.keys import RESERVED_KEYS, canonicalize_main_alias, kind_of, main_session_key, safe_file_name
from openclaw.sessions.reset import PreviousSession, previous_sessions
from openclaw.sessions.tree import fields_of
from openclaw.storage.files.disk import atomic_replace, put_in_place, sync_dir, write_temporary
from openclaw.storage.files.newer_state import (
    LEADS_OUT,
    FoundSession,
    Unreadable,
    database_files,
    file_sessions,
    is_inside,
    open_databases,
    outward_links,
)
from openclaw.storage.files.session_store import updated_at
from openclaw.storage.files.store_file import parse_store
from openclaw.storage.files.transcript_index import SUFFIX, plain_blocks
from openclaw.storage.sessions import SessionStore

Outcome: TypeAlias = Literal["imported", "present", "conflict", "failed"]
MARK = "openclaw.import"
HEADER_VERSION = 3
"""The format of transcripts that every version reads."""
_TAKEN = frozenset(
    {
        *("label", "displayName", "subject", "groupId", "groupChannel", "room", "space"),
        *("thinkingLevel", "verboseLevel", "reasoningLevel", "responseUsage", "providerOverride", "modelOverride"),
        *("queueMode", "queueDebounceMs", "queueCap", "queueDrop", "systemSent", "abortedLastRun"),
        *("inputTokens", "outputTokens", "totalTokens", "cacheRead", "cacheWrite", "contextTokens", "modelProvider"),
        *("model", "compactionCount", "memoryFlushAt", "memoryFlushCompactionCount"),
    }
)
"""The fields of an entry that are taken over: names, preferences and counters.

Fields that decide who may do what are not: the folder may be somebody else's. Routes are among them, because reminders
and jobs are sent there; the next message of a chat sets its route again.
"""
_STRICTER = {"sendPolicy": {"deny"}, "groupActivation": {"mention"}, "chatType": {"group", "channel", "room"}}
"""Fields that are taken over with values that only take rights away."""
_REPORTED = re.compile(r"exec[A-Z]|elevated|sendPolicy|groupActivation|authProfile|budgetOverride")
"""The fields that a person may have set on purpose, and is to be told about."""
_RESET_SUMMARY = "The conversation was reset here. Earlier messages are kept in the transcript and are not part of it."
_STORE = "sessions.json"


class ImportedSession(msgspec.Struct, kw_only=True, rename="camel"):
    agent_id: str
    key: str
    session_id: str
    place: str
    """Where it was found, relative to the other folder."""
    outcome: Outcome
    events: int = 0
    sha256: str = ""
    """The hash of its lines as they stand there, each with its line end."""
    detail: str = ""
    """What a person must know: why it failed, or what it was in conflict with."""


async def import_sessions(
    folder: Path, own_state: Path, sessions: SessionStore, *, dry_run: bool = False
) -> AsyncIterator[ImportedSession]:
    """Imports session by session. With ``dry_run`` it only says what it would do. Raises ``Unreadable``."""
    source = await asyncio.to_thread(folder.resolve)
    if source == own_state.resolve():
        raise Unreadable(
            f"{folder} is the state folder in use; import into another one: "
            f"OPENCLAW_STATE_DIR={own_state}-imported openclaw sessions import --from {folder}"
        )
    if not (source / "agents").is_dir():
        raise Unreadable(f"{folder} is not a state folder of OpenClaw: it has no folder `agents`")
    if not is_inside(source, source / "agents"):
        raise Unreadable(f"{source / 'agents'} {LEADS_OUT}")
    with contextlib.ExitStack() as stack:
        for path in await asyncio.to_thread(list, outward_links(source)):
            yield _refused_link(source, path)
        candidates, version = await asyncio.to_thread(stack.enter_context, found_sessions(source))
        candidates.sort(key=_order)
        for (agent, key), group in groupby(candidates, key=_conversation):
            async for session in _import_conversation(agent, key, list(group), sessions, version, dry_run):
                yield session


@contextlib.contextmanager
def found_sessions(source: Path) -> Generator[tuple[list[FoundSession], str]]:
    """Every session of a folder, and the version that wrote it. Raises ``Unreadable``."""
    with open_databases(source, database_files(source)) as databases:
        sessions = [session for base in databases for session in base.sessions()]
        own_ids = {(session.agent_id, session.session_id) for session in sessions}
        files = file_sessions(source)
        sessions += [session for session in files if (session.agent_id, session.session_id) not in own_ids]
        yield sessions, databases[0].name if databases else "OpenClaw"


def _refused_link(source: Path, path: Path) -> ImportedSession:
    """The report on an agent's folder, store or database that is not read."""
    relative = path.relative_to(source)
    agent = normalize_agent_id(relative.parts[1])
    detail = f"{relative} {LEADS_OUT}"
    return ImportedSession(agent_id=agent, key="-", session_id="", place=str(relative), outcome="failed", detail=detail)


def _order(session: FoundSession) -> tuple[str, str, bool, int, str]:
    """By conversation, the current session first, then the newest."""
    agent, key = _conversation(session)
    return agent, key, not session.current, -session.updated_at, session.session_id


def _conversation(session: FoundSession) -> tuple[str, str]:
    if session.key is None:
        return session.agent_id, f"agent:{session.agent_id}:imported:{session.session_id.lower()}"
    return session.agent_id, legacy_store_key(session.agent_id, session.key)


async def _import_conversation(
    agent: str, key: str, candidates: list[FoundSession], sessions: SessionStore, version: str, dry_run: bool
) -> AsyncIterator[ImportedSession]:
    """Writes the transcripts and then the entry, so that an entry never lacks its transcript."""
    folder = Path(sessions.path(agent)).parent
    brought: list[FoundSession] = []
    ours = await sessions.get(agent, key)
    listed = (
        {ours["sessionId"], *(candidate.session_id for candidate in previous_sessions(ours))}
        if ours is not None
        else set()
    )
    for candidate in candidates:
        report = await asyncio.to_thread(_bring_transcript, candidate, key, folder, version, dry_run)
        if report.outcome in ("imported", "present"):
            brought.append(candidate)
            report.outcome = "present" if candidate.session_id in listed else "imported"
            if ours is None and candidate is candidates[0] and (left_out := _left_out(candidate.entry)):
                report.detail = f"these settings are not taken over: {', '.join(left_out)}"
            if candidate.current and ours is not None and ours["sessionId"] != candidate.session_id:
                report.outcome = "present" if candidate.session_id in listed else "conflict"
                report.detail = (
                    f"{key} has another session here, which stays; this one is an earlier one of it: "
                    f"openclaw sessions resume {key} --session {candidate.session_id}"
                )
        yield report
    if brought and not dry_run:
        await sessions.update(agent, key, lambda entry: _with_imported(entry, brought))


def _with_imported(entry: SessionEntry | None, candidates: list[FoundSession]) -> SessionEntry:
    """The entry with the sessions that were found. A session that is current here stays current."""
    fields: dict[str, Any] = dict(entry or {})
    if entry is None:
        first = candidates[0]
        taken = {name: value for name, value in first.entry.items() if _is_taken(name, value)}
        fields = normalize_entry({**taken, "sessionId": first.session_id, "updatedAt": first.updated_at})
    earlier = previous_sessions(fields)
    session_ids = {fields["sessionId"], *(previous.session_id for previous in earlier)}
    added = [
        PreviousSession(session_id=candidate.session_id, ended_at=candidate.updated_at, reason="import")
        for candidate in candidates
        if candidate.session_id not in session_ids
    ]
    if added:
        newest_first = sorted([*earlier, *added], key=lambda candidate: -candidate.ended_at)
        fields["previousSessions"] = msgspec.to_builtins(newest_first)
    return cast("SessionEntry", fields)


def _left_out(entry: Mapping[str, Any]) -> list[str]:
    return sorted(name for name, value in entry.items() if _REPORTED.match(name) and not _is_taken(name, value))


def _is_taken(name: str, value: Any) -> bool:
    return name in _TAKEN or (isinstance(value, str) and value in _STRICTER.get(name, ()))


def _bring_transcript(session: FoundSession, key: str, folder: Path, version: str, dry_run: bool) -> ImportedSession:
    report = ImportedSession(
        agent_id=session.agent_id, key=key, session_id=session.session_id, place=session.place, outcome="imported"
    )
    path = folder / f"{safe_file_name(session.session_id)}.jsonl"
    try:
        begun, size, copy = hashlib.sha256(), 0, TranscriptCopy(session, version)
        for line in copy.found_lines():
            begun.update(line)
            size += len(line)
        report.events, report.sha256 = copy.events, copy.sha256.hexdigest()
        # Our own line is not compared: two keys may share a transcript, such as a scheduled job and its last run.
        if (present := _beginning(path, size)) is not None:
            if present != begun.digest() and not _is_earlier_copy(path, session, version):
                report.outcome = "conflict"
                report.detail = f"{path} holds something else, or the session went on there after an earlier import"
            else:
                report.outcome = "present"
        elif copy.events and not dry_run:
            begun.update(copy.own_line())
            _write(path, TranscriptCopy(session, version).lines(), begun.digest(), session.updated_at)
    except (Unreadable, OSError) as problem:
        report.outcome, report.detail = "failed", str(problem)
    return report


def _is_earlier_copy(path: Path, session: FoundSession, version: str) -> bool:
    """Whether an earlier version copied the transcript, which left the version of the header as it was."""
    begun, size = hashlib.sha256(), 0
    for line in TranscriptCopy(session, version, header_as_found=True).found_lines():
        begun.update(line)
        size += len(line)
    return _beginning(path, size) == begun.digest()


def _beginning(path: Path, size: int) -> bytes | None:
    """The hash of the first bytes of a transcript, which may have grown since; None when there is none."""
    file = next((spelling for spelling in (path, Path(f"{path}{SUFFIX}")) if spelling.exists()), None)
    if file is None:
        return None
    digest = hashlib.sha256()
    for block in plain_blocks(file):
        digest.update(block[:size])
        size -= len(block[:size])
        if not size:
            break
    return digest.digest()


def _write(path: Path, lines: Iterator[bytes], digest: bytes, updated_at: int) -> None:
    make_private_dir(str(path.parent))
    prepared = write_temporary(path, lines)
    try:
        with prepared.open("rb") as file:
            if hashlib.file_digest(file, hashlib.sha256).digest() != digest:
                raise Unreadable(
                    f"the copy of {path.name} differs from what was read; the other folder is being written to"
                )
        if updated_at:
            os.utime(prepared, ns=(updated_at * 1_000_000, updated_at * 1_000_000))
        put_in_place(prepared, path)
    finally:
        prepared.unlink(missing_ok=True)


class TranscriptCopy:
    """The lines of a transcript as they are written here, and what is learnt about them on the way."""

    def __init__(self, session: FoundSession, version: str, *, header_as_found: bool = False) -> None:
        """``header_as_found`` is how earlier versions wrote the copy."""
        self._found = session
        self._version = version
        self._header_as_found = header_as_found
        self.events = 0
        self.sha256 = hashlib.sha256()
        self._parents: dict[str, str | None] = {}
        self._starts: dict[str, str | None] = {}
        """Resets and compactions → the first entry before them that they keep."""
        self._resets: set[str] = set()
        self._leaf: str | None = None

    def lines(self) -> Iterator[bytes]:
        yield from self.found_lines()
        if own := self.own_line():
            yield own

    def own_line(self) -> bytes:
        """The line that follows those that were found; empty when there is nothing to continue."""
        return json_text.encode(self._mark()) + b"\n" if self._parents else b""

    def found_lines(self) -> Iterator[bytes]:
        for raw in self._found.lines():
            line = raw.rstrip(b"\r")
            if not self.events and (header := self._missing_header(line)):
                yield header
            self.events += 1
            self.sha256.update(line + b"\n")
            yield self._followed(line) + b"\n"

    def _missing_header(self, first: bytes) -> bytes | None:
        if fields_of(first).get("type") == "session":
            return None
        header = {"type": "session", "version": HEADER_VERSION, "id": self._found.session_id, "cwd": ""}
        return json_text.encode({**header, "timestamp": iso_utc(self._found.updated_at)}) + b"\n"

    def _followed(self, line: bytes) -> bytes:
        """Follows the active branch, and links a line of the old, flat format to the one before it."""
        fields = fields_of(line)
        kind, own = fields.get("type"), fields.get("id")
        version = fields.get("version")
        if kind == "session" and isinstance(version, int) and version > HEADER_VERSION and not self._header_as_found:
            return json_text.encode({**fields, "version": HEADER_VERSION})
        if kind == "session" or not isinstance(own, str):
            return line
        if kind == "leaf":
            target = fields.get("targetId")
            if target is None or target in self._parents:
                self._leaf = target
            return line
        if "parentId" not in fields:
            fields["parentId"] = self._leaf
            line = json_text.encode(fields)
        parent = fields["parentId"]
        self._parents[own] = parent if isinstance(parent, str) else None
        if kind in ("compaction", "reset"):
            first_kept = fields.get("firstKeptEntryId")
            self._starts[own] = first_kept if isinstance(first_kept, str) else None
        if kind == "reset":
            self._resets.add(own)
        if fields.get("appendMode") != "side":
            self._leaf = own
        return line

    def _mark(self) -> dict[str, Any]:
        """Our own line. It is the same whenever the same lines are imported."""
        facts = {"from": self._version, "events": self.events, "sha256": self.sha256.hexdigest()}
        shared = {
            "id": f"import-{self.sha256.hexdigest()[:8]}",
            "parentId": self._leaf,
            "timestamp": iso_utc(self._found.updated_at),
        }
        if (reset := self._last_reset()) is None:
            return {"type": "custom", **shared, "customType": MARK, "data": facts}
        first_kept = self._starts[reset] or self._child_of(reset) or reset
        summary = {"summary": _RESET_SUMMARY, "firstKeptEntryId": first_kept, "tokensBefore": 0}
        return {"type": "compaction", **shared, **summary, "details": facts}

    def _path(self) -> Iterator[str]:
        """From the active leaf towards the root."""
        at, seen = self._leaf, set[str]()
        while at is not None and at in self._parents and at not in seen:
            seen.add(at)
            yield at
            at = self._parents[at]

    def _last_reset(self) -> str | None:
        """The reset at which the active branch started again. A later compaction replaces it."""
        start = next((entry for entry in self._path() if entry in self._starts), None)
        return start if start in self._resets else None

    def _child_of(self, entry: str) -> str | None:
        child = None
        for at in self._path():
            if at == entry:
                return child
            child = at
        return None


# Older layouts


class MigrationReport(msgspec.Struct, kw_only=True):
    copied: int = 0
    present: int = 0
    """The number of files that an earlier, interrupted migration had copied."""
    sessions: int = 0
    """The number of entries that were added to or renewed in the stores."""
    problems: list[str] = msgspec.field(default_factory=list)
    """The items that could not be migrated. While there is a problem, the old folder stays where it is."""
    moved_to: str | None = None


async def migrate_sessions(
    state_dir: str, *, clock: Clock, default_agent: str = "main", main_key: str = "main", scope: str = "per-sender"
) -> MigrationReport | None:
    """Migrates the sessions. Returns None when there are none. Call it before the stores are opened."""
    old = Path(state_dir) / "sessions"
    if not old.is_dir():
        return None
    naming = {"main_key": main_key, "scope": scope}
    return await asyncio.to_thread(_migrate, Path(state_dir), old, normalize_agent_id(default_agent), naming, clock)


def legacy_store_key(agent: str, key: str, *, main_key: str = "main", scope: str = "per-sender") -> str:
    """Returns the current key for a key of an old store."""
    lowered = key.strip().lower()
    if lowered in RESERVED_KEYS:
        return lowered
    alias = canonicalize_main_alias(agent, lowered, main_key=main_key, scope=scope)
    if alias != lowered or lowered.startswith("agent:"):
        return alias
    name = lowered.removeprefix("whatsapp:").removeprefix("group:")
    if name.endswith("@g.us"):
        return f"agent:{agent}:whatsapp:group:{name}"
    if lowered.startswith("group:"):
        return f"agent:{agent}:unknown:group:{name}"
    return f"agent:{agent}:{lowered}"


def _migrate(state: Path, old: Path, default_agent: str, naming: Mapping[str, str], clock: Clock) -> MigrationReport:
    report = MigrationReport()
    folders = [(old, default_agent)]
    folders += [(folder, normalize_agent_id(folder.name)) for folder in sorted(old.iterdir()) if folder.is_dir()]
    brought = {folder: _copy_files(folder, _home(state, agent), report) for folder, agent in folders}
    read = [at for at in folders if _merge_store(at[0], _home(state, at[1]), at[1], naming, report)]
    # Entries of a store take precedence over entries that are made from file names, in whatever folder they are.
    for folder, agent in read:
        _list_the_rest(_home(state, agent), agent, brought[folder], naming, report)
    if not report.problems:
        moved = old.with_name(f"sessions.legacy-{clock.now_ms()}")
        old.rename(moved)
        sync_dir(state)
        report.moved_to = str(moved)
    return report


def _home(state: Path, agent: str) -> Path:
    return Path(sessions_dir(str(state), agent))


def _copy_files(folder: Path, home: Path, report: MigrationReport) -> list[Path]:
    """Copies every file but the store. Returns the new paths of the transcripts."""
    transcripts: list[Path] = []
    for source in sorted(folder.iterdir()):
        if source.name == _STORE or source.is_dir() or source.name.endswith((".lock", ".tmp")):
            continue
        target = home / source.name
        try:
            done = _copy_verified(source, target, report)
        except OSError as error:
            report.problems.append(f"{source}: {error}")
            continue
        if done and target.suffix == ".jsonl":
            transcripts.append(target)
    return transcripts


def _copy_verified(source: Path, target: Path, report: MigrationReport) -> bool:
    data = source.read_bytes()
    digest = hashlib.sha256(data).digest()
    if target.exists():
        # The target may have grown since an earlier migration.
        if hashlib.sha256(target.read_bytes()[: len(data)]).digest() == digest:
            report.present += 1
            return True
        report.problems.append(f"{source}: {target} exists and holds something else")
        return False
    make_private_dir(str(target.parent))
    prepared = write_temporary(target, [data])
    try:
        if hashlib.sha256(prepared.read_bytes()).digest() != digest:
            report.problems.append(f"{source}: the copy differs from the original")
            return False
        status = source.stat()
        os.utime(prepared, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.link(prepared, target)
    finally:
        prepared.unlink(missing_ok=True)
    sync_dir(target.parent)
    report.copied += 1
    return True


def _merge_store(folder: Path, home: Path, agent: str, naming: Mapping[str, str], report: MigrationReport) -> bool:
    """Adds the entries of the old store. False when a store cannot be read; then its folder is left alone."""
    old, current = _read_store(folder / _STORE, report), _read_store(home / _STORE, report)
    if old is None or current is None:
        return False
    legacy = _canonical_entries(old, agent, folder, home, naming)
    merged = dict(current)
    for key, entry in legacy.items():
        if not isinstance(merged.get(key), dict) or updated_at(entry) > updated_at(merged[key]):
            merged[key] = entry
    _save(home, current, merged, report)
    return True


def _list_the_rest(
    home: Path, agent: str, transcripts: list[Path], naming: Mapping[str, str], report: MigrationReport
) -> None:
    current = _read_store(home / _STORE, report)
    if current is None:
        return
    merged = dict(current)
    # The oldest layout had no store.
    listed = {entry.get("sessionId") for entry in merged.values() if isinstance(entry, dict)}
    for path in transcripts:
        if path.stem not in listed and "-topic-" not in path.stem:
            entry = {
                "sessionId": path.stem,
                "updatedAt": path.stat().st_mtime_ns // 1_000_000,
                "sessionFile": str(path),
            }
            merged.setdefault(f"agent:{agent}:imported:{path.stem.lower()}", entry)
    _choose_main(merged, main_session_key(agent, **naming))
    _save(home, current, merged, report)


def _save(home: Path, current: Mapping[str, Any], merged: dict[str, Any], report: MigrationReport) -> None:
    if merged != current:
        report.sessions += sum(merged[key] != current.get(key) for key in merged)
        atomic_replace(home / _STORE, json_text.encode_indented(merged))


def _read_store(path: Path, report: MigrationReport) -> dict[str, Any] | None:
    try:
        values = parse_store(path.read_bytes())
    except FileNotFoundError:
        return {}
    if values is None:
        report.problems.append(f"{path} does not hold a JSON object; mend it or move it away")
    return values


def _canonical_entries(
    old: Mapping[str, Any], agent: str, folder: Path, home: Path, naming: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Returns the old entries under current keys. Of two with one key the newer stays. A session id is required."""
    entries: dict[str, dict[str, Any]] = {}
    for key, value in old.items():
        if not isinstance(value, dict) or not isinstance(value.get("sessionId"), str) or not value["sessionId"].strip():
            continue
        entry, name = normalize_entry(value), legacy_store_key(agent, key, **naming)
        file = entry.get("sessionFile")
        if isinstance(file, str) and Path(file).parent == folder:
            entry["sessionFile"] = str(home / Path(file).name)
        if name not in entries or updated_at(entry) > updated_at(entries[name]):
            entries[name] = entry
    return entries


def _choose_main(merged: dict[str, Any], main: str) -> None:
    """Make the latest direct conversation the main session, unless a main session exists."""
    if isinstance(merged.get(main), dict):
        return
    direct = [
        (updated_at(entry), key)
        for key, entry in merged.items()
        if isinstance(entry, dict) and kind_of(key, entry) == "other" and ":subagent:" not in key
    ]
    if direct:
        _, key = max(direct)
        merged[main] = merged.pop(key) if ":imported:" in key else dict(merged[key])
