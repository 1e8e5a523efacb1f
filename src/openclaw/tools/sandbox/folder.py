"""The folders of sandboxes: making and filling one, listing them, and removing those that nobody uses.

A sandbox's folder is written by programs that nobody trusts. So everything in it is opened with the opener, which
follows no link. Beside each folder is a record, ``<folder>.json``; the time of its last change is the last use.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from openclaw.config.schema.agents import SandboxPrune
from openclaw.opener import FileMissing, PathOpener, PathRefused
from openclaw.paths import make_private_dir
from openclaw.tools.sandbox.launch import write_common_files
from openclaw.tools.sandbox.limits import remove_control_group
from openclaw.tools.sandbox.plan import SandboxPlan, group_name

SEEDED = ("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "BOOTSTRAP.md", "HEARTBEAT.md")
"""Files of the workspace that a new sandbox gets a copy of."""
SKILLS = "skills"
MOST_SKILL_FILES = 200
LARGEST_SKILL_FILE = 2 * 1024**2
_MOST_LOOKED_AT = 10_000
_HOUR_MS = 3_600_000


class SandboxRecord(msgspec.Struct, rename="camel", kw_only=True):
    """What is known about a sandbox that was used."""

    scope_key: str
    scope: str
    agent_id: str
    session_key: str
    """The session that used it first."""
    backend: str
    workspace_access: str
    created_at_ms: int
    folder: str = ""
    last_used_at_ms: int = 0


def use_folder(plan: SandboxPlan, opener: PathOpener, now_ms: int) -> None:
    """Makes the sandbox's folder, fills a new one, and notes its use. Blocks."""
    make_private_dir(str(plan.root))
    write_common_files(plan.root)
    make_private_dir(str(plan.folder))
    record = _record_path(plan.own_folder)
    if not record.exists():
        if plan.access != "rw":
            _seed(plan, opener)
        fresh = SandboxRecord(
            scope_key=plan.scope_key,
            scope=plan.scope,
            agent_id=plan.agent_id,
            session_key=plan.session_key,
            backend=plan.backend,
            workspace_access=plan.access,
            created_at_ms=now_ms,
        )
        record.write_bytes(msgspec.json.encode(fresh))
        record.chmod(0o600)
    os.utime(record, (now_ms / 1000, now_ms / 1000))


def _record_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def _seed(plan: SandboxPlan, opener: PathOpener) -> None:
    workspace = PathOpener(plan.workspace, confine=True, links=False)
    for name in SEEDED:
        with contextlib.suppress(PathRefused):
            copy_file(workspace, name, opener, name, replace=False)


def copy_file(source: PathOpener, path: str, target: PathOpener, place: str, *, replace: bool) -> None:
    """Copies a file into the sandbox, unless it is there already. Raises ``PathRefused``."""
    with source.open_read(path) as file:
        data = file.read(LARGEST_SKILL_FILE + 1)
    if len(data) > LARGEST_SKILL_FILE:
        return
    try:
        with target.open_read(place) as file:
            if not replace or file.read(LARGEST_SKILL_FILE + 1) == data:
                return
    except FileMissing:
        pass
    with target.open_write_atomic(place) as file:
        file.write(data)


def copy_skills(plan: SandboxPlan, opener: PathOpener, folders: Sequence[str]) -> None:
    """Copies the skills of the workspace into the sandbox. ``folders`` are relative to the workspace. Blocks."""
    workspace = PathOpener(plan.workspace, confine=True, links=False)
    for folder in folders:
        for count, path in enumerate(_files_below(workspace, folder)):
            if count >= MOST_SKILL_FILES:
                break
            with contextlib.suppress(PathRefused):
                copy_file(workspace, path, opener, path, replace=True)


def _files_below(opener: PathOpener, folder: str, depth: int = 0) -> Iterator[str]:
    try:
        names = opener.scan(folder)
    except PathRefused:
        return
    for name, kind in names:
        if kind == "file":
            yield f"{folder}/{name}"
        elif kind == "folder" and depth < 5 and not name.startswith("."):
            yield from _files_below(opener, f"{folder}/{name}", depth + 1)


# Listing and removing


def list_sandboxes(root: Path) -> list[SandboxRecord]:
    """The sandboxes below a root, the last used one first. Blocks."""
    found: list[SandboxRecord] = []
    for path in root.glob("*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            record = msgspec.json.decode(path.read_bytes(), type=SandboxRecord)
            record.folder = str(path.with_suffix(""))
            record.last_used_at_ms = int(path.stat().st_mtime * 1000)
            found.append(record)
    return sorted(found, key=lambda record: -record.last_used_at_ms)


def remove_sandbox(record: SandboxRecord) -> None:
    """Removes the folder with everything in it, and its record. Raises ``OSError``. Blocks."""
    folder = Path(record.folder)
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    remove_control_group(group_name(folder))
    _record_path(folder).unlink(missing_ok=True)


def prune(root: Path, rules: SandboxPrune, now_ms: int) -> list[SandboxRecord]:
    """Removes sandboxes that are idle or old, unless they hold work, and returns them. Blocks."""
    removed: list[SandboxRecord] = []
    for record in list_sandboxes(root):
        idle, age = now_ms - record.last_used_at_ms, now_ms - record.created_at_ms
        is_idle = bool(rules.idle_hours) and idle >= rules.idle_hours * _HOUR_MS
        # An old one may be in use at this moment.
        is_old = bool(rules.max_age_days) and age >= rules.max_age_days * 24 * _HOUR_MS and idle >= _HOUR_MS
        if (is_idle or is_old) and not holds_work(record):
            with contextlib.suppress(OSError):
                remove_sandbox(record)
                removed.append(record)
    return removed


def holds_work(record: SandboxRecord) -> bool:
    """Whether the folder has files that were not put there when it was made, or that were changed since. Blocks."""
    looked_at = 0
    for place, folders, files in os.walk(record.folder):
        if place == record.folder:
            folders[:] = [name for name in folders if name != SKILLS]
        for name in files:
            looked_at += 1
            path = Path(place, name)
            seeded = place == record.folder and name in SEEDED
            if not seeded or looked_at > _MOST_LOOKED_AT:
                return True
            if path.lstat().st_mtime * 1000 > record.created_at_ms + 2000:
                return True
    return False
