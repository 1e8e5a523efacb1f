from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked_command import run_command

from .fake_gateway import FakeGateway, write_state

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    directory.mkdir(mode=0o700)
    return directory


@pytest.fixture
def environ(tmp_path: Path, state: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "GIT_ALLOW_PROTOCOL") if name in os.environ}
    return {
        **kept,
        "HOME": str(tmp_path),
        "OPENCLAW_STATE_DIR": str(state),
        # Any free port: somebody's Gateway may listen at the usual one.
        "OPENCLAW_GATEWAY_PORT": "0",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYTHONUTF8": "1",
    }


class Cli:
    """Runs the real command as a process of its own.

    It is forked from a process that has the modules loaded, unless a test sets what Python reads when it starts.
    """

    def __init__(self, environ: dict[str, str], cwd: Path) -> None:
        self.environ = environ
        self.cwd = cwd

    def __call__(self, *args: str, input: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        env = {**self.environ, **environ}
        if not any(name.startswith("PYTHON") for name in environ):
            return run_command(args, env, self.cwd, input=input)
        command = [sys.executable, "-m", "openclaw", *args]
        return subprocess.run(command, input=input, capture_output=True, text=True, timeout=60, cwd=self.cwd, env=env)

    def start(self, *args: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "openclaw", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.cwd,
            env={**self.environ, **environ},
        )


@pytest.fixture
def cli(environ: dict[str, str], tmp_path: Path) -> Cli:
    return Cli(environ, tmp_path)


@pytest.fixture
def gateway(state: Path) -> Iterator[FakeGateway]:
    """A running Gateway that the state directory knows about."""
    fake = FakeGateway()
    write_state(str(state), fake.port, os.getpid())
    yield fake
    fake.close()
