"""The configuration of a running process: the last valid one, kept current, and the only place that writes the file."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from openclaw import redact
from openclaw.clock import Clock, SystemClock
from openclaw.config.edit import (
    added,
    editable,
    generated_token,
    merged_text,
    minimal_text,
    remove_value,
    saved_text,
    set_value,
)
from openclaw.config.keypath import MISSING, KeyPath, format_path, get_path, parse_path
from openclaw.config.load import Snapshot, parse_config, parse_source, read_config
from openclaw.config.schema import Config
from openclaw.config.secrets import known_secrets, restored
from openclaw.config.validate import ConfigConflict, ConfigError, ConfigInvalid, Issue, UnknownConfigKey
from openclaw.paths import make_private_dir

log = logging.getLogger("openclaw.config")

POLL_S = 0.5

_Mark: TypeAlias = tuple[int, int, int] | None
Subscriber: TypeAlias = Callable[[Config, Config, list[str]], Awaitable[None] | None]
ReloadAction: TypeAlias = Literal["none", "hot", "restart"]
# fmt: off
# These sections are read at every use, so a change needs no action.
_READ_LIVE = frozenset((
    "$schema", "acp", "agents", "approvals", "audio", "auth", "bindings", "branchSummary", "broadcast", "commands",
    "compaction", "logging", "mcp", "media", "memory", "messages", "meta", "models", "retry", "secrets", "session",
    "skills", "talk", "tools", "ui", "update", "wizard",
))
# fmt: on
_RESTARTED_IN_PLACE = frozenset({"hooks", "cron", "browser", "channels", "web"})
_LIVE_GATEWAY = ("gateway.remote", "gateway.reload")
_HEARTBEAT = re.compile(r"agents\.(defaults\.heartbeat|list)(\.|\[|$)")
BACKUPS = 4
T = TypeVar("T")
MOST_KEPT = 256


class ConfigStore:
    """Reads, watches and writes one configuration file.

    The writing methods block on the disk: call them in a thread. They change the file only; ``reload`` or the watcher
    then makes the change effective, in the event loop, for everyone who subscribed.
    """

    def __init__(self, path: str, clock: Clock | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._environ = environ
        self.snapshot = Snapshot(path=path, exists=False)
        """The file as it was last read, valid or not."""
        self._use(self.snapshot)
        self.restored = ""
        """Says that the file was gone and its last good copy took its place. Empty when that did not happen."""
        self._subscribers: list[Subscriber] = []
        self._seen: dict[str, _Mark] = {}
        self._reported: object = None
        self._reloading = asyncio.Lock()
        self._writing = threading.Lock()

    def _use(self, snapshot: Snapshot) -> None:
        self._good = snapshot
        self.current: Config = snapshot.config
        """The last configuration that was valid."""
        redact.register(known_secrets(snapshot.resolved, self._environ))

    # Reading

    def load_or_create(self) -> Snapshot:
        """Reads the file at the start of a process. It writes the file, or the Gateway's secret in it, when missing.

        The last good copy takes the place of a file that is gone, and is used in place of one that is not valid.
        Without a copy it raises ConfigInvalid. Whoever starts a Gateway with it looks at ``refusals`` first.
        """
        self.restore_if_gone()
        before = self._signature([])
        snapshot = read_config(self.path, self._environ)
        # A crash or a full disk leaves an empty file; it does not mean that every default is wanted.
        blank = snapshot.exists and not (snapshot.raw or "").strip()
        rescue = read_config(self._last_good_path, self._environ) if blank or not snapshot.valid else snapshot
        lost = blank and rescue.exists and rescue.valid
        if not lost and (not snapshot.exists or (snapshot.valid and self._lacks_secret(snapshot.config))):
            snapshot = self._with_generated_token()
            before = self._signature([])
        self._seen = self._signature(snapshot.includes, before)
        self.snapshot = snapshot
        if snapshot.valid and not lost:
            self._use(snapshot)
            if not snapshot.refusals:
                self._keep_good_copy(snapshot)
            return snapshot
        if not (rescue.exists and rescue.valid):
            raise ConfigInvalid(snapshot.issues)
        self._use(rescue)
        self._report(snapshot, "the last good configuration is used")
        return snapshot

    async def reload(self) -> bool:
        """Reads the file again and makes it effective. It returns False, and changes nothing, when it is not valid."""
        async with self._reloading:
            # The signature is taken before the file is read, so that a change in between is noticed later.
            before = self._signature(self.snapshot.includes)
            snapshot = await asyncio.to_thread(read_config, self.path, self._environ)
            self.snapshot = snapshot
            self._seen = self._signature(snapshot.includes, before)
            # A file that is gone or empty is being replaced; it does not mean that every default is wanted.
            if not snapshot.valid or snapshot.refusals or not (snapshot.raw or "").strip():
                self._report(snapshot, "the configuration in use stays")
                return False
            old = self._good
            self._use(snapshot)
            self._reported = None
            self.log_warnings()
            await asyncio.to_thread(self._keep_good_copy, snapshot)
            changed = changed_paths(old.translated, snapshot.translated)
            if changed:
                await self._tell(old.config, snapshot.config, changed)
            return True

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Calls back with (old, new, changed key paths) after every change. The returned function ends this."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback) if callback in self._subscribers else None

    async def watch(self) -> None:
        """Reloads when the file, or one it includes, has changed and then been quiet. It runs until it is cancelled."""
        while True:
            await self._clock.sleep(POLL_S)
            found = self._signature(self.snapshot.includes)
            if found == self._seen or self.current.gateway.reload.mode == "off":
                continue
            while True:
                await self._clock.sleep(self.current.gateway.reload.debounce_ms / 1000)
                again = self._signature(self.snapshot.includes)
                if again == found:
                    break
                found = again
            await self.reload()

    async def _tell(self, old: Config, new: Config, changed: list[str]) -> None:
        for callback in list(self._subscribers):
            try:
                result = callback(old, new, changed)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                log.exception(
                    "a part of the Gateway failed to take over the new configuration (%s)", ", ".join(changed)
                )

    @property
    def refusals(self) -> list[Issue]:
        """The settings in use that a Gateway must not start with."""
        return self._good.refusals

    def log_warnings(self) -> None:
        """Logs what is set and has no effect, and other doubtful settings."""
        for warning in self._good.warnings:
            log.warning("%s: %s", self.path, warning)

    def _keep_good_copy(self, snapshot: Snapshot) -> None:
        text = json.dumps(snapshot.merged, indent=2, ensure_ascii=False) if snapshot.includes else snapshot.raw or ""
        try:
            if not Path(self._last_good_path).is_file() or Path(self._last_good_path).read_text("utf-8") != text:
                write_private(self._last_good_path, text)
        except (OSError, UnicodeError) as error:
            log.warning("cannot keep a copy of the good configuration: %s", error)

    def _report(self, snapshot: Snapshot, consequence: str) -> None:
        """Logs what is wrong, once per state of the file."""
        found = [*snapshot.issues, *snapshot.refusals]
        state = (snapshot.hash, tuple(map(str, found)))
        if state == self._reported:
            return
        self._reported = state
        problems = "; ".join(map(str, found[:5])) or ("it is empty" if snapshot.exists else "it is gone")
        log.warning("%s cannot be used, %s: %s", self.path, consequence, problems)

    def _signature(self, includes: list[str], known: dict[str, _Mark] | None = None) -> dict[str, _Mark]:
        """Returns per file a mark that tells whether it has changed. Marks in ``known`` are taken over."""
        marks: dict[str, _Mark] = {}
        for path in (self.path, *includes):
            if known and path in known:
                marks[path] = known[path]
                continue
            try:
                status = Path(path).stat()
                marks[path] = (status.st_mtime_ns, status.st_ino, status.st_size)
            except OSError:
                marks[path] = None
        return marks

    def restore_if_gone(self) -> None:
        """Puts the last good copy in the place of a file that somebody deleted."""
        copy = Path(self._last_good_path)
        if os.path.lexists(self.path) or not copy.is_file() or not read_config(str(copy), self._environ).valid:
            return
        write_private(self.path, copy.read_text("utf-8"))
        self.restored = f"{self.path} was gone. It was restored from {copy.name}."
        log.error("%s", self.restored)

    def restore_if_broken(self) -> None:
        """Puts the last good copy in the place of a file that is not valid, which is kept beside it."""
        copy = Path(self._last_good_path)
        if not os.path.lexists(self.path) or read_config(self.path, self._environ).valid:
            return
        if not copy.is_file() or not read_config(str(copy), self._environ).valid:
            return
        aside = f"{self.path}.broken-{self._clock.now_ms()}"
        Path(self.path).replace(aside)
        write_private(self.path, copy.read_text("utf-8"))
        self.restored = f"{self.path} was not valid. {copy.name} took its place, and it is kept as {aside}."

    @property
    def _last_good_path(self) -> str:
        return f"{self.path}.last-good"

    # The Gateway's secret

    def _lacks_secret(self, config: Config) -> bool:
        gateway = config.gateway
        return not (
            gateway.auth.token
            or gateway.auth.password
            or gateway.auth.mode not in (None, "token")
            or gateway.mode == "remote"
            or self._environ.get("OPENCLAW_GATEWAY_TOKEN")
            or self._environ.get("OPENCLAW_GATEWAY_PASSWORD")
        )

    def _with_generated_token(self) -> Snapshot:
        def change(before: Snapshot) -> str:
            if not (before.raw or "").strip():
                return minimal_text(self._environ)
            if not before.valid or not self._lacks_secret(before.config):
                return before.raw or ""
            return set_value(editable(before), ("gateway", "auth", "token"), generated_token())

        return self._write(change)

    # Writing

    def write_raw(self, raw: str, base_hash: str | None) -> Snapshot:
        """Replaces the content of the file by what a client was shown and may have changed."""

        def change(before: Snapshot) -> str:
            self._check_base(before, base_hash)
            return saved_text(raw, before)

        return self._write(change)

    def merge_patch(self, patch: dict[str, Any], base_hash: str | None) -> Snapshot:
        """Merges a patch as RFC 7386 says: null removes, objects merge, everything else replaces."""

        def change(before: Snapshot) -> str:
            self._check_base(before, base_hash)
            return merged_text(before, restored(patch, before.parsed))

        return self._write(change)

    def set_path(
        self, path: str, value: Any, *, even_if_refused: bool = False, even_if_unknown: bool = True
    ) -> Snapshot:
        """Sets one key, and makes the objects on the way to it.

        A value that a Gateway does not start with is written only with ``even_if_refused``, and a key that nothing
        reads only with ``even_if_unknown``.
        """
        where = parse_path(path)

        def change(before: Snapshot) -> str:
            filled = restored(value, get_path(before.parsed, where, MISSING), where)
            return set_value(editable(before), where, filled)

        return self._write(change, repair=True, even_if_refused=even_if_refused, even_if_unknown=even_if_unknown)

    def unset_path(self, path: str) -> Snapshot:
        """Removes one key. It raises KeyError when the file does not have it."""
        where = parse_path(path)

        def change(before: Snapshot) -> str:
            if get_path(before.parsed, where, MISSING) is MISSING:
                if get_path(before.merged, where, MISSING) is not MISSING:
                    raise ConfigError(f"{format_path(where)} comes from an included file; remove it there")
                raise KeyError(format_path(where))
            text = remove_value(editable(before), where)
            in_object = isinstance(get_path(before.parsed, where[:-1]), dict)
            while in_object and get_path(parse_source(text)[0], where, MISSING) is not MISSING:
                text = remove_value(text, where)  # The key was written twice.
            return text

        return self._write(change, repair=True)

    def _check_base(self, before: Snapshot, base_hash: str | None) -> None:
        if not before.exists:
            return
        if not base_hash:
            raise ConfigConflict("config base hash required; read the configuration again and send its hash")
        if base_hash != before.hash:
            raise ConfigConflict("config changed since last load; read the configuration again and repeat the change")

    def _write(
        self,
        change: Callable[[Snapshot], str],
        *,
        repair: bool = False,
        even_if_refused: bool = False,
        even_if_unknown: bool = True,
    ) -> Snapshot:
        """Makes one change to the file on disk, if the result is valid.

        With ``repair``, a file that is not valid may also get fewer faults, so that they can be mended one by one.
        """
        with self._writing, exclusive(self.path):
            self.restore_if_gone()
            before = read_config(self.path, self._environ)
            text = change(before)
            after = parse_config(self.path, text, self._environ)
            improves = not added(before.issues, after.issues) and len(after.issues) < len(before.issues)
            if not after.valid and not (repair and improves):
                raise ConfigInvalid(after.issues)
            if made := added(before.mistakes, after.mistakes):
                raise ConfigInvalid(made)
            if not even_if_refused and (made := added(before.refusals, after.refusals)):
                raise ConfigInvalid(made)
            if not even_if_unknown and (made := added(before.unknown, after.unknown)):
                raise UnknownConfigKey(made)
            if text != before.raw:
                keep_backups(self.path)
                write_private(self.path, text)
            return after


def reload_action(changed_paths: Iterable[str]) -> ReloadAction:
    """Returns the strongest action that any of the changes needs. An unknown key needs a restart."""
    actions = {_action(path) for path in changed_paths}
    return "restart" if "restart" in actions else "hot" if "hot" in actions else "none"


def _action(path: str) -> ReloadAction:
    if path.startswith(_LIVE_GATEWAY):
        return "none"
    if _HEARTBEAT.match(path):
        return "hot"
    section = str(parse_path(path)[0])
    if section in _READ_LIVE:
        return "none"
    return "hot" if section in _RESTARTED_IN_PLACE else "restart"


def changed_paths(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns the key paths whose values differ. A list counts as one value."""
    return [format_path(path) for path in _changes(old, new, ())]


def _changes(old: Any, new: Any, path: KeyPath) -> list[KeyPath]:
    if isinstance(old, dict) and isinstance(new, dict):
        found: list[KeyPath] = []
        for key in dict.fromkeys([*old, *new]):
            found += _changes(old.get(key), new.get(key), (*path, key))
        return found
    return [] if old == new else [path]


def write_private(path: str, text: str) -> None:
    """Replaces the file atomically. It is synced to disk when this returns, and readable by its owner only."""
    target = Path(path)
    # A link stays a link, and the file it points to is replaced: dotfiles may be kept elsewhere.
    target = target.resolve() if target.is_symlink() else target
    make_private_dir(str(target.parent))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def keep_backups(path: str) -> None:
    """Copies the file to ``.bak``, after the older copies have moved to ``.bak.1`` … ``.bak.4``."""
    current = Path(path)
    try:
        data = current.read_bytes()
    except FileNotFoundError:
        return
    names = [f"{path}.bak", *(f"{path}.bak.{number}" for number in range(1, BACKUPS + 1))]
    for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
        with contextlib.suppress(FileNotFoundError):
            Path(newer).replace(older)
    descriptor = os.open(names[0], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)


@contextlib.contextmanager
def exclusive(path: str) -> Generator[None]:
    """Keeps other processes from writing this configuration, by a lock on its folder."""
    folder = make_private_dir(str(Path(path).parent))
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Derived:
    """Keeps values that were worked out from a configuration until a reload replaces the ``Config`` object.

    A turn needs some of them many times (its tools, its workspace); rebuilding them took a tenth of the turn.
    """

    def __init__(self) -> None:
        self._config: Config | None = None
        self._made: dict[Hashable, Any] = {}

    def of(self, config: Config, key: Hashable, make: Callable[[], T]) -> T:
        if config is not self._config:
            self._config, self._made = config, {}
        if key not in self._made:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            self._made[key] = make()
        return self._made[key]
