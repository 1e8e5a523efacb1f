"""Fault injection for tests: the process dies, fails or sleeps at named points of a message's life.

It is off unless the process is started with ``OPENCLAW_FAULT_INJECTION=allow`` *and* a plan in ``OPENCLAW_FAULT_PLAN``.
Both are read once, when this module is imported. Neither the configuration nor the network can turn it on. When it is
off, ``point``, ``write`` and ``sync`` are empty functions.

A plan is a JSON list of faults::

    [{"at": "finish.before", "do": "kill", "hit": 2},
     {"at": "write", "path": "*.jsonl", "do": "ENOSPC", "while": "/tmp/full"},
     {"at": "model.call", "do": "delay", "ms": 50}]
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec

PLAN = "OPENCLAW_FAULT_PLAN"
CONSENT = "OPENCLAW_FAULT_INJECTION"
APPENDED = (".jsonl", ".journal")


class Fault(msgspec.Struct, frozen=True, rename={"while_exists": "while"}, forbid_unknown_fields=True):
    at: str
    """The name of a point, ``write`` or ``sync``. Wildcards work as in file names."""
    do: Literal["kill", "power cut", "lost pages", "ENOSPC", "EIO", "EROFS", "delay"]
    """``power cut`` kills too, and takes back what was appended to transcripts and journals and not synced.

    ``lost pages`` is a failed sync of such a file after which the kernel has dropped those bytes: they are zeros.
    """
    path: str = "*"
    """The files that ``write`` and ``sync`` faults hold for."""
    hit: int = 1
    """The number of the first hit that fails."""
    times: int = 0
    """How many hits fail from there on. 0 means all."""
    ms: int = 0
    """How long a ``delay`` sleeps."""
    while_exists: str | None = None
    """The fault happens only while this file exists, so that a test can end it."""


class Plan:
    """The faults of one process and how often each was hit. Several threads use it."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        self._hits = [0] * len(faults)
        self._guard = threading.Lock()
        self._durable: dict[Path, int] = {}
        """The bytes of each appended file that a power cut leaves."""

    def point(self, name: str) -> None:
        self._meet(name, "")

    def write(self, path: Path) -> None:
        with self._guard:
            if path.suffix in APPENDED and path not in self._durable:
                self._durable[path] = path.stat().st_size if path.exists() else 0
        self._meet("write", str(path))

    def sync(self, path: Path) -> None:
        self._meet("sync", str(path))
        with self._guard:
            if path.suffix in APPENDED and path.exists():
                self._durable[path] = path.stat().st_size

    def _meet(self, name: str, path: str) -> None:
        for index, fault in enumerate(self._faults):
            if not fnmatchcase(name, fault.at) or (path and not fnmatchcase(path, fault.path)):
                continue
            if fault.while_exists is not None and not Path(fault.while_exists).exists():
                continue
            with self._guard:
                self._hits[index] += 1
                late = self._hits[index] - fault.hit
            if late >= 0 and (not fault.times or late < fault.times):
                self._strike(fault, path or name)

    def _strike(self, fault: Fault, where: str) -> None:
        match fault.do:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "power cut":
                # Held to the end: what another thread syncs or commits from now on would outlive what is taken back.
                self._guard.acquire()
                for path, size in self._durable.items():
                    if path.exists():
                        # A new file takes its place, because an append that is under way still goes to the old one.
                        left = path.with_name(f"{path.name}.left")
                        left.touch(0o600)
                        left.write_bytes(path.read_bytes()[:size])
                        left.replace(path)
                os.kill(os.getpid(), signal.SIGKILL)
            case "lost pages":
                with self._guard, Path(where).open("r+b") as file:
                    durable_size = self._durable.get(Path(where), 0)
                    lost = file.seek(0, os.SEEK_END) - durable_size
                    file.seek(durable_size)
                    file.write(bytes(lost))
                raise OSError(errno.EIO, os.strerror(errno.EIO), where)
            case "delay":
                time.sleep(fault.ms / 1000)
            case _:
                number = int(getattr(errno, fault.do))
                raise OSError(number, os.strerror(number), where)


def plan_from(environ: Mapping[str, str]) -> Plan | None:
    """Reads the plan. None unless both variables are set. A plan that cannot be read is an error."""
    if environ.get(CONSENT) != "allow" or not environ.get(PLAN):
        return None
    return Plan(msgspec.json.decode(environ[PLAN], type=list[Fault]))


def _nothing(_: object) -> None:
    pass


_plan = plan_from(os.environ)
active = _plan is not None
point: Callable[[str], None] = _plan.point if _plan else _nothing
"""Called when a named step is reached."""
write: Callable[[Path], None] = _plan.write if _plan else _nothing
"""Called before bytes are written to a file."""
sync: Callable[[Path], None] = _plan.sync if _plan else _nothing
"""Called before a file is made durable."""
