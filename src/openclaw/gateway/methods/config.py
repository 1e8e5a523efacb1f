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
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable

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


@methods.add("config.get", NoParams)
async def get(call: MethodCall) -> Any:
    """The values of the configuration file without secrets, and its hash."""
    store = call.gateway.runtime.config
    await store.reload()
    return await asyncio.to_thread(snapshot_view, store.snapshot)


def snapshot_view(snapshot: Snapshot) -> dict[str, Any]:
    """The file and its values, with a sentinel in place of each secret."""
    return {
        "path": snapshot.path,
        "exists": snapshot.exists,
        "raw": None if snapshot.raw is None else redact_raw(snapshot.raw, snapshot.parsed),
        "parsed": redacted(snapshot.parsed),
        "valid": snapshot.valid,
        "config": shown_values(snapshot),
        "hash": snapshot.hash,
        "issues": [_issue(issue) for issue in snapshot.issues],
        "warnings": [_issue(issue) for issue in snapshot.warnings],
        "legacyIssues": [],
    }


def _issue(issue: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"path": issue.path, "message": issue.message}
    return {**shown, "line": issue.line} if issue.line else shown


class ConfigSchema(Params):
    language: Literal["en", "es"] = "en"
    """In which language the settings are described."""


@functools.cache
def _described(language: str) -> dict[str, msgspec.Raw]:
    """The schema and the hints. They are the same for the life of the process and take long to make."""
    from openclaw.config.reference import config_schema, in_spanish, ui_hints

    made: dict[str, Any] = {"schema": config_schema(), "uiHints": ui_hints()}
    if language == "es":
        made = in_spanish(made)
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in made.items()}


@methods.add("config.schema", ConfigSchema)
async def schema(call: MethodCall, params: ConfigSchema) -> Any:
    """The JSON schema of the configuration, with hints for a form."""
    answer = await asyncio.to_thread(_described, params.language)
    return {**answer, "version": __version__, "generatedAt": iso_utc(call.gateway.runtime.clock.now_ms())}


@methods.add("config.set", ConfigSet)
async def set_config(call: MethodCall, params: ConfigSet) -> Any:
    """Writes the whole configuration, if it is valid and nobody changed it meanwhile."""
    store = call.gateway.runtime.config
    written = await _write(lambda: store.write_raw(params.raw, params.base_hash))
    await store.reload()
    return {"ok": True, "path": written.path, "config": await asyncio.to_thread(shown_values, written)}


@methods.add("config.patch", ConfigChange)
async def patch(call: MethodCall, params: ConfigChange) -> Any:
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
async def apply(call: MethodCall, params: ConfigChange) -> Any:
    """Writes the whole configuration and lets the Gateway take it over."""
    return await _change(call, params, lambda: call.gateway.runtime.config.write_raw(params.raw, params.base_hash))


async def _change(call: MethodCall, params: ConfigChange, write: Callable[[], Snapshot]) -> dict[str, Any]:
    """Writes, makes the change effective, and restarts only when something changed that cannot be applied live."""
    gateway = call.gateway
    before = gateway.runtime.config.snapshot
    written = await _write(write)
    changed = await asyncio.to_thread(changed_paths, before.resolved, written.resolved)
    await gateway.runtime.config.reload()
    shown = await asyncio.to_thread(shown_values, written)
    answer: dict[str, Any] = {"ok": True, "path": written.path, "config": shown}
    if reload_action(changed) != "restart":
        return {**answer, "restart": Restart.report(call.method, 0, "hot"), "sentinel": None}
    note: dict[str, Any] = {"kind": call.method.replace(".", "-"), "status": "ok", "ts": gateway.runtime.clock.now_ms()}
    if params.session_key:
        note["sessionKey"] = params.session_key
    note |= {"message": params.note, "stats": {"mode": call.method, "root": written.path}}
    await gateway.restart.leave_note(note)
    delay = DEFAULT_DELAY_MS if params.restart_delay_ms is None else params.restart_delay_ms
    restart = gateway.restart.schedule(call.method, delay)
    return {**answer, "restart": restart, "sentinel": {"path": gateway.restart.path, "payload": note}}


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
