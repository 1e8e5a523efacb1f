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
from openclaw.security.file_checks import OTHERS, entry_of, named_files
from openclaw.storage.files.permissions import Narrowed, narrow


class Fixes(msgspec.Struct, kw_only=True, rename="camel"):
    """What was changed, in the shape of the original."""

    ok: bool = True
    state_dir: str = ""
    config_path: str = ""
    config_written: bool = False
    changes: list[str] = []
    actions: list[dict[str, Any]] = []
    more_actions: int = 0
    """Changed files that are counted and not listed."""
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
    narrowed = narrow(str(subject.state)) if subject.state.is_dir() else Narrowed()
    done.actions += [_action(change.path, mode=change.after, ok=True) for change in narrowed.changes]
    done.more_actions = narrowed.count - len(narrowed.changes)
    done.errors += narrowed.failed
    for path in (Path(subject.snapshot.path), *map(Path, subject.snapshot.includes)):
        _close(path, done)
    for path in dict.fromkeys(path for _, path in named_files(subject)):
        _close(path, done)


def _close(path: Path, done: Fixes) -> None:
    """Takes the rights of other users on one file away. A link is left alone."""
    entry = entry_of(path)
    if entry is None or not entry.mode & OTHERS:
        return
    if entry.is_link:
        done.actions.append(_action(str(path), skipped="symlink"))
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
        done.actions.append(_action(str(path), error=str(error.strerror)))
    else:
        done.actions.append(_action(str(path), mode=mode, ok=True))


def _action(path: str, **outcome: Any) -> dict[str, Any]:
    return {"kind": "chmod", "path": path, "ok": False, **outcome}
