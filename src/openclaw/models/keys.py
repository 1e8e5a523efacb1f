"""Finds a provider's key: in the config, the environment, a file, a command's output or a stored profile.

Keys are never logged and never part of an error's text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import stat
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from openclaw import paths
from openclaw.clock import Clock, SystemClock
from openclaw.models.base import Model, ModelError
from openclaw.models.catalogue_data import PROVIDER_ALIASES, PROVIDERS
from openclaw.net import is_loopback

if TYPE_CHECKING:
    from openclaw.config.schema import Config
    from openclaw.config.schema.base import SecretRef
    from openclaw.config.schema.models import ProviderConfig

log = logging.getLogger(__name__)

COMMAND_TTL_S = 300.0
MAX_PROFILES_CHARS = 1 << 20
MAX_CACHED = 64
_PRINTABLE = re.compile(r"[!-~]+")
_REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")

SourceKind: TypeAlias = Literal["unneeded", "config", "env", "file", "command", "profile", "missing"]


class MissingKey(ModelError):
    """There is no usable key. The text names the variable or config path to set."""

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

    def __repr__(self) -> str:
        return f"Profile({self.id!r})"


class Keys:
    """Finds keys. What a command prints is kept in memory for five minutes."""

    def __init__(self, environ: Mapping[str, str], *, state_dir: str | None = None, clock: Clock | None = None) -> None:
        self._environ = environ
        self._state_dir = state_dir
        self._clock = clock or SystemClock()
        self._printed: dict[tuple[str, ...], tuple[float, str]] = {}
        self._running = asyncio.Lock()
        self._warned: set[str] = set()

    async def resolve_key(self, model: Model, config: Config, *, agent_id: str = "main") -> str:
        """The key for a model, or an empty string when none is needed. Raises ``MissingKey``."""
        if model.auth_profile and (chosen := await self._chosen(model, config, agent_id)):
            return _checked(chosen.secret, KeySource("profile", chosen.id), model.provider)
        provider = provider_config(config, model.provider)
        profiles: list[Profile] = []
        source = find_source(model, provider, self._environ)
        if source.kind in ("missing", "unneeded") and model.api != "local":
            # Stored profiles count only when config and environment have no key, so most calls read no file.
            if self._state_dir is not None:
                profiles = await stored_profiles(model, config, self._state_dir, agent_id, self._clock.now_ms())
            source = find_source(model, provider, self._environ, profiles)
        return _checked(await self._read(source, model, provider, profiles), source, model.provider)

    async def _chosen(self, model: Model, config: Config, agent_id: str) -> Profile | None:
        """The credential that the session chose, or None when it belongs to another provider than the model."""
        stored = await _all_profiles(config, self._state_dir, agent_id) if self._state_dir else []
        found = next((profile for profile in stored if profile.id == model.auth_profile), None)
        back = f"choose another with /model {model.ref}@<credential>, or go back with /model {model.ref}"
        if found is None:
            raise MissingKey(f'The credential "{model.auth_profile}" is not stored any more; {back}.')
        if canonical_provider(found.provider) != canonical_provider(model.provider):
            return None
        if found.expires_ms is not None and found.expires_ms <= self._clock.now_ms():
            raise MissingKey(f'The credential "{found.id}" has expired; renew it, {back}.')
        return found

    async def _read(
        self, source: KeySource, model: Model, provider: ProviderConfig | None, profiles: Sequence[Profile]
    ) -> str:
        match source.kind:
            case "unneeded":
                return ""
            case "config":
                return str(provider.api_key) if provider else ""
            case "env":
                return self._environ.get(source.where, "").strip()
            case "file" | "command":
                ref: Any = provider.api_key if provider else None
                read = self._from_file if source.kind == "file" else self._from_command
                return await read(ref, f"models.providers.{model.provider}.apiKey")
            case "profile":
                return next(profile.secret for profile in profiles if profile.id == source.where)
            case "missing":
                names = [name for name in env_names(model.provider) if "OAUTH" not in name]
                variable = f"set the environment variable {' or '.join(names)}, or " if names else "set "
                path = f"models.providers.{model.provider}.apiKey"
                raise MissingKey(f"No API key for {model.provider}: {variable}{path} in the config.")

    async def _from_file(self, ref: SecretRef, path: str) -> str:
        key = await _fetch(ref, self._environ, path)
        name = ref.file or ""
        if name not in self._warned and await asyncio.to_thread(_everyone_can_read, name):
            self._warned.add(name)
            log.warning("The key file %s can be read by every user of this machine; run: chmod 600 %s", name, name)
        return key

    async def _from_command(self, ref: SecretRef, path: str) -> str:
        argv = tuple(ref.command or ())
        async with self._running:
            now = self._clock.monotonic()
            kept = self._printed.get(argv)
            if kept is not None and now - kept[0] < COMMAND_TTL_S:
                return kept[1]
            key = await _fetch(ref, self._environ, path)
            if len(self._printed) >= MAX_CACHED:
                self._printed.clear()
            self._printed[argv] = (now, key)
            return key


async def stored_profiles(model: Model, config: Config, state_dir: str, agent_id: str, now_ms: int) -> list[Profile]:
    """The agent's credentials for the model's provider. The preferred one comes first."""
    stored = await _all_profiles(config, state_dir, agent_id)
    order = getattr(config.auth, "order", {}).get(model.provider, [])
    return usable_profiles(stored, model.provider, now_ms=now_ms, order=order)


async def _all_profiles(config: Config, state_dir: str, agent_id: str) -> list[Profile]:
    stored = await asyncio.to_thread(read_profiles, profiles_path(config, state_dir, agent_id))
    # An agent without credentials of its own uses the main agent's.
    return stored or await asyncio.to_thread(read_profiles, profiles_path(config, state_dir, "main"))


def find_source(
    model: Model, provider: ProviderConfig | None, environ: Mapping[str, str], profiles: Sequence[Profile] = ()
) -> KeySource:
    """The first source that has a key: the config, the environment, a stored profile. Local servers need no key."""
    if model.api == "local":
        return KeySource("unneeded")
    if provider is not None and provider.api_key:
        return _config_source(provider.api_key, environ)
    for name in env_names(model.provider):
        if environ.get(name, "").strip():
            return KeySource("env", name)
    for profile in profiles:
        if profile.provider == model.provider:
            return KeySource("profile", profile.id)
    return KeySource("unneeded") if is_local_url(model.base_url) else KeySource("missing")


def env_names(provider: str) -> tuple[str, ...]:
    """The variables that may hold the provider's key: the vendor's own names, or ``<PROVIDER>_API_KEY``."""
    facts = PROVIDERS.get(canonical_provider(provider))
    if facts is not None:
        return facts.key_env
    return (re.sub(r"[^A-Z0-9]+", "_", provider.upper()).strip("_") + "_API_KEY",)


def canonical_provider(name: str) -> str:
    lowered = name.strip().lower()
    return PROVIDER_ALIASES.get(lowered, lowered)


def provider_config(config: Config, provider: str) -> ProviderConfig | None:
    """The provider's section of the config. Other spellings of its name count too."""
    wanted = canonical_provider(provider)
    for name, section in config.models.providers.items():
        if canonical_provider(name) == wanted:
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


def read_profiles(path: str) -> list[Profile]:
    """The stored credentials; the last one that worked comes first. Empty when the file is missing or unreadable."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            data = msgspec.json.decode(file.read(MAX_PROFILES_CHARS))
    except (OSError, msgspec.MsgspecError):
        return []
    if not isinstance(data, dict) or not isinstance(data.get("profiles"), dict):
        return []
    profiles = [profile for key, raw in data["profiles"].items() if (profile := _profile(str(key), raw)) is not None]
    last_good = data.get("lastGood")
    preferred = set(last_good.values()) if isinstance(last_good, dict) else set[Any]()
    return sorted(profiles, key=lambda profile: (profile.id not in preferred, not profile.id.endswith(":default")))


def usable_profiles(
    profiles: Sequence[Profile], provider: str, *, now_ms: int, order: Sequence[str] = ()
) -> list[Profile]:
    """The provider's credentials that have not expired, in the order of the config."""
    wanted = canonical_provider(provider)
    live = [
        msgspec.structs.replace(profile, provider=provider)
        for profile in profiles
        if canonical_provider(profile.provider) == wanted
        and (profile.expires_ms is None or profile.expires_ms > now_ms)
    ]
    if not order:
        return live
    return sorted((profile for profile in live if profile.id in order), key=lambda profile: order.index(profile.id))


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
