"""``hello-ok``: what a client learns when it is let in."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from openclaw import __version__
from openclaw.gateway.broadcast import MAX_BUFFERED_BYTES
from openclaw.gateway.frames import MAX_FRAME_BYTES, PROTOCOL_VERSION
from openclaw.gateway.handshake import Admission
from openclaw.gateway.registry import EVENTS, advertised
from openclaw.gateway.replay import Resumption

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

TICK_INTERVAL_MS = 30_000


def hello_ok(
    gateway: Gateway, admission: Admission, conn_id: str, resumption: Resumption | None = None
) -> dict[str, Any]:
    hello: dict[str, Any] = {
        "type": "hello-ok",
        "protocol": PROTOCOL_VERSION,
        "server": {"version": __version__, "host": socket.gethostname(), "connId": conn_id, **_events(gateway)},
        "features": {"methods": advertised(), "events": list(EVENTS)},
        "snapshot": _snapshot(gateway),
    }
    if resumption is not None:
        hello["server"]["replay"] = resumption.view(gateway.broadcaster)
    if auth := admission.auth_block:
        hello["auth"] = auth
    hello["policy"] = {
        "maxPayload": MAX_FRAME_BYTES,
        "maxBufferedBytes": MAX_BUFFERED_BYTES,
        "tickIntervalMs": TICK_INTERVAL_MS,
    }
    return hello


def _events(gateway: Gateway) -> dict[str, Any]:
    """Where the events of this connection begin, so that a client knows at once whether it missed any."""
    return {"epoch": gateway.broadcaster.epoch, "seq": gateway.broadcaster.seq}


def _snapshot(gateway: Gateway) -> dict[str, Any]:
    return {
        "presence": gateway.presence.listing(),
        "health": gateway.health.cached or {},
        "stateVersion": gateway.state_version(),
        "uptimeMs": gateway.clock.now_ms() - gateway.started_at,
        "configPath": gateway.config_path,
        "stateDir": gateway.state_dir,
        "sessionDefaults": gateway.session_defaults(),
    }
