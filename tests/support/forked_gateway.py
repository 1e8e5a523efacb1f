"""A Gateway process that is forked from one which has the modules loaded: as real as any other, and started sooner.

For tests that start and kill many. How a Gateway is started from the command line is tested elsewhere.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from typing import IO, Any

from openclaw.storage import faults
from tests.support.gateway import GatewayProcess

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.support.fork_origin"])


class ForkedGateway(GatewayProcess):
    """Used like ``GatewayProcess``."""

    def _spawn(self, args: tuple[str, ...]) -> Any:
        assert not args and self.before_exec is None
        reading, writing = os.pipe()
        process = FORKS.Process(
            target=_become_gateway, args=(self.env, self.port, str(self.errors_path), DupFd(writing))
        )
        process.start()
        os.close(writing)
        return _Forked(process, os.fdopen(reading))


class _Forked:
    """What ``GatewayProcess`` needs of a ``subprocess.Popen``."""

    def __init__(self, process: ForkServerProcess, stdout: IO[str]) -> None:
        self._process = process
        self.stdout = stdout
        assert process.pid is not None
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutError
        return code

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)


def _become_gateway(env: dict[str, str], port: int, errors_path: str, output: Any) -> None:
    begin(env, output.detach(), os.open(errors_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    from openclaw.gateway.main import Options, run

    os._exit(run(Options(port=port)))


def begin(env: dict[str, str], output: int, errors: int) -> None:
    """Makes a forked process look as if it had just been started with this environment and these streams."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    importlib.reload(faults)  # It reads its plan from the environment when it is loaded.
