"""Servers that all test processes of one run share: the first process that needs one starts it, the run ends it."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_RUN = "OPENCLAW_TEST_RUN"
"""The environment variable that names the folder of the run. Processes that a test process starts inherit it."""


def begin_run() -> None:
    """Makes this process the one whose end ends all shared servers."""
    folder = tempfile.mkdtemp(prefix="openclaw-run-")
    os.environ[_RUN] = folder
    atexit.register(_end_run, Path(folder), os.getpid())


def shared_server(name: str, start: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``start`` told of the server with this name when the run's first process asked for it.

    Of what it tells, ``folder`` is removed at the end of the run, and the process ``pid``, if there is one, is ended.
    """
    if _RUN not in os.environ:
        begin_run()
    told = Path(os.environ[_RUN]) / f"{name}.json"
    with told.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            told.write_text(json.dumps(start()))
    return json.loads(told.read_text())


def _end_run(run: Path, owner: int) -> None:
    if os.getpid() != owner:  # A fork of it.
        return
    for told in run.glob("*.json"):
        server = json.loads(told.read_text())
        with contextlib.suppress(ProcessLookupError):
            if "pid" in server:
                os.kill(server["pid"], signal.SIGQUIT)
                with contextlib.suppress(ChildProcessError):  # Usually another process started it.
                    os.waitpid(server["pid"], 0)
                for _ in range(200):
                    os.kill(server["pid"], 0)  # It raises when the server is gone, and has written its last file.
                    time.sleep(0.05)
        shutil.rmtree(server["folder"], ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)
