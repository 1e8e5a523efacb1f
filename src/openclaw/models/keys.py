"""The keys of providers: where one is found, which one is used next, and which rest after failed calls.

A key comes from the config, the environment, a file, a command's output or a stored profile. It is never logged and
never part of an error's text. ``Cooldowns`` knows which credentials rest, and until when. ``usageStats`` of
``auth-profiles.json`` keeps that across restarts. A key from the config or the environment has an entry there too,
under the first digits of its hash.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from openclaw import paths, redact
from openclaw.clock import Clock, SystemClock
from openclaw.config.agents import agent_ids
from openclaw.config.store import Derived, write_private
from openclaw.models.base import CLI_API, Credential, ErrorKind, Model, ModelError
from openclaw.models.catalogue_data import PROVIDER_ALIASES, PROVIDERS
from openclaw.net import is_loopback
from openclaw.paths import make_private_dir

if TYPE_CHECKING:
    from openclaw.config.schema import Config
    from openclaw.config.schema.base import SecretRef
    from openclaw.config.schema.models import AuthCooldowns, ProviderConfig


log = logging.getLogger(__name__)

COMMAND_TTL_S = 300.0
MAX_CACHED = 64
SESSIONS_KEPT = 1000
PROFILE_KINDS = ("oauth", "token", "api_key")
"""The kinds of stored credentials, in the order in which they are preferred."""
NO_FILE = (0, 0)
NEVER_READ = (-1, -1)
_PRINTABLE = re.compile(r"[!-~]+")
_REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")

SourceKind: TypeAlias = Literal["unneeded", "config", "env", "file", "command", "profile", "missing"]


class MissingKey(ModelError):
    """Raised if no usable key exists. The text names the variable or config path to set."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="auth")


class KeySource(msgspec.Struct, frozen=True):
    """Where a key comes from. It holds no secret."""

    kind: SourceKind
    where: str = ""
    """The variable, file, program or profile."""


class Profile(msgspec.Struct, frozen=True):
    """One credential of ``auth-profiles.json``."""

    id: str
    provider: str
    kind: str
    secret: str
    expires_ms: int | None = None

    def expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms

    def __repr__(self) -> str:
        return f"Profile({self.id!r})"


class Key(msgspec.Struct, frozen=True):
    """One key that a model can be called with. The key itself is read when it is used."""

    credential: Credential
    source: KeySource
    profile: Profile | None = None


class Keys:
    """Finds keys and chooses among them. What a command prints is kept in memory for five minutes."""

    def __init__(self, environ: Mapping[str, str], *, state_dir: str | None = None, clock: Clock | None = None) -> None:
        self.environ = environ
        self._state_dir = state_dir
        self._clock = clock or SystemClock()
        self.cooldowns = Cooldowns(self._clock)
        self.cooldowns.wrote = self._forget_file
        self._files: dict[str, tuple[tuple[int, int], ProfileFile]] = {}
        """The content of each ``auth-profiles.json`` with the modification time and size it had."""
        self._in_use: OrderedDict[tuple[str, str], str] = OrderedDict()
        """The profile that a session uses at a provider. It is kept while it works: an account has its own cache."""
        self._printed: dict[tuple[str, ...], tuple[float, str]] = {}
        self._running = asyncio.Lock()
        self._derived = Derived()
        self._warned: set[str] = set()

    async def load(self, config: Config) -> None:
        """Learns which credentials rest since before the start."""
        for agent_id in {"main", *agent_ids(config)}:
            await self._agent_file(config, agent_id)

    async def resolve_key(self, model: Model, config: Config, *, agent_id: str = "main") -> str:
        """The key for a model, or an empty string when none is needed. Raises ``MissingKey``."""
        return await self.read(await self.pick(model, config, agent_id), model, config)

    async def pick(self, model: Model, config: Config, agent_id: str, session_id: str = "") -> Key:
        """The key for the next call: the first one that does not rest. Raises ``MissingKey``.

        If all of them rest, it is the one whose rest ends first.
        """
        shared = self._shared_file(config)
        if shared and shared not in self._files:
            await self._profile_file(shared)
        if not model.auth_profile:
            # Stored profiles count only when config and environment have no key, so most calls read no file.
            configured = next(self._given(model, config, shared), None)
            if configured is not None and not self.cooldown_end(configured, model):
                return configured
        keys = await self.all_for(model, config, agent_id)
        usable = [key for key in keys if not self.cooldown_end(key, model)]
        if not usable:
            return min(keys, key=lambda key: self.cooldown_end(key, model))
        conversation = (session_id, model.provider)
        current = next(
            (key for key in usable if session_id and key.credential.id == self._in_use.get(conversation)), None
        )
        chosen = current or usable[0]
        if session_id and chosen.profile is not None:
            self._in_use[conversation] = chosen.credential.id
            if len(self._in_use) > SESSIONS_KEPT:
                self._in_use.popitem(last=False)
        return chosen

    async def all_for(self, model: Model, config: Config, agent_id: str) -> list[Key]:
        """Every key for the model, the preferred one first. Raises ``MissingKey`` if there is none."""
        if model.auth_profile and (chosen := await self._chosen(model, config, agent_id)):
            return [chosen]
        shared = self._shared_file(config)
        keys = list(self._given(model, config, shared))
        if model.api not in ("local", CLI_API) and self._state_dir is not None:
            keys += await self.stored(model, config, agent_id)
        if not keys and is_local_url(model.base_url):
            keys = [Key(Credential(f"{model.provider}#none", shared), KeySource("unneeded"))]
        if not keys:
            names = [name for name in env_names(model.provider) if "OAUTH" not in name]
            variable = f"set the environment variable {' or '.join(names)}, or " if names else "set "
            path = f"models.providers.{model.provider}.apiKey"
            raise MissingKey(
                f"No API key for {model.provider}: {variable}{path} in the config. `openclaw onboard` stores one."
            )
        return keys

    async def stored(self, model: Model, config: Config, agent_id: str) -> list[Key]:
        """The agent's profiles for the model's provider, the preferred one first. Expired ones are left out.

        The order is that of the file, else that of the config. Without one, logins come before tokens and tokens
        before keys, and among equals the one that was not used for longest comes first. While nothing is known of
        their use, the one that worked last comes first.
        """
        path, file = await self._agent_file(config, agent_id)
        provider, now = canonical_provider(model.provider), self._clock.now_ms()
        live = [
            Key(Credential(profile.id, path), KeySource("profile", profile.id), profile)
            for profile in file.profiles
            if canonical_provider(profile.provider) == provider and not profile.expired(now)
        ]
        order = _order_of(file.order, provider) or _order_of(config.auth.order, provider)
        if order:
            listed = [key for key in live if key.credential.id in order]
            return sorted(listed, key=lambda key: order.index(key.credential.id))
        used = {key.credential: self.cooldowns.of(key.credential).last_used for key in live}
        live.sort(key=lambda key: (PROFILE_KINDS.index(key.profile.kind if key.profile else ""), used[key.credential]))
        if not any(used.values()):
            live.sort(key=lambda key: key.credential.id != file.last_good.get(provider))
        return live

    def cooldown_end(self, key: Key, model: Model) -> int:
        """The end of the key's rest for this model. 0: it can be used."""
        return self.cooldowns.cooldown_end(key.credential, model.ref)

    def _given(self, model: Model, config: Config, shared: str) -> Iterator[Key]:
        """The keys of config and environment."""
        section = provider_config(config, model.provider)
        for source in given_sources(model, section, self.environ):
            value = source.where
            if source.kind == "env":
                value = self.environ.get(source.where, "").strip()
            elif source.kind == "config" and section is not None:
                value = str(section.api_key)
            yield Key(Credential(f"{model.provider}#{source.kind}{_digits(value)}", shared), source)

    async def _chosen(self, model: Model, config: Config, agent_id: str) -> Key | None:
        """The credential that the session chose, or None when it belongs to another provider than the model."""
        path, file = await self._agent_file(config, agent_id)
        found = next((profile for profile in file.profiles if profile.id == model.auth_profile), None)
        back = f"choose another with /model {model.ref}@<credential>, or go back with /model {model.ref}"
        if found is None:
            raise MissingKey(f'The credential "{model.auth_profile}" is not stored any more; {back}.')
        if canonical_provider(found.provider) != canonical_provider(model.provider):
            return None
        if found.expired(self._clock.now_ms()):
            raise MissingKey(f'The credential "{found.id}" has expired; renew it, {back}.')
        return Key(Credential(found.id, path), KeySource("profile", found.id), found)

    # Profile files

    def _shared_file(self, config: Config) -> str:
        """The file that keeps the stats of keys from config and environment."""
        state_dir = self._state_dir
        return self._derived.of(config, "file", lambda: profiles_path(config, state_dir, "main")) if state_dir else ""

    async def _agent_file(self, config: Config, agent_id: str) -> tuple[str, ProfileFile]:
        """The agent's profiles. An agent without any uses the main agent's."""
        if self._state_dir is None:
            return "", ProfileFile()
        path = profiles_path(config, self._state_dir, agent_id)
        file = await self._profile_file(path)
        if not file.profiles and path != (shared := self._shared_file(config)):
            path, file = shared, await self._profile_file(shared)
        return path, file

    async def _profile_file(self, path: str) -> ProfileFile:
        """The content of the file. It is read again when it has changed."""
        cached = self._files.get(path)
        signature, file = await asyncio.to_thread(_read_if_changed, path, cached[0] if cached else None)
        if file is not None:
            self.cooldowns.take(path, file.stats)
            self._files[path] = cached = (signature, file)
        assert cached is not None
        return cached[1]

    def _forget_file(self, path: str) -> None:
        """The stats in the file are ours by now. Everything else is read again at the next look."""
        if path in self._files:
            self._files[path] = (NEVER_READ, self._files[path][1])

    async def read(self, key: Key, model: Model, config: Config) -> str:
        """The key itself. Raises ``MissingKey``."""
        section = provider_config(config, model.provider)
        secret = _checked(await self._read(key, model, section), key.source, model.provider)
        redact.register([secret])
        return secret

    async def _read(self, key: Key, model: Model, provider: ProviderConfig | None) -> str:
        match key.source.kind:
            case "unneeded" | "missing":
                return ""
            case "config":
                return str(provider.api_key) if provider else ""
            case "env":
                return self.environ.get(key.source.where, "").strip()
            case "file" | "command":
                ref: Any = provider.api_key if provider else None
                path = f"models.providers.{model.provider}.apiKey"
                read = self._from_file if key.source.kind == "file" else self._from_command
                return await read(ref, path)
            case "profile":
                return key.profile.secret if key.profile else ""

    async def _from_file(self, ref: SecretRef, path: str) -> str:
        key = await _fetch(ref, self.environ, path)
        name = ref.file or ""
        if name not in self._warned and await asyncio.to_thread(_everyone_can_read, name):
            self._warned.add(name)
            log.warning("The key file %s can be read by every user of this machine; run: chmod 600 %s", name, name)
        return key

    async def _from_command(self, ref: SecretRef, path: str) -> str:
        argv = tuple(ref.command or ())
        async with self._running:
            now = self._clock.monotonic()
            cached = self._printed.get(argv)
            if cached is not None and now - cached[0] < COMMAND_TTL_S:
                return cached[1]
            key = await _fetch(ref, self.environ, path)
            if len(self._printed) >= MAX_CACHED:
                self._printed.clear()
            self._printed[argv] = (now, key)
            return key


@lru_cache(maxsize=64)
def _digits(secret: str) -> str:
    """Tells two keys apart without showing them."""
    return f"-{hashlib.sha256(secret.encode()).hexdigest()[:8]}" if secret else ""


def given_sources(model: Model, provider: ProviderConfig | None, environ: Mapping[str, str]) -> Iterator[KeySource]:
    """Where config and environment have a key. A key in the config keeps those of the environment from its server."""
    if model.api in ("local", CLI_API):
        yield KeySource("unneeded")
    elif provider is not None and provider.api_key:
        yield _config_source(provider.api_key, environ)
    else:
        for name in env_names(model.provider):
            if environ.get(name, "").strip():
                yield KeySource("env", name)


def find_source(model: Model, provider: ProviderConfig | None, environ: Mapping[str, str]) -> KeySource:
    """The first source that has a key: the config, the environment. Local servers need no key."""
    otherwise = KeySource("unneeded") if is_local_url(model.base_url) else KeySource("missing")
    return next(given_sources(model, provider, environ), otherwise)


def env_names(provider: str) -> tuple[str, ...]:
    """The variables that may hold the provider's key: the vendor's own names, or ``<PROVIDER>_API_KEY``."""
    facts = PROVIDERS.get(canonical_provider(provider))
    if facts is not None:
        return facts.key_env
    return (re.sub(r"[^A-Z0-9]+", "_", provider.upper()).strip("_") + "_API_KEY",)


@lru_cache(maxsize=256)
def canonical_provider(name: str) -> str:
    lowered = name.strip().lower()
    return PROVIDER_ALIASES.get(lowered, lowered)


def provider_config(config: Config, provider: str) -> ProviderConfig | None:
    """The provider's section of the config. Other spellings of its name count too."""
    canonical = canonical_provider(provider)
    for name, section in config.models.providers.items():
        if canonical_provider(name) == canonical:
            return section
    return None


@lru_cache(maxsize=256)
def is_local_url(url: str) -> bool:
    """Whether the address is this machine: such servers need no key."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host.endswith(".localhost") or is_loopback(host)


def profiles_path(config: Config, state_dir: str, agent_id: str) -> str:
    wanted = paths.normalize_agent_id(agent_id)
    for agent in config.agents.list:
        if paths.normalize_agent_id(agent.id) == wanted and agent.agent_dir:
            return str(Path(agent.agent_dir).expanduser() / "auth-profiles.json")
    return str(Path(paths.agent_dir(state_dir, agent_id), "agent", "auth-profiles.json"))


class ProfileFile(msgspec.Struct, frozen=True):
    """What ``auth-profiles.json`` says."""

    profiles: list[Profile] = []
    order: dict[str, list[str]] = {}
    """Profile ids by provider, in the order in which they are used."""
    last_good: dict[str, str] = {}
    """The credential that worked last, by provider."""
    stats: dict[str, CredentialStats] = {}


def read_profile_file(path: str) -> ProfileFile:
    """The stored credentials and their order. Empty when the file is missing or unreadable. Blocking."""
    try:
        document = read_document(path) or {}
    except UnreadableProfiles:
        return ProfileFile()
    raw, order, good = (document.get(name) for name in ("profiles", "order", "lastGood"))
    profiles = [_profile(str(key), value) for key, value in raw.items()] if isinstance(raw, dict) else []
    return ProfileFile(
        profiles=[profile for profile in profiles if profile is not None],
        order={
            str(provider): [str(name) for name in names]
            for provider, names in (order.items() if isinstance(order, dict) else ())
            if isinstance(names, list)
        },
        last_good={str(name): str(value) for name, value in good.items()} if isinstance(good, dict) else {},
        stats=stats_of(document),
    )


def read_profiles(path: str) -> list[Profile]:
    return read_profile_file(path).profiles


def store_key(path: str, provider: str, key: str, profile_id: str = "") -> str:
    """Keeps a key in ``auth-profiles.json``, for its owner only, and returns the profile's id. Blocking.

    The new key is used before those that are stored already. Raises ``OSError`` and ``UnreadableProfiles``.
    """
    provider = canonical_provider(provider)
    name = profile_id or f"{provider}:default"

    def change(document: dict[str, Any]) -> None:
        profiles, order = document.get("profiles"), document.get("order")
        entries = profiles if isinstance(profiles, dict) else {}
        document["profiles"] = {**entries, name: {"type": "api_key", "provider": provider, "key": key}}
        usage = document.get("usageStats")
        if isinstance(usage, dict):
            usage.pop(name, None)  # The rest of the key that was there before.
        if isinstance(order, dict) and isinstance(listed := order.get(provider), list):
            order[provider] = [name, *(other for other in listed if other != name)]

    edit_profiles(path, change)
    return name


def forget_key(path: str, profile_id: str) -> bool:
    """Removes a profile from ``auth-profiles.json``. False: there was none of this name. Blocking."""
    removed = False

    def change(document: dict[str, Any]) -> None:
        nonlocal removed
        profiles = document.get("profiles")
        removed = isinstance(profiles, dict) and profiles.pop(profile_id, None) is not None

    edit_profiles(path, change)
    return removed


def is_key(text: str) -> bool:
    """Whether a text can be a key: no blanks, no control characters."""
    return bool(_PRINTABLE.fullmatch(text))


def _read_if_changed(path: str, last_stamp: tuple[int, int] | None) -> tuple[tuple[int, int], ProfileFile | None]:
    try:
        status = Path(path).stat()
        signature = (status.st_mtime_ns, status.st_size)
    except OSError:
        signature = NO_FILE
    return signature, None if signature == last_stamp else read_profile_file(path)


def _order_of(orders: Mapping[str, Sequence[str]], provider: str) -> Sequence[str]:
    return next((names for name, names in orders.items() if canonical_provider(name) == provider), ())


def _profile(key: str, raw: Any) -> Profile | None:
    if not isinstance(raw, dict):
        return None
    field = {"api_key": "key", "token": "token", "oauth": "access"}.get(str(raw.get("type")))
    secret = raw.get(field) if field else None
    if not isinstance(secret, str) or not secret.strip():
        return None
    provider = str(raw.get("provider") or key.partition(":")[0])
    expires = raw.get("expires")
    return Profile(
        id=key,
        provider=provider,
        kind=str(raw["type"]),
        secret=secret.strip(),
        expires_ms=int(expires) if isinstance(expires, int | float) and expires > 0 else None,
    )


def _config_source(secret: Any, environ: Mapping[str, str]) -> KeySource:
    if isinstance(secret, str):
        text = secret.strip()
        if match := _REFERENCE.fullmatch(text):
            return KeySource("env", match[1])
        # Existing configs also write a variable without braces.
        if _ENV_NAME.fullmatch(text) and text in environ:
            return KeySource("env", text)
        return KeySource("config")
    if secret.env:
        return KeySource("env", secret.env)
    if secret.file:
        return KeySource("file", secret.file)
    return KeySource("command", secret.command[0] if secret.command else "")


def _checked(key: str, source: KeySource, provider: str) -> str:
    if source.kind == "unneeded":
        return key
    path = f"models.providers.{provider}.apiKey"
    key = key.strip()
    if not key:
        what = f"the environment variable {source.where}" if source.kind == "env" else source.where or path
        raise MissingKey(f"No key for {provider}: {what} is empty or not set. Set it, or change {path}.")
    if not _PRINTABLE.fullmatch(key):
        where = source.where or path
        raise MissingKey(
            f"The key for {provider} from {where} contains spaces, line breaks or other characters no key has."
        )
    return key


def _everyone_can_read(name: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(Path(name).expanduser().stat().st_mode & stat.S_IROTH)
    return False


async def _fetch(ref: SecretRef, environ: Mapping[str, str], path: str) -> str:
    from openclaw.config.secrets import SecretUnavailable, resolve_secret

    try:
        return await asyncio.to_thread(resolve_secret, ref, environ, path) or ""
    except SecretUnavailable as error:
        raise MissingKey(f"No key could be had from {error}.") from None


# Which credentials rest

FIRST_COOLDOWN_MS = 60_000
COOLDOWN_FACTOR = 5
LONGEST_COOLDOWN_MS = 3_600_000
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

    def cooldown_end(self, model: str) -> int:
        """The end of the rest for calls to ``model`` (``provider/id``). It may be past."""
        cooldown = self.cooldown_until if self.cooldown_model in ("", model) else 0
        return max(cooldown, self.disabled_until)

    def latest_cooldown_end(self) -> int:
        """The end of the rest of any of its models."""
        return max(self.cooldown_until, self.disabled_until)

    def reason(self) -> str:
        """Why it rests, in the file's words."""
        return self.disabled_reason if self.disabled_until > self.cooldown_until else self.cooldown_reason

    def kind(self) -> ErrorKind:
        return _KIND_OF.get(self.reason(), "other")


_FIELDS = frozenset(CredentialStats.__struct_encode_fields__)


def cooldown_ms(failures: int) -> int:
    """The rest after this many failures in a row: 1, 5, 25 and at most 60 minutes."""
    return min(LONGEST_COOLDOWN_MS, FIRST_COOLDOWN_MS * COOLDOWN_FACTOR ** min(max(failures, 1) - 1, 3))


def billing_cooldown_ms(failures: int, provider: str, settings: AuthCooldowns) -> int:
    """The rest of an account with nothing left to pay with. It doubles with each failure."""
    first = settings.billing_backoff_hours_by_provider.get(provider, settings.billing_backoff_hours)
    return int(min(settings.billing_max_hours, first * 2 ** min(max(failures, 1) - 1, 10)) * HOUR_MS)


def after_failure(
    stats: CredentialStats, error: ModelError, provider: str, model: str, now_ms: int, settings: AuthCooldowns
) -> CredentialStats:
    """The stats after a failed call. Calls that fail together count once: who rests already is not counted again."""
    if stats.cooldown_end(model) > now_ms:
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
        until = now_ms + billing_cooldown_ms(counts[reason], provider, settings)
        return msgspec.structs.replace(stats, **counted, disabled_until=until, disabled_reason=reason)
    pause = max(cooldown_ms(counted["error_count"]), min(LONGEST_COOLDOWN_MS, int((error.retry_after_s or 0) * 1000)))
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
    def none_cooling_down(self) -> bool:
        return self._latest_end <= self._clock.now_ms()

    def of(self, credential: Credential) -> CredentialStats:
        return self._stats.get(credential) or CredentialStats()

    def cooldown_end(self, credential: Credential, model: str) -> int:
        """The end of the credential's rest for this model. 0: it does not rest."""
        if self._latest_end == 0 or self.none_cooling_down:
            return 0
        until = self.of(credential).cooldown_end(model)
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


# The file of profiles


class UnreadableProfiles(Exception):
    """The file exists and is not a JSON object. It is left as it is."""


def stats_of(document: dict[str, Any]) -> dict[str, CredentialStats]:
    """The stats in the file. Entries of another shape are left out."""
    stats: dict[str, CredentialStats] = {}
    usage = document.get("usageStats")
    for name, raw in usage.items() if isinstance(usage, dict) else ():
        try:
            stats[str(name)] = msgspec.convert(raw, CredentialStats, strict=False)
        except msgspec.ValidationError:
            continue
    return stats


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
    """Return the content of ``auth-profiles.json``, or None if it does not exist. Raise ``UnreadableProfiles``."""
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
