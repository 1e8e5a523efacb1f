"""Migration of sessions from older layouts (``<state>/sessions/`` and ``<state>/sessions/<agent>/``).

Files are copied and compared by hash. Only then the old folder is renamed; it is never deleted. After an interruption
the next start begins again and skips the files that are copied already.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from openclaw import json_text
from openclaw.clock import Clock
from openclaw.paths import make_private_dir, normalize_agent_id, sessions_dir
from openclaw.sessions.entry import normalize_entry
from openclaw.sessions.keys import RESERVED_KEYS, canonicalize_main_alias, kind_of, main_session_key
from openclaw.storage.files.disk import atomic_replace, sync_dir, write_beside
from openclaw.storage.files.session_store import updated_at
from openclaw.storage.files.store_file import parse_store

_STORE = "sessions.json"


class MigrationReport(msgspec.Struct, kw_only=True):
    copied: int = 0
    present: int = 0
    """The number of files that an earlier, interrupted migration had copied."""
    sessions: int = 0
    """The number of entries that were added to or renewed in the stores."""
    problems: list[str] = msgspec.field(default_factory=list)
    """What could not be migrated. While there is a problem, the old folder stays where it is."""
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
    prepared = write_beside(target, [data])
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
    """Makes the latest direct conversation the main session, if there is no main session."""
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
