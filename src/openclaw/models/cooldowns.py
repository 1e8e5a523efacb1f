"""Which credentials rest after failed calls, and until when.

``usageStats`` of ``auth-profiles.json`` keeps it across restarts. A key from the config or the environment has an entry
there too, under the first digits of its hash.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.clock import Clock
from openclaw.config.store import write_private
from openclaw.models.base import Credential, ErrorKind, ModelError
from openclaw.paths import make_private_dir

if TYPE_CHECKING:
    from openclaw.config.schema.models import AuthCooldowns

log = logging.getLogger(__name__)

FIRST_REST_MS = 60_000
REST_FACTOR = 5
LONGEST_REST_MS = 3_600_000
HOUR_MS = 3_600_000
FAILURE_WRITE_S = 0.05
USE_WRITE_S = 60.0
"""``lastUsed`` is written at most this often."""
MAX_FILE_CHARS = 1 << 20
REASONS: dict[ErrorKind, str] = {
    "auth": "auth",
    "billing": "billing",
    "rate_limit": "rate_limit",
    "overloaded": "overloaded",
    "timeout": "timeout",
    "network": "network",
    "format": "model_not_found",
    "other": "unknown",
}
"""The names of failures in the file."""
_KIND_OF: dict[str, ErrorKind] = {reason: kind for kind, reason in REASONS.items()}
_OF_ACCOUNT = ("auth", "billing", "network")
"""Failures that concern every model of a credential. The others concern the model that was asked."""


class CredentialStats(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What ``usageStats`` holds about one credential. All times are in milliseconds since 1970."""

    last_used: int = 0
    error_count: int = 0
    """Failures in a row. A success sets it to 0."""
    failure_counts: dict[str, int] = {}
    last_failure_at: int = 0
    cooldown_until: int = 0
    cooldown_reason: str = ""
    cooldown_model: str = ""
    """The model that rests. Empty: all models of the credential rest."""
    disabled_until: int = 0
    disabled_reason: str = ""

    def rests_until(self, model: str) -> int:
        """The end of the rest for calls to ``model`` (``provider/id``). It may be past."""
        cooldown = self.cooldown_until if self.cooldown_model in ("", model) else 0
        return max(cooldown, self.disabled_until)

    def latest_end(self) -> int:
        """The end of the rest of any of its models."""
        return max(self.cooldown_until, self.disabled_until)

    def reason(self) -> str:
        """Why it rests, in the file's words."""
        return self.disabled_reason if self.disabled_until > self.cooldown_until else self.cooldown_reason

    def kind(self) -> ErrorKind:
        return _KIND_OF.get(self.reason(), "other")


_FIELDS = frozenset(CredentialStats.__struct_encode_fields__)


def rest_ms(failures: int) -> int:
    """The rest after this many failures in a row: 1, 5, 25 and at most 60 minutes."""
    return min(LONGEST_REST_MS, FIRST_REST_MS * REST_FACTOR ** min(max(failures, 1) - 1, 3))


def billing_rest_ms(failures: int, provider: str, settings: AuthCooldowns) -> int:
    """The rest of an account with nothing left to pay with. It doubles with each failure."""
    first = settings.billing_backoff_hours_by_provider.get(provider, settings.billing_backoff_hours)
    return int(min(settings.billing_max_hours, first * 2 ** min(max(failures, 1) - 1, 10)) * HOUR_MS)


def after_failure(
    stats: CredentialStats, error: ModelError, provider: str, model: str, now_ms: int, settings: AuthCooldowns
) -> CredentialStats:
    """The stats after a failed call. Calls that fail together count once: who rests already is not counted again."""
    if stats.rests_until(model) > now_ms:
        return stats
    if now_ms - stats.last_failure_at > settings.failure_window_hours * HOUR_MS:
        stats = msgspec.structs.replace(stats, error_count=0, failure_counts={})
    reason = REASONS.get(error.kind, "unknown")
    counts = {**stats.failure_counts, reason: stats.failure_counts.get(reason, 0) + 1}
    counted: dict[str, Any] = {
        "error_count": stats.error_count + 1,
        "failure_counts": counts,
        "last_failure_at": now_ms,
    }
    if error.kind == "billing":
        until = now_ms + billing_rest_ms(counts[reason], provider, settings)
        return msgspec.structs.replace(stats, **counted, disabled_until=until, disabled_reason=reason)
    pause = max(rest_ms(counted["error_count"]), min(LONGEST_REST_MS, int((error.retry_after_s or 0) * 1000)))
    # A second model that fails while the first one rests shows that the credential itself is the cause.
    alone = error.kind not in _OF_ACCOUNT and stats.cooldown_until <= now_ms
    return msgspec.structs.replace(
        stats,
        **counted,
        cooldown_until=now_ms + pause,
        cooldown_reason=reason,
        cooldown_model=model if alone else "",
    )


class Cooldowns:
    """The stats of all credentials in memory. Changes are written a moment later, by a thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stats: dict[Credential, CredentialStats] = {}
        self._last_good: dict[str, dict[str, str]] = {}
        """The last credential that worked, by file and provider."""
        self._latest_end = 0
        """The end of the last rest. After it nothing needs to be looked up."""
        self._changed: dict[str, set[str]] = {}
        """Credentials whose stats are not written yet, by file."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self.wrote: Callable[[str], None] = lambda file: None
        """Told of each file that was written."""

    @property
    def none_rests(self) -> bool:
        return self._latest_end <= self._clock.now_ms()

    def of(self, credential: Credential) -> CredentialStats:
        return self._stats.get(credential) or CredentialStats()

    def rests_until(self, credential: Credential, model: str) -> int:
        """The end of the credential's rest for this model. 0: it does not rest."""
        if self._latest_end == 0 or self.none_rests:
            return 0
        until = self.of(credential).rests_until(model)
        return until if until > self._clock.now_ms() else 0

    def take(self, file: str, found: Mapping[str, CredentialStats]) -> None:
        """Takes over what a file says. Stats that are not written yet outrank it."""
        for name, stats in found.items():
            if name not in self._changed.get(file, ()):
                self._keep(Credential(name, file), stats)

    def failed(self, credential: Credential, error: ModelError, provider: str, model: str, settings: Any) -> None:
        before = self.of(credential)
        after = after_failure(before, error, provider, model, self._clock.now_ms(), settings)
        if after is not before:
            self._keep(credential, after)
            self._note(credential, FAILURE_WRITE_S)

    def succeeded(self, credential: Credential, provider: str, began_ms: int) -> None:
        """Ends the rest, unless the credential failed after this call began."""
        stats = self._stats.get(credential)
        if stats is None and not credential.stored:
            return
        stats = stats or CredentialStats()
        if stats.last_failure_at > began_ms:
            return
        now = self._clock.now_ms()
        failed = stats.error_count or stats.cooldown_until or stats.disabled_until
        # A key that is not stored in the file needs no entry while it works.
        self._keep(credential, CredentialStats(last_used=now if credential.stored else 0))
        if credential.stored:
            self._last_good.setdefault(credential.file, {})[provider] = credential.id
        if failed or credential.stored:
            self._note(credential, FAILURE_WRITE_S if failed else USE_WRITE_S)

    def _keep(self, credential: Credential, stats: CredentialStats) -> None:
        self._stats[credential] = stats
        self._latest_end = max(self._latest_end, stats.cooldown_until, stats.disabled_until)

    # Writing

    def _note(self, credential: Credential, delay_s: float) -> None:
        file = credential.file
        if not file:
            return
        self._changed.setdefault(file, set()).add(credential.id)
        loop, timer = asyncio.get_running_loop(), self._timers.get(file)
        due = loop.time() + delay_s
        if timer is not None and timer.when() <= due:
            return
        if timer is not None:
            timer.cancel()
        self._timers[file] = loop.call_at(due, self._begin_write, file)

    def _begin_write(self, file: str) -> None:
        self._timers.pop(file, None)
        task = asyncio.ensure_future(self._write(file))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, file: str) -> None:
        stats = {name: self.of(Credential(name, file)) for name in self._changed.get(file, ())}
        good = dict(self._last_good.get(file, {}))
        try:
            await asyncio.to_thread(edit_profiles, file, lambda document: put_stats(document, stats, good))
        except (OSError, UnreadableProfiles) as error:
            log.warning("the rests of credentials are not kept in %s: %s", file, error)
            return
        changed = self._changed.pop(file, set())
        # What changed during the write is written by the timer that the change has set.
        later = {name for name in changed if self.of(Credential(name, file)) is not stats.get(name)}
        if later:
            self._changed[file] = later
        self.wrote(file)

    async def close(self) -> None:
        """Writes what is not written yet."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await asyncio.gather(*self._writing, return_exceptions=True)
        for file in list(self._changed):
            await self._write(file)


# The file


class UnreadableProfiles(Exception):
    """The file exists and is not a JSON object. It is left as it is."""


def stats_of(document: dict[str, Any]) -> dict[str, CredentialStats]:
    """The stats in the file. Entries of another shape are left out."""
    found: dict[str, CredentialStats] = {}
    usage = document.get("usageStats")
    for name, raw in usage.items() if isinstance(usage, dict) else ():
        try:
            found[str(name)] = msgspec.convert(raw, CredentialStats, strict=False)
        except msgspec.ValidationError:
            continue
    return found


def put_stats(document: dict[str, Any], changes: dict[str, CredentialStats], last_good: dict[str, str]) -> None:
    """Puts stats into the file's content. Fields of other versions stay."""
    found = document.get("usageStats")
    usage: dict[str, Any] = found if isinstance(found, dict) else {}
    for name, stats in changes.items():
        old = usage.get(name)
        rest = {key: value for key, value in old.items() if key not in _FIELDS} if isinstance(old, dict) else {}
        usage[name] = {**rest, **msgspec.to_builtins(stats)}
        if not usage[name]:
            del usage[name]
    document["usageStats"] = usage
    if last_good:
        good = document.get("lastGood")
        document["lastGood"] = {**(good if isinstance(good, dict) else {}), **last_good}


def read_document(path: str) -> dict[str, Any] | None:
    """The content of ``auth-profiles.json``. None: there is no such file. Raises ``UnreadableProfiles``."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            document = msgspec.json.decode(file.read(MAX_FILE_CHARS))
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UnreadableProfiles(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise UnreadableProfiles(f"{path} is not a JSON object")
    return document


def edit_profiles(path: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the file under a lock, for its owner only (0600). Blocking."""
    make_private_dir(str(Path(path).parent))
    with _locked(str(Path(path).parent)):
        document = read_document(path)
        document = document if document is not None else {"version": 1, "profiles": {}}
        change(document)
        write_private(path, msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


@contextmanager
def _locked(folder: str) -> Generator[None]:
    """Holds the folder's lock, so that the Gateway and the command line do not overwrite each other."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
