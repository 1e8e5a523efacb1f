"""The presence list: the Gateway, connected clients, and machines that announced themselves."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import re
import socket
from collections.abc import Callable
from typing import Any, TypeAlias

from openclaw import __version__
from openclaw.clock import Clock

PRESENT_MS = 5 * 60_000
MAX_PRESENT = 200
DELAY_S = 0.05
"""Changes are collected for this long, so that many connections at once cause one event."""
PresenceEntry: TypeAlias = dict[str, Any]
LONGEST_ANNOUNCEMENT = 1000
_HOST = re.compile(r"Node:([^()]+)(?:\(([^()]*)\))?")
_IDLE = re.compile(r"last input (\d{1,9})s ago")


class Presence:
    """The presence list and its version. Connected clients stay in it; other entries expire after five minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, PresenceEntry] = {}
        self._connected: dict[str, int] = {}
        self._self = _self_entry()
        self._publishing: asyncio.Task[None] | None = None
        self.version = 1

    def connect(self, key: str, entry: PresenceEntry) -> None:
        self._connected[key.lower()] = self._connected.get(key.lower(), 0) + 1
        self.upsert(key, {**entry, "reason": "connect"})

    def disconnect(self, key: str) -> None:
        """Remove one connection; the entry says ``disconnect`` once the last one under this key is gone."""
        name = key.lower()
        left = self._connected.get(name, 0) - 1
        if left > 0:
            self._connected[name] = left
            return
        self._connected.pop(name, None)
        if name in self._entries:
            self.upsert(key, {"reason": "disconnect"})

    def upsert(self, key: str, entry: PresenceEntry) -> None:
        name = key.lower()
        merged = {**self._entries.pop(name, {}), **{k: v for k, v in entry.items() if v is not None}}
        merged["ts"] = self._clock.now_ms()
        where = f" ({merged['ip']})" if merged.get("ip") else ""
        mode = f" · mode {merged['mode']}" if merged.get("mode") else ""
        merged["text"] = entry.get("text") or f"Node: {merged.get('host', 'unknown')}{where}{mode}"
        self._entries[name] = merged
        self.version += 1
        self._prune()

    def announce(self, text: str, facts: PresenceEntry) -> bool:
        """Take a ``Node: …`` line as the presence of a machine. Returns False when the text is not one."""
        parsed = _parsed(text) if len(text) <= LONGEST_ANNOUNCEMENT else None
        if parsed is None:
            return False
        entry = {**parsed, **{k: v for k, v in facts.items() if v is not None}, "text": text}
        key = entry.get("deviceId") or entry.get("instanceId") or entry["host"] or entry.get("ip") or text[:64]
        self.upsert(str(key), entry)
        return True

    def publish_soon(self, publish: Callable[[], None]) -> None:
        """Call ``publish`` after a short delay, once for all changes until then."""

        async def work() -> None:
            await self._clock.sleep(DELAY_S)
            publish()

        if self._publishing is None or self._publishing.done():
            self._publishing = asyncio.create_task(work())

    def stop(self) -> None:
        if self._publishing is not None:
            self._publishing.cancel()

    def listing(self) -> list[PresenceEntry]:
        """All entries, newest first. The Gateway's own entry always has the current time."""
        self._prune()
        own = {**self._self, "ts": self._clock.now_ms()}
        return sorted([own, *self._entries.values()], key=lambda entry: -entry["ts"])

    def _prune(self) -> None:
        oldest = self._clock.now_ms() - PRESENT_MS
        for name in [n for n, e in self._entries.items() if e["ts"] < oldest and n not in self._connected]:
            del self._entries[name]
        for name in list(self._entries)[: max(0, len(self._entries) - MAX_PRESENT)]:
            del self._entries[name]


def _parsed(text: str) -> PresenceEntry | None:
    """Read ``Node: host (ip) · app 1.2 · last input 5s ago · mode local · reason periodic``."""
    parts = [" ".join(part.split()) for part in text.split("·", 4)]
    if len(parts) != 5:
        return None
    machine, idle = _HOST.fullmatch(parts[0]), _IDLE.fullmatch(parts[2])
    (app, _, version), (mode_is, _, mode), (reason_is, _, reason) = (parts[n].partition(" ") for n in (1, 3, 4))
    labels = app, mode_is, reason_is
    if machine is None or idle is None or labels != ("app", "mode", "reason") or not (version and mode and reason):
        return None
    entry: PresenceEntry = {"host": machine[1].strip(), "ip": machine[2], "version": version, "mode": mode}
    return {**entry, "reason": reason, "lastInputSeconds": int(idle[1])}


def _self_entry() -> PresenceEntry:
    host, ip = socket.gethostname(), ""
    # The address of the interface that leads to other networks. Nothing is sent to find it.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        ip = probe.getsockname()[0]
    shown = f"{host} ({ip})" if ip else host
    entry: PresenceEntry = {"host": host, "ip": ip, "version": __version__}
    entry |= {"platform": f"{platform.system().lower()} {platform.release()}", "deviceFamily": platform.system()}
    entry |= {"modelIdentifier": platform.machine(), "mode": "gateway", "reason": "self"}
    entry["text"] = f"Gateway: {shown} · app {__version__} · mode gateway · reason self"
    return {key: value for key, value in entry.items() if value}
