"""``config.*``: reading the configuration without its secrets, and changing it without losing them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from openclaw import __version__
from openclaw.clock import iso_utc
from openclaw.config.edit import shown_values
from openclaw.config.load import Json5Error, Snapshot, parse_source
from openclaw.config.secrets import redact_raw, redacted
from openclaw.config.store import ConfigStore, changed_paths, reload_action
from openclaw.config.validate import ConfigError, ConfigInvalid
from openclaw.gateway.restart import DEFAULT_DELAY_MS, Restart
from openclaw.gateway.server.frames import NonEmpty, NoParams, Params
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.protocol.result import Result

methods = MethodTable()


class ConfigSet(Params):
    raw: NonEmpty
    base_hash: NonEmpty | None = None


class ConfigChange(Params):
    raw: NonEmpty
    base_hash: NonEmpty | None = None
    session_key: str | None = None
    note: str | None = None
    restart_delay_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None


class ConfigIssue(Result):
    path: str
    message: str
    line: int = 0


class ConfigSnapshot(Result):
    """The file and its values, with a sentinel in place of each secret."""

    path: str
    exists: bool
    raw: str | None
    parsed: Any
    valid: bool
    config: OpenObject
    hash: str | None
    issues: list[ConfigIssue]
    warnings: list[ConfigIssue]
    legacy_issues: list[ConfigIssue]
    """Always empty."""


@methods.add("config.get", NoParams)
async def get(call: MethodCall) -> ConfigSnapshot:
    """The values of the configuration file without secrets, and its hash."""
    store = call.gateway.runtime.config
    await store.reload()
    return await asyncio.to_thread(snapshot_view, store.snapshot)


def snapshot_view(snapshot: Snapshot) -> ConfigSnapshot:
    return ConfigSnapshot(
        path=snapshot.path,
        exists=snapshot.exists,
        raw=None if snapshot.raw is None else redact_raw(snapshot.raw, snapshot.parsed),
        parsed=redacted(snapshot.parsed),
        valid=snapshot.valid,
        config=shown_values(snapshot),
        hash=snapshot.hash,
        issues=[_issue(issue) for issue in snapshot.issues],
        warnings=[_issue(issue) for issue in snapshot.warnings],
        legacy_issues=[],
    )


def _issue(issue: Any) -> ConfigIssue:
    return ConfigIssue(issue.path, issue.message, issue.line or 0)


class ConfigSchema(Params):
    language: Literal["en", "es"] = "en"
    """In which language the settings are described."""


class ConfigDescription(Result):
    schema: msgspec.Raw
    """The JSON schema."""
    ui_hints: msgspec.Raw
    version: str
    generated_at: str


@functools.cache
def _described(language: str) -> tuple[msgspec.Raw, msgspec.Raw]:
    """Return the schema and the hints, which take long to build and never change in a process."""
    from openclaw.config.reference import config_schema, in_spanish, ui_hints

    made: dict[str, Any] = {"schema": config_schema(), "uiHints": ui_hints()}
    if language == "es":
        made = in_spanish(made)
    return msgspec.Raw(msgspec.json.encode(made["schema"])), msgspec.Raw(msgspec.json.encode(made["uiHints"]))


@methods.add("config.schema", ConfigSchema)
async def schema(call: MethodCall, params: ConfigSchema) -> ConfigDescription:
    """The JSON schema of the configuration, with hints for a form."""
    json_schema, hints = await asyncio.to_thread(_described, params.language)
    return ConfigDescription(json_schema, hints, __version__, iso_utc(call.gateway.runtime.clock.now_ms()))


class ConfigWritten(Result):
    ok: bool
    path: str
    config: OpenObject


@methods.add("config.set", ConfigSet)
async def set_config(call: MethodCall, params: ConfigSet) -> ConfigWritten:
    """Writes the whole configuration, if it is valid and nobody changed it meanwhile."""
    store = call.gateway.runtime.config
    written = await _write(lambda: store.write_raw(params.raw, params.base_hash))
    await store.reload()
    return ConfigWritten(True, written.path, await asyncio.to_thread(shown_values, written))


class ConfigChanged(ConfigWritten):
    restart: OpenObject
    """Whether and when the Gateway restarts."""
    sentinel: OpenObject | None
    """The note that the next process reads after a restart."""


@methods.add("config.patch", ConfigChange)
async def patch(call: MethodCall, params: ConfigChange) -> ConfigChanged:
    """Merges some values into the configuration."""
    try:
        change, _ = await asyncio.to_thread(parse_source, params.raw)
    except Json5Error as error:
        issues = [{"path": "", "message": str(error)}]
        raise MethodError(f"invalid config: {error}", details={"issues": issues}) from None
    if not isinstance(change, dict):
        raise MethodError("config.patch raw must be an object")
    return await _change(call, params, lambda: call.gateway.runtime.config.merge_patch(change, params.base_hash))


@methods.add("config.apply", ConfigChange)
async def apply(call: MethodCall, params: ConfigChange) -> ConfigChanged:
    """Writes the whole configuration and applies it."""
    return await _change(call, params, lambda: call.gateway.runtime.config.write_raw(params.raw, params.base_hash))


async def _change(call: MethodCall, params: ConfigChange, write: Callable[[], Snapshot]) -> ConfigChanged:
    """Writes, makes the change effective, and restarts only when something changed that cannot be applied live."""
    gateway = call.gateway
    before = gateway.runtime.config.snapshot
    written = await _write(write)
    changed = await asyncio.to_thread(changed_paths, before.translated, written.translated)
    await gateway.runtime.config.reload()
    shown = await asyncio.to_thread(shown_values, written)
    if reload_action(changed) != "restart":
        return ConfigChanged(True, written.path, shown, Restart.report(call.method, 0, "hot"), None)
    note: dict[str, Any] = {"kind": call.method.replace(".", "-"), "status": "ok", "ts": gateway.runtime.clock.now_ms()}
    if params.session_key:
        note["sessionKey"] = params.session_key
    note |= {"message": params.note, "stats": {"mode": call.method, "root": written.path}}
    await gateway.restart.leave_note(note)
    delay = DEFAULT_DELAY_MS if params.restart_delay_ms is None else params.restart_delay_ms
    restart = gateway.restart.schedule(call.method, delay)
    return ConfigChanged(True, written.path, shown, restart, {"path": gateway.restart.path, "payload": note})


async def _write(write: Callable[[], Snapshot]) -> Snapshot:
    try:
        return await asyncio.to_thread(write)
    except ConfigInvalid as error:
        raise MethodError("invalid config", details={"issues": [_issue(issue) for issue in error.issues]}) from None
    except ConfigError as error:
        raise MethodError(str(error)) from None
    except OSError as error:
        raise MethodError(f"the configuration cannot be written: {error}", code="UNAVAILABLE") from None


async def patch_config(store: ConfigStore, patch: dict[str, Any]) -> None:
    """Merge a change into the configuration file and apply it. Raises ``MethodError`` if that fails."""
    await _write(lambda: store.merge_patch(patch, store.snapshot.hash))
    await store.reload()
