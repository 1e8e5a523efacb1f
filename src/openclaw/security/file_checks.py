"""Checks of files and folders: who can read them, who can change them, whose they are, and where links lead.

``fix`` is ``openclaw security audit --fix``. It repairs what can be repaired without taking anything away from its
owner: files and folders are closed to other users, open groups get the allow list, and secrets are masked again.
Everything else needs a decision, and the report says which.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from openclaw.config.agents import agent_ids, workspace_dir
from openclaw.config.keypath import KeyPathError
from openclaw.config.store import ConfigStore
from openclaw.config.validate import ConfigError, ConfigInvalid
from openclaw.findings import Finding
from openclaw.paths import tls_files
from openclaw.security.access_checks import doors
from openclaw.security.audit import RULES, Subject, finding
from openclaw.storage.files.check import Narrowed, narrow

OTHERS_WRITE = 0o022
OTHERS_READ = 0o044
OTHERS = 0o077
MAX_FILES = 200_000
"""A larger state folder is looked at only in part, and the finding says so."""
MAX_NAMED = 5
PROMPT_FILES = (
    *("AGENTS.md", "SOUL.md", "TOOLS.md", "IDENTITY.md", "USER.md", "HEARTBEAT.md", "BOOTSTRAP.md", "MEMORY.md"),
    *("memory.md", "memory", "skills"),
)
_CLOUDS = ("Library/Mobile Documents", "Library/CloudStorage", "iCloud", "Dropbox", "OneDrive", "Google Drive",
           "GoogleDrive", "pCloud", "Nextcloud", "Syncthing")  # fmt: skip


class StateFile(NamedTuple):
    """A file, folder or link in the state folder."""

    path: Path
    facts: os.stat_result

    @property
    def mode(self) -> int:
        return stat.S_IMODE(self.facts.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.facts.st_mode)

    @property
    def is_foreign(self) -> bool:
        """Neither this user nor the administrator owns it."""
        return self.facts.st_uid not in (os.geteuid(), 0)

    def shown(self) -> str:
        return f"{self.path} (mode {self.mode:03o})"


def entry_of(path: str | Path) -> StateFile | None:
    try:
        return StateFile(Path(path), os.lstat(path))
    except OSError:
        return None


def entries(state: Path) -> Iterator[StateFile]:
    """Everything below the state folder. Links are not followed."""
    pending, seen = [state], 0
    while pending:
        try:
            with os.scandir(pending.pop()) as found:
                below = list(found)
        except OSError:
            continue
        for item in below:
            seen += 1
            if seen > MAX_FILES:
                return
            if entry := entry_of(item.path):
                yield entry
                if stat.S_ISDIR(entry.facts.st_mode):
                    pending.append(entry.path)


def state_folder_checks(subject: Subject) -> Iterator[Finding]:
    state = entry_of(subject.state)
    if state is None:
        return
    where = str(subject.state)
    if state.is_link:
        detail = f"{where} leads to {os.path.realpath(where)}; who can change that place has the state"
        yield finding("fs.state_dir.symlink", detail, "make it a folder of its own, or check who owns the target")
        try:
            state = StateFile(subject.state, subject.state.stat())
        except OSError:
            return
    if state.is_foreign:
        detail = f"{where} belongs to the user with the id {state.facts.st_uid}"
        yield finding("fs.state_dir.foreign_owner", detail, f"sudo chown -R $(id -u) {where}")
    rule = ""
    if state.mode & 0o002:
        rule = "fs.state_dir.perms_world_writable"
    elif state.mode & 0o020:
        rule = "fs.state_dir.perms_group_writable"
    elif state.mode & OTHERS:
        rule = "fs.state_dir.perms_readable"
    if rule:
        yield finding(rule, state.shown(), f"chmod 700 {where}")
    above = entry_of(Path(os.path.realpath(where)).parent)
    if above and above.mode & OTHERS_WRITE and not above.mode & stat.S_ISVTX:
        detail = f"{above.shown()} is writable for others, who can move {where} away and put theirs in its place"
        yield finding("fs.parent_dir.perms_writable", detail, f"chmod go-w {above.path}")
    real = os.path.realpath(where)
    if cloud := next((name for name in _CLOUDS if f"/{name}" in real), ""):
        detail = f"{real} is below {cloud}: secrets and conversations are copied, and two copies of a store damage it"
        yield finding("fs.synced_dir", detail, "set OPENCLAW_STATE_DIR to a folder that is not synchronised")


def config_file_checks(subject: Subject) -> Iterator[Finding]:
    files = [("fs.config", subject.snapshot.path), *(("fs.config_include", f) for f in subject.snapshot.includes)]
    for rule, path in files:
        entry = entry_of(path)
        if entry is None:
            continue
        if entry.is_link:
            if rule == "fs.config":
                detail = f"{path} leads to {os.path.realpath(path)}"
                yield finding("fs.config.symlink", detail, "put the file itself there, or check who owns the target")
            entry = entry_of(os.path.realpath(path))
            if entry is None:
                continue
        if rule == "fs.config" and entry.is_foreign:
            detail = f"{entry.shown()} belongs to the user with the id {entry.facts.st_uid}"
            yield finding("fs.config.foreign_owner", detail, f"sudo chown $(id -u) {entry.path}")
        yield from _modes(rule, entry)


def _modes(rule: str, entry: StateFile) -> Iterator[Finding]:
    fix = f"chmod 600 {entry.path}"
    if entry.mode & OTHERS_WRITE:
        yield finding(f"{rule}.perms_writable", entry.shown(), fix)
    elif entry.mode & 0o004:
        yield finding(f"{rule}.perms_world_readable", entry.shown(), fix)
    elif entry.mode & 0o040:
        yield finding(f"{rule}.perms_group_readable", entry.shown(), fix)


def kind_of(path: Path, state: Path) -> str:
    """Which part of the state a file belongs to: the middle of the check ids about it."""
    parts = path.relative_to(state).parts
    if parts[0] in ("credentials", "oauth"):
        return "credentials_dir"
    if parts[0] in ("devices", "identity"):
        return "devices"
    if path.name == "gateway-key.pem":
        return "tls_key"
    if parts[0] == "logs":
        return "log_file"
    if parts[0] == "exec-approvals.json":
        return "exec_approvals"
    if path.name.startswith("auth-profiles.json"):
        return "auth_profiles"
    if path.name.startswith("sessions.json"):
        return "sessions_store"
    return "transcripts" if ".jsonl" in path.name else "state_file"


def state_file_checks(subject: Subject) -> Iterator[Finding]:
    """Looks at every file in the state folder. Files of one kind are one finding."""
    found: dict[str, list[StateFile]] = {}
    config, state = subject.snapshot.config, subject.state
    workspaces = {workspace_dir(config, state, agent) for agent in agent_ids(config)}
    own_files = {Path(subject.snapshot.path), *map(Path, subject.snapshot.includes)}
    for entry in entries(state):
        inside = any(entry.path.is_relative_to(workspace) for workspace in workspaces)
        if entry.path in own_files or (inside and entry.path not in workspaces):
            continue
        if entry.is_link:
            if not Path(os.path.realpath(entry.path)).is_relative_to(os.path.realpath(state)):
                found.setdefault("fs.state_file.symlink", []).append(entry)
        elif entry.is_foreign:
            found.setdefault("fs.state_file.foreign_owner", []).append(entry)
        elif entry.mode & (OTHERS_WRITE | OTHERS_READ):
            what = "perms_writable" if entry.mode & OTHERS_WRITE else "perms_readable"
            rule = f"fs.{kind_of(entry.path, state)}.{what}"
            found.setdefault(rule if rule in RULES else f"fs.state_file.{what}", []).append(entry)
    for rule, some in found.items():
        fix = "openclaw security audit --fix" if ".perms_" in rule else "check it, and remove it if you do not know it"
        yield finding(rule, _listed(some), fix)


def _listed(some: list[StateFile]) -> str:
    more = f" and {len(some) - MAX_NAMED} more" if len(some) > MAX_NAMED else ""
    return ", ".join(entry.shown() for entry in some[:MAX_NAMED]) + more


def named_files(subject: Subject) -> Iterator[tuple[str, Path]]:
    """The files outside the state folder that hold secrets or logs, each with the rule about it."""
    config = subject.snapshot.config
    if config.logging.file:
        yield "fs.log_file.perms_readable", Path(config.logging.file).expanduser()
    if config.gateway.tls.enabled and config.gateway.tls.key_path:
        _, key = tls_files(str(subject.state), config.gateway.tls.cert_path, config.gateway.tls.key_path)
        yield "fs.tls_key.perms_readable", Path(key)
    yield from (("fs.secret_file.perms_readable", Path(name).expanduser()) for name in _secret_files(subject))


def _secret_files(subject: Subject) -> Iterator[str]:
    pending: list[Any] = [subject.snapshot.resolved]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if set(value) == {"file"} and isinstance(value["file"], str):
                yield value["file"]
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def named_file_checks(subject: Subject) -> Iterator[Finding]:
    for rule, path in named_files(subject):
        entry = entry_of(os.path.realpath(path))
        if entry and entry.mode & (OTHERS_READ | OTHERS_WRITE):
            yield finding(rule, entry.shown(), f"chmod 600 {entry.path}")


def workspace_checks(subject: Subject) -> Iterator[Finding]:
    config = subject.snapshot.config
    for agent in agent_ids(config):
        workspace = workspace_dir(config, subject.state, agent)
        root = entry_of(os.path.realpath(workspace))
        if root is None:
            continue
        found = [entry for name in PROMPT_FILES if (entry := entry_of(workspace / name))]
        writable = [entry for entry in (root, *found) if not entry.is_link and entry.mode & OTHERS_WRITE]
        if writable:
            fix = f"chmod go-w {' '.join(str(entry.path) for entry in writable[:MAX_NAMED])}"
            yield finding("fs.workspace.perms_writable", _listed(writable), fix)
        elif root.mode & OTHERS_READ:
            yield finding("fs.workspace.perms_readable", root.shown(), f"chmod 700 {root.path}")
        outside = [one for one in found if not Path(os.path.realpath(one.path)).is_relative_to(root.path)]
        if outside:
            detail = ", ".join(f"{entry.path} leads to {os.path.realpath(entry.path)}" for entry in outside)
            fix = "replace it by the file itself; what lies outside the workspace is not read"
            yield finding("fs.workspace.symlink", detail, fix)


def code_checks(subject: Subject) -> Iterator[Finding]:
    """Extensions and skill folders: who can change them has the Gateway, or the agent."""
    config = subject.snapshot.config
    named = config.plugins.load.get("paths")
    places = [Path(str(text)).expanduser() for text in named] if isinstance(named, list) else []
    code = [file for place in places for file in (place, *(sorted(place.glob("*.py")) if place.is_dir() else ()))]
    code += [Path(text).expanduser() for text in config.skills.load.extra_dirs]
    found = [entry for path in code if (entry := entry_of(os.path.realpath(path)))]
    bad = [entry for entry in found if entry.mode & OTHERS_WRITE or entry.is_foreign]
    if bad:
        fix = f"chmod go-w {' '.join(str(entry.path) for entry in bad[:MAX_NAMED])}, and make sure that they are yours"
        yield finding("plugins.code_perms", _listed(bad), fix)


CHECKS = (state_folder_checks, config_file_checks, state_file_checks, named_file_checks, workspace_checks, code_checks)


# Repairs


class ModeChange(msgspec.Struct, frozen=True, kw_only=True):
    """The mode of one file, changed or not."""

    kind: Literal["chmod"]
    path: str
    ok: bool
    mode: int | msgspec.UnsetType = msgspec.UNSET
    skipped: str | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET


class Fixes(msgspec.Struct, kw_only=True, rename="camel"):
    """The changes, in the shape of the original."""

    ok: bool = True
    state_dir: str = ""
    config_path: str = ""
    config_written: bool = False
    changes: list[str] = []
    actions: list[ModeChange] = []
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
    done.actions += [
        ModeChange(kind="chmod", path=change.path, ok=True, mode=change.after) for change in narrowed.changes
    ]
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
        done.actions.append(ModeChange(kind="chmod", path=str(path), ok=False, skipped="symlink"))
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
        done.actions.append(ModeChange(kind="chmod", path=str(path), ok=False, error=str(error.strerror)))
    else:
        done.actions.append(ModeChange(kind="chmod", path=str(path), ok=True, mode=mode))
