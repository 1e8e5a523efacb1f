"""The settings that ``sessions.patch`` changes: their values, and what each value means in the store."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import MethodError
from openclaw.gateway.views.session_rows import model_defaults
from openclaw.models.base import Model
from openclaw.models.catalogue import UnknownModel
from openclaw.models.thinking import level_unless_set, parse_level, supported_levels
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef, is_subagent

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

Setting = str | None | msgspec.UnsetType


class SessionsPatch(Params):
    """An absent setting stays unchanged. Null clears a setting."""

    key: NonEmpty
    label: Setting = msgspec.UNSET
    thinking_level: Setting = msgspec.UNSET
    verbose_level: Setting = msgspec.UNSET
    reasoning_level: Setting = msgspec.UNSET
    response_usage: Setting = msgspec.UNSET
    elevated_level: Setting = msgspec.UNSET
    exec_host: Setting = msgspec.UNSET
    exec_security: Setting = msgspec.UNSET
    exec_ask: Setting = msgspec.UNSET
    exec_node: Setting = msgspec.UNSET
    model: Setting = msgspec.UNSET
    spawned_by: Setting = msgspec.UNSET
    send_policy: Setting = msgspec.UNSET
    group_activation: Setting = msgspec.UNSET


_CHOICES: dict[str, tuple[str, ...]] = {
    "verboseLevel": ("on", "full", "off"),
    "reasoningLevel": ("on", "stream", "off"),
    "responseUsage": ("off", "tokens", "full"),
    "elevatedLevel": ("on", "off", "ask", "full"),
    "execHost": ("sandbox", "gateway", "node"),
    "execSecurity": ("deny", "allowlist", "full"),
    "execAsk": ("off", "on-miss", "always"),
    "sendPolicy": ("allow", "deny"),
    "groupActivation": ("mention", "always"),
}
_OFF_IS_ABSENT = frozenset({"reasoningLevel", "responseUsage"})


def apply_patch(
    entry: SessionEntry | None, patch: SessionsPatch, target: SessionRef, gateway: Gateway, now_ms: int
) -> SessionEntry:
    """Returns the changed entry, or a new one. Raises ``MethodError`` for an invalid value."""
    changed: dict[str, Any] = dict(entry or {"sessionId": str(uuid.uuid4())})
    given: dict[str, str | None] = msgspec.to_builtins(patch)  # It leaves out what is not set.
    # A new name does not count as activity, only what changes how the conversation goes on.
    if entry is None or given.keys() - {"key", "label", "spawnedBy"}:
        changed["updatedAt"] = max(now_ms, int(changed.get("updatedAt", 0)))
    for name in _CHOICES:
        if name in given:
            _set(changed, name, _choice(name, given[name]))
    if "label" in given:
        _set(changed, "label", _label(given["label"]))
    if "execNode" in given:
        _set(changed, "execNode", (given["execNode"] or "").strip() or None)
    if "spawnedBy" in given:
        _set_spawned_by(changed, given["spawnedBy"], target)
    if "model" in given:
        _set_model(changed, given["model"], target, gateway)
    if "thinkingLevel" in given:
        _set(changed, "thinkingLevel", _thinking(given["thinkingLevel"], _model_of(changed, target, gateway), gateway))
    return SessionEntry(**changed)  # type: ignore[typeddict-item]


def _set(entry: dict[str, Any], name: str, value: str | None) -> None:
    if value is None:
        entry.pop(name, None)
    else:
        entry[name] = value


def _choice(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    chosen = value.strip().lower()
    if name == "responseUsage" and chosen == "on":
        chosen = "tokens"
    if chosen not in _CHOICES[name]:
        raise MethodError(f"invalid {name} (use {'|'.join(_CHOICES[name])})")
    return None if chosen == "off" and name in _OFF_IS_ABSENT else chosen


def _label(value: str | None) -> str | None:
    if value is None:
        return None
    label = value.strip()
    if not label:
        raise MethodError("invalid label: empty")
    if len(label) > 64:
        raise MethodError("invalid label: too long (max 64)")
    return label


def _thinking(value: str | None, model: Model | None, gateway: Gateway) -> str | None:
    """Returns the thinking level to store. "off" is stored only if the session's model would otherwise think."""
    if value is None:
        return None
    level = parse_level(value)
    if level is None:
        raise MethodError("invalid thinkingLevel (use off|minimal|low|medium|high)")
    if level == "xhigh" and model is not None and level not in supported_levels(model):
        raise MethodError(f'thinkingLevel "xhigh" is not available with {model.ref} (use off|minimal|low|medium|high)')
    default = gateway.runtime.config.current.agents.defaults.thinking_default
    return None if level == "off" and (model is None or level_unless_set(model, default) == "off") else level


def _model_of(entry: dict[str, Any], target: SessionRef, gateway: Gateway) -> Model | None:
    """Returns the model that the session uses, or None when it is no longer known."""
    chosen, provider = entry.get("modelOverride"), entry.get("providerOverride")
    try:
        if chosen:
            return gateway.runtime.catalogue().resolve(f"{provider}/{chosen}" if provider else str(chosen))
        return gateway.runtime.catalogue().default_for(gateway.runtime.config.current, target.agent_id)
    except UnknownModel:
        return None


def _set_spawned_by(entry: dict[str, Any], value: str | None, target: SessionRef) -> None:
    known = entry.get("spawnedBy")
    if value is None:
        if known:
            raise MethodError("spawnedBy cannot be cleared once set")
        return
    if not is_subagent(target.key):
        raise MethodError("spawnedBy is only supported for subagent:* sessions")
    parent = value.strip()
    if not parent:
        raise MethodError("invalid spawnedBy: empty")
    if known and known != parent:
        raise MethodError("spawnedBy cannot be changed once set")
    entry["spawnedBy"] = parent


def _set_model(entry: dict[str, Any], value: str | None, target: SessionRef, gateway: Gateway) -> None:
    """Sets the model. The default model is stored as no choice, so that it follows the configuration."""
    for name in ("providerOverride", "modelOverride", "authProfileOverride", "authProfileOverrideSource"):
        entry.pop(name, None)
    if value is None:
        return
    text = value.strip()
    if not text:
        raise MethodError("invalid model: empty")
    try:
        model = gateway.runtime.catalogue().resolve(text)
        default = gateway.runtime.catalogue().default_for(gateway.runtime.config.current, target.agent_id)
    except UnknownModel as unknown:
        raise MethodError(f"invalid model: {unknown}") from None
    if model.ref != default.ref:
        entry["providerOverride"], entry["modelOverride"] = model.provider, model.id


def resolved_model(entry: SessionEntry, agent_id: str, gateway: Gateway) -> dict[str, Any]:
    if entry.get("modelOverride"):
        return {"modelProvider": entry.get("providerOverride"), "model": entry.get("modelOverride")}
    chosen = model_defaults(gateway, agent_id)
    return {"modelProvider": chosen["modelProvider"], "model": chosen["model"]}
