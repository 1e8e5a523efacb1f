"""What is known about an account right now, as clients see it."""

from __future__ import annotations

from typing import Any

import msgspec


class Disconnect(msgspec.Struct, frozen=True):
    at: int
    error: str


class AccountStatus(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    account_id: str
    name: str | None = None
    enabled: bool = msgspec.field(default=True)
    configured: bool = msgspec.field(default=True)
    running: bool = False
    connected: bool = False
    reconnect_attempts: int = 0
    """Since the last time it was connected."""
    restarts: int = 0
    """Crashes since the Gateway started."""
    last_connected_at: int | None = None
    last_disconnect: Disconnect | None = None
    last_inbound_at: int | None = None
    last_outbound_at: int | None = None
    last_error: str | None = None
    last_start_at: int | None = None
    last_stop_at: int | None = None

    def view(self) -> dict[str, Any]:
        """With the plain yes and no always said; what never happened is left out."""
        flags = {name: getattr(self, name) for name in ("enabled", "configured", "running", "connected")}
        return {**msgspec.to_builtins(self), **flags}
