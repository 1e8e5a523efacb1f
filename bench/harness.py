"""A real Gateway and a mock model, each in a process of its own, with a state directory that goes away at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from bench.process import environment
from bench.wire import TOKEN, Wire

ROOT = Path(__file__).resolve().parent.parent
START_S = 60
STOP_S = 30


def config(model_port: int) -> dict[str, Any]:
    model = {"id": "mock-1", "name": "Mock", "contextWindow": 200_000, "maxTokens": 8192, "input": ["text"]}
    provider = {
        "baseUrl": f"http://127.0.0.1:{model_port}",
        "apiKey": "bench-key-0123456789",
        "api": "anthropic-messages",
        "models": [model],
    }
    return {
        "gateway": {"mode": "local", "auth": {"mode": "token", "token": TOKEN}},
        "agents": {"defaults": {"model": "mock/mock-1", "userTimezone": "UTC", "maxConcurrent": 200}},
        "models": {"providers": {"mock": provider}},
    }


def _merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {key: _merged(base[key], more[key]) for key in base.keys() & more.keys() if isinstance(base[key], dict)}
    return {**base, **more, **both}


class GatewayProcess:
    def __init__(self, home: Path, model_port: int, more: dict[str, Any] | None = None) -> None:
        """``more`` has sections that the configuration gets besides."""
        self.state_dir = home / ".openclaw"
        self.state_dir.mkdir(parents=True, exist_ok=True)
        (self.state_dir / "openclaw.json").write_text(json.dumps(_merged(config(model_port), more or {})))
        self._errors = home / "gateway.err"
        kept = {name: value for name, value in environment().items() if not name.endswith("_API_KEY")}
        self.env = {**kept, "HOME": str(home), "OPENCLAW_STATE_DIR": str(self.state_dir)}
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def sessions_dir(self) -> Path:
        return self.state_dir / "agents" / "main" / "sessions"

    async def start(self) -> None:
        """Returns when it says that it listens."""
        command = [sys.executable, "-m", "openclaw", "gateway", "run", "--port", "0"]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(command, env=self.env, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors)
        assert self._process.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(self._process.stdout.readline), START_S)
        if b"http" not in line:
            raise RuntimeError(f"the Gateway did not start: {line!r}\n{self._errors.read_text()[-2000:]}")
        self.port = int(line.strip().rsplit(b":", 1)[1])

    def kill(self) -> None:
        """As a power cut would: no goodbye."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    async def stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()

    async def __aenter__(self) -> GatewayProcess:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @contextlib.asynccontextmanager
    async def client(self, caps: tuple[str, ...] = ()) -> AsyncIterator[Wire]:
        async with aiohttp.ClientSession() as http:
            socket = await http.ws_connect(f"ws://127.0.0.1:{self.port}", max_msg_size=0, decode_text=False)
            wire = Wire(socket)
            await wire.connect(caps)
            try:
                yield wire
            finally:
                await wire.close()

    async def metrics(self) -> str:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/metrics", headers=headers) as response:
            response.raise_for_status()
            return await response.text()

    async def lag_ms(self) -> float:
        """How late the event loop was, p99, by the Gateway's own figure for the last minute."""
        name = 'openclaw_event_loop_lag_recent_seconds{quantile="0.99"} '
        lines = (await self.metrics()).splitlines()
        return next(float(line[len(name) :]) for line in lines if line.startswith(name)) * 1000


@contextlib.asynccontextmanager
async def mock_model() -> AsyncIterator[int]:
    """The port of a running mock model."""
    process = subprocess.Popen([sys.executable, "-m", "bench.mock_model"], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(await asyncio.to_thread(process.stdout.readline))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.asynccontextmanager
async def prepared(more: dict[str, Any] | None = None) -> AsyncIterator[GatewayProcess]:
    """A Gateway that has not started, in a new home, with its model running."""
    home = Path(tempfile.mkdtemp(prefix="openclaw-bench-"))
    try:
        async with mock_model() as port:
            gateway = GatewayProcess(home, port, more)
            try:
                yield gateway
            finally:
                await gateway.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.asynccontextmanager
async def running(more: dict[str, Any] | None = None) -> AsyncIterator[GatewayProcess]:
    async with prepared(more) as gateway:
        await gateway.start()
        yield gateway
