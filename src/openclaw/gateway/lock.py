"""One Gateway per state directory: an advisory lock that dies with its process, however it dies."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from openclaw.paths import make_private_dir

LOCK_NAME = "gateway.lock"


class AlreadyRunning(Exception):
    """Another process holds the state directory; the text names it."""


class GatewayLock:
    """Held from ``acquire`` until ``release`` or the end of the process. The file may stay: only the lock counts."""

    def __init__(self, state_dir: str, descriptor: int | None) -> None:
        self.path = Path(state_dir) / LOCK_NAME
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, state_dir: str, environ: Mapping[str, str]) -> GatewayLock:
        if environ.get("OPENCLAW_ALLOW_MULTI_GATEWAY") == "1":
            return cls(state_dir, None)
        make_private_dir(state_dir)
        descriptor = os.open(Path(state_dir) / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _read(descriptor)
            os.close(descriptor)
            raise AlreadyRunning(_who(holder, state_dir)) from None
        return cls(state_dir, descriptor)

    def describe(self, *, started_at: int, port: int, config_path: str) -> None:
        """Writes down who holds the lock, for the next one to try and for the command line."""
        if self._descriptor is None:
            return
        facts = {"pid": os.getpid(), "startedAt": started_at, "port": port, "configPath": config_path}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(facts).encode(), 0)

    def release(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def _read(descriptor: int) -> dict[str, Any]:
    try:
        facts = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _who(holder: dict[str, Any], state_dir: str) -> str:
    pid, since, port = holder.get("pid"), holder.get("startedAt"), holder.get("port")
    if not isinstance(pid, int):
        return f"another Gateway is starting with {state_dir}; wait for it or stop it first"
    text = f"a Gateway already runs with {state_dir}: pid {pid}"
    if isinstance(since, int):
        text += f", since {datetime.fromtimestamp(since / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(port, int):
        text += f", on port {port}"
    return f"{text}. Stop it with `openclaw gateway stop`, or use another OPENCLAW_STATE_DIR"
