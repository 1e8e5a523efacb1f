"""``openclaw security audit --fix``: repairs what can be repaired without taking anything away from its owner.

Files and folders are closed to other users, open groups get the allow list, and secrets are masked again. Everything
else needs a decision, and the report says which.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from openclaw.config.keypath import KeyPathError
from openclaw.config.store import ConfigStore
from openclaw.config.validate import ConfigError, ConfigInvalid
from openclaw.security.access_checks import doors
from openclaw.security.audit import Subject
from openclaw.security.file_checks import OTHERS, entries, entry_of, named_files

MAX_ACTIONS = 500
"""More changed files than this are counted and not listed."""


class Fixes(msgspec.Struct, kw_only=True, rename="camel"):
    """What was changed, in the shape of the original."""

    ok: bool = True
    state_dir: str = ""
    config_path: str = ""
    config_written: bool = False
    changes: list[str] = []
    actions: list[dict[str, Any]] = []
    more_actions: int = 0
    errors: list[str] = []


def fix(subject: Subject) -> Fixes:
    """Repairs, and returns what was done. Blocking."""
    done = Fixes(state_dir=str(subject.state), config_path=subject.snapshot.path)
    _fix_modes(subject, done)
    _fix_config(subject, done)
    done.ok = not done.errors
    return done


def _fix_config(subject: Subject, done: Fixes) -> None:
    wanted: dict[str, tuple[str, str]] = {}
    if subject.snapshot.config.logging.redact_sensitive == "off":
        wanted["logging.redactSensitive"] = ("off", "tools")
    wanted |= {
        d.group_path: ("open", "allowlist") for d in doors(subject.snapshot.resolved) if d.group_policy == "open"
    }
    if not wanted:
        return
    store = ConfigStore(subject.snapshot.path, environ=subject.environ)
    for path, (before, after) in wanted.items():
        try:
            store.set_path(path, after, even_if_refused=True)
        except ConfigInvalid as error:
            done.errors.append(f"{path} is unchanged: {'; '.join(map(str, error.issues))}")
        except (ConfigError, KeyPathError, OSError) as error:
            done.errors.append(f"{path} is unchanged: {error}")
        else:
            done.config_written = True
            done.changes.append(f"{path}={before} -> {after}")


def _fix_modes(subject: Subject, done: Fixes) -> None:
    named = [subject.state, Path(subject.snapshot.path), subject.state / "credentials"]
    for path in named:
        _close(path, done, told=True)
    for path in (*map(Path, subject.snapshot.includes), *(path for _, path in named_files(subject))):
        _close(path, done)
    for entry in entries(subject.state):
        if not entry.is_link and entry.mode & OTHERS:
            _close(entry.path, done)


def _close(path: Path, done: Fixes, *, told: bool = False) -> None:
    """Takes the rights of other users away. A link is left alone. ``told`` lists it even if there is nothing to do."""
    entry = entry_of(path)
    action: dict[str, Any] = {"kind": "chmod", "path": str(path), "ok": False}
    if entry is None:
        skipped = "missing"
    elif entry.is_link:
        skipped = "symlink"
    elif not entry.mode & OTHERS:
        skipped = "already"
    elif entry.facts.st_uid != os.geteuid():
        skipped = "not-owner"
        done.errors.append(f"{path} belongs to another user and stays as it is")
    else:
        skipped = ""
    if skipped:
        if told or skipped == "not-owner":
            _list(done, {**action, "skipped": skipped})
        return
    try:
        # The descriptor is of this very file, even if somebody puts a link in its place meanwhile.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = stat.S_IMODE(os.fstat(handle).st_mode) & ~OTHERS
            os.fchmod(handle, mode)
        finally:
            os.close(handle)
    except OSError as error:
        done.errors.append(f"{path}: {error.strerror}")
        _list(done, {**action, "error": str(error.strerror)})
    else:
        _list(done, {**action, "mode": mode, "ok": True})


def _list(done: Fixes, action: dict[str, Any]) -> None:
    if len(done.actions) < MAX_ACTIONS:
        done.actions.append(action)
    else:
        done.more_actions += 1
