"""``system-presence``, ``system-event`` and ``last-heartbeat``: who is here, and notes for the main session."""

from __future__ import annotations

from typing import Any

from openclaw.gateway.params import NonEmpty, Params
from openclaw.gateway.registry import Call, MethodError, method


class NoParams(Params):
    pass


class SystemEvent(Params):
    text: str
    session_key: NonEmpty | None = None
    device_id: str | None = None
    instance_id: str | None = None
    host: str | None = None
    ip: str | None = None
    mode: str | None = None
    version: str | None = None
    platform: str | None = None
    device_family: str | None = None
    model_identifier: str | None = None
    last_input_seconds: float | None = None
    reason: str | None = None
    roles: list[str] | None = None
    scopes: list[str] | None = None
    tags: list[str] | None = None


_FACTS = {
    "deviceId": "device_id",
    "instanceId": "instance_id",
    "host": "host",
    "ip": "ip",
    "mode": "mode",
    "version": "version",
    "platform": "platform",
    "deviceFamily": "device_family",
    "modelIdentifier": "model_identifier",
    "lastInputSeconds": "last_input_seconds",
    "reason": "reason",
    "roles": "roles",
    "scopes": "scopes",
    "tags": "tags",
}


@method("system-presence", NoParams)
async def presence(call: Call) -> Any:
    return call.gateway.presence.listing()


@method("system-event", SystemEvent)
async def system_event(call: Call) -> Any:
    """A line in the form machines announce themselves with is presence; others wait for a session's next run."""
    params: SystemEvent = call.params
    text = params.text.strip()
    if not text:
        raise MethodError("text required")
    gateway = call.gateway
    facts = {wire: getattr(params, name) for wire, name in _FACTS.items()}
    if not gateway.presence.announce(text, facts):
        gateway.system_events.add(gateway.canonical_key(params.session_key), text)
    gateway.tell_presence()
    return {"ok": True}


@method("last-heartbeat", NoParams)
async def last_heartbeat(call: Call) -> Any:
    """None has run: heartbeats are not part of this version."""
    return None
