"""``openclaw`` commands in processes that are forked from one which has the modules loaded.

A command is as real as any other: it has a process, an environment and streams of its own. Only Python and the modules
are not loaded again for each. What a command loads, and how it is started, is tested with processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from tests.support.forked_gateway import FORKS, begin


def run_command(
    args: tuple[str, ...], env: dict[str, str], cwd: Path, *, input: str = "", timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Like ``subprocess.run`` with these arguments of ``openclaw`` and text."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given.write(input.encode())
        given.seek(0)
        streams = [DupFd(file.fileno()) for file in (given, output, errors)]
        process = FORKS.Process(target=_become_command, args=(args, env, str(cwd), streams))
        process.start()
        process.join(timeout)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(["openclaw", *args], timeout)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(["openclaw", *args], code, output.read().decode(), errors.read().decode())


def _become_command(args: tuple[str, ...], env: dict[str, str], cwd: str, streams: list[Any]) -> None:
    os.chdir(cwd)
    given, output, errors = (stream.detach() for stream in streams)
    os.dup2(given, 0)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    begin(env, output, errors)
    from openclaw.cli.main import main

    code = main(list(args))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
