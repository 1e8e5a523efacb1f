"""The settings that ``sessions.patch`` changes: their values, and what each value means in the store."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.gateway.server.params import NonEmpty, Params
from openclaw.gateway.server.registry import MethodError
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
_ATTRIBUTES = {
    "verboseLevel": "verbose_level",
    "reasoningLevel": "reasoning_level",
    "responseUsage": "response_usage",
    "elevatedLevel": "elevated_level",
    "execHost": "exec_host",
    "execSecurity": "exec_security",
    "execAsk": "exec_ask",
    "sendPolicy": "send_policy",
    "groupActivation": "group_activation",
}
_OFF_IS_ABSENT = frozenset({"reasoningLevel", "responseUsage"})


def apply_patch(
    entry: SessionEntry | None, patch: SessionsPatch, target: SessionRef, gateway: Gateway, now_ms: int
) -> SessionEntry:
    """Returns the changed entry, or a new one. Raises ``MethodError`` for an invalid value."""
    changed: dict[str, Any] = dict(entry or {"sessionId": str(uuid.uuid4())})
    if entry is None or _is_setting(patch):
        changed["updatedAt"] = max(now_ms, int(changed.get("updatedAt", 0)))
    for name, attribute in _ATTRIBUTES.items():
        _set_choice(changed, name, getattr(patch, attribute))
    _set_label(changed, patch.label)
    _set_text(changed, "execNode", patch.exec_node)
    _set_spawned_by(changed, patch.spawned_by, target)
    _set_model(changed, patch.model, target, gateway)
    _set_thinking(changed, patch.thinking_level, target, gateway)
    return SessionEntry(**changed)  # type: ignore[typeddict-item]


def _is_setting(patch: SessionsPatch) -> bool:
    """Whether the patch changes how the conversation goes on. A new name does not count as activity."""
    named = {"key", "label", "spawned_by"}
    return any(value is not msgspec.UNSET for name, value in msgspec.structs.asdict(patch).items() if name not in named)


def _set_choice(entry: dict[str, Any], name: str, value: Setting) -> None:
    if value is msgspec.UNSET:
        return
    if value is None:
        entry.pop(name, None)
        return
    chosen = str(value).strip().lower()
    if name == "responseUsage" and chosen == "on":
        chosen = "tokens"
    if chosen not in _CHOICES[name]:
        raise MethodError(f"invalid {name} (use {'|'.join(_CHOICES[name])})")
    if chosen == "off" and name in _OFF_IS_ABSENT:
        entry.pop(name, None)
    else:
        entry[name] = chosen


def _set_label(entry: dict[str, Any], value: Setting) -> None:
    if value is msgspec.UNSET:
        return
    if value is None:
        entry.pop("label", None)
        return
    label = str(value).strip()
    if not label:
        raise MethodError("invalid label: empty")
    if len(label) > 64:
        raise MethodError("invalid label: too long (max 64)")
    entry["label"] = label


def _set_thinking(entry: dict[str, Any], value: Setting, target: SessionRef, gateway: Gateway) -> None:
    """Sets the thinking level. "off" removes it, unless the session's model would then think."""
    if value is msgspec.UNSET:
        return
    if value is None:
        entry.pop("thinkingLevel", None)
        return
    level = parse_level(str(value))
    if level is None:
        raise MethodError("invalid thinkingLevel (use off|minimal|low|medium|high)")
    model = _model_of(entry, target, gateway)
    if level == "xhigh" and model is not None and level not in supported_levels(model):
        raise MethodError(f'thinkingLevel "xhigh" is not available with {model.ref} (use off|minimal|low|medium|high)')
    default = gateway.runtime.config.current.agents.defaults.thinking_default
    if level == "off" and (model is None or level_unless_set(model, default) == "off"):
        entry.pop("thinkingLevel", None)
    else:
        entry["thinkingLevel"] = level


def _model_of(entry: dict[str, Any], target: SessionRef, gateway: Gateway) -> Model | None:
    """Returns the model that the session uses, or None when it is no longer known."""
    chosen, provider = entry.get("modelOverride"), entry.get("providerOverride")
    try:
        if chosen:
            return gateway.runtime.catalogue().resolve(f"{provider}/{chosen}" if provider else str(chosen))
        return gateway.runtime.catalogue().default_for(gateway.runtime.config.current, target.agent_id)
    except UnknownModel:
        return None


def _set_text(entry: dict[str, Any], name: str, value: Setting) -> None:
    if value is msgspec.UNSET:
        return
    text = str(value or "").strip()
    if text:
        entry[name] = text
    else:
        entry.pop(name, None)


def _set_spawned_by(entry: dict[str, Any], value: Setting, target: SessionRef) -> None:
    if value is msgspec.UNSET:
        return
    known = entry.get("spawnedBy")
    if value is None:
        if known:
            raise MethodError("spawnedBy cannot be cleared once set")
        return
    if not is_subagent(target.key):
        raise MethodError("spawnedBy is only supported for subagent:* sessions")
    parent = str(value).strip()
    if not parent:
        raise MethodError("invalid spawnedBy: empty")
    if known and known != parent:
        raise MethodError("spawnedBy cannot be changed once set")
    entry["spawnedBy"] = parent


def _set_model(entry: dict[str, Any], value: Setting, target: SessionRef, gateway: Gateway) -> None:
    """Sets the model. The default model is stored as no choice, so that it follows the configuration."""
    if value is msgspec.UNSET:
        return
    for name in ("providerOverride", "modelOverride", "authProfileOverride", "authProfileOverrideSource"):
        entry.pop(name, None)
    if value is None:
        return
    text = str(value).strip()
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
    try:
        model = gateway.runtime.catalogue().default_for(gateway.runtime.config.current, agent_id)
    except UnknownModel:
        return {"modelProvider": None, "model": None}
    return {"modelProvider": model.provider, "model": model.id}
