"""The fault switch, for tests only: dying, failing and dawdling at named points of a message's life.

Off unless the process was started with ``OPENCLAW_FAULT_INJECTION=allow`` *and* a plan in ``OPENCLAW_FAULT_PLAN``. Both
are read once, when this module is first imported, before any configuration is: nothing in the configuration and nothing
that comes over the network can turn it on. Off, ``point`` and ``write`` are empty functions.

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


class Fault(msgspec.Struct, frozen=True, rename={"while_exists": "while"}, forbid_unknown_fields=True):
    at: str
    """Name of a point, ``write`` or ``sync``; wildcards as in file names."""
    do: Literal["kill", "ENOSPC", "EIO", "EROFS", "delay"]
    path: str = "*"
    """For ``write`` and ``sync``: which files."""
    hit: int = 1
    """The first matching hit that counts."""
    times: int = 0
    """How many hits fail from there on; 0 is all."""
    ms: int = 0
    while_exists: str | None = None
    """Counts only while this file exists, so that a test can give the space back."""


class Plan:
    """The faults of one process and how often each was met. Points are passed in several threads."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        self._hits = [0] * len(faults)
        self._guard = threading.Lock()

    def point(self, name: str) -> None:
        self._meet(name, "")

    def write(self, path: Path) -> None:
        self._meet("write", str(path))

    def sync(self, path: Path) -> None:
        self._meet("sync", str(path))

    def _meet(self, name: str, path: str) -> None:
        for place, fault in enumerate(self._faults):
            if not fnmatchcase(name, fault.at) or (path and not fnmatchcase(path, fault.path)):
                continue
            if fault.while_exists is not None and not Path(fault.while_exists).exists():
                continue
            with self._guard:
                self._hits[place] += 1
                late = self._hits[place] - fault.hit
            if late >= 0 and (not fault.times or late < fault.times):
                _strike(fault, name, path)


def _strike(fault: Fault, name: str, path: str) -> None:
    match fault.do:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "delay":
            time.sleep(fault.ms / 1000)
        case _:
            number = int(getattr(errno, fault.do))
            raise OSError(number, os.strerror(number), path or name)


def plan_from(environ: Mapping[str, str]) -> Plan | None:
    """None unless both variables are set. A plan that cannot be read is an error: a test must not pass by accident."""
    if environ.get(CONSENT) != "allow" or not environ.get(PLAN):
        return None
    return Plan(msgspec.json.decode(environ[PLAN], type=list[Fault]))


def _nothing(_: object) -> None:
    pass


_plan = plan_from(os.environ)
active = _plan is not None
point: Callable[[str], None] = _plan.point if _plan else _nothing
"""A named step has been reached."""
write: Callable[[Path], None] = _plan.write if _plan else _nothing
"""Bytes are about to be written to this file."""
sync: Callable[[Path], None] = _plan.sync if _plan else _nothing
"""This file is about to be made durable."""
