"""A real Gateway in its own process, and a plain client of its WebSocket protocol. See also gateway_in_process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

from tests.support.ports import KeptPort
from tests.support.postgres import storage_for, stored_lines

FEW_TOOLS = {"allow": ["read", "write", "edit", "exec", "process", "memory_search", "memory_get"]}
"""For tests that depend on the size of the prompt. It must not change when the product gets another tool."""
TOKEN = "test-token-0123456789abcdef0123456789abcdef"
START_S = 120


def model_config(base_url: str, api_key: str = "test-key", **more: Any) -> dict[str, Any]:
    """A configuration that answers from a mock model server speaking Anthropic Messages."""
    model = {"id": "mock-1", "name": "Mock", "contextWindow": 200_000, "maxTokens": 8192, "input": ["text", "image"]}
    provider = {"baseUrl": base_url, "apiKey": api_key, "api": "anthropic-messages", "models": [model]}
    return {
        "gateway": {"mode": "local", "auth": {"mode": "token", "token": TOKEN}},
        "agents": {"defaults": {"model": "mock/mock-1", "userTimezone": "UTC"}},
        "models": {"providers": {"mock": provider}},
        "retry": {"baseDelayMs": 5},
        **more,
    }


class GatewayUnderTest:
    """What every Gateway under test has, wherever it runs: its folders, its address, and clients of it."""

    def __init__(
        self, state_dir: Path, config: dict[str, Any] | None = None, env: dict[str, str] | None = None
    ) -> None:
        self.state_dir = state_dir
        self._kept_port = KeptPort()
        self.port = self._kept_port.number
        self.env = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")} | {
            "OPENCLAW_STATE_DIR": str(state_dir),
            "HOME": str(state_dir.parent),
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
        }
        """The environment of the Gateway, and of the commands that a test runs beside it."""
        self.env.pop("OPENCLAW_CONFIG_PATH", None)
        if config is not None:
            if os.environ.get("OPENCLAW_TEST_STORAGE") == "postgres":
                config = {"storage": storage_for(state_dir), **config}
            state_dir.mkdir(parents=True, exist_ok=True)
            (state_dir / "openclaw.json").write_text(json.dumps(config, indent=2))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def errors_path(self) -> Path:
        return self.state_dir.parent / "gateway.err"

    def errors(self) -> str:
        return self.errors_path.read_text()[-4000:] if self.errors_path.exists() else ""

    @contextlib.asynccontextmanager
    async def client(self, **connect: Any) -> Any:
        url = self.url.replace("http", "ws")
        async with aiohttp.ClientSession() as session, session.ws_connect(url, max_msg_size=0) as socket:
            client = WireClient(socket)
            await client.connect(**connect)
            try:
                yield client
            finally:
                await client.close()

    async def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Runs ``openclaw`` with these arguments in a process of its own, which finds the Gateway by itself."""
        from tests.support.forked_command import run_command

        return await asyncio.to_thread(run_command, args, self.env, Path.cwd())

    @property
    def storage(self) -> dict[str, str] | None:
        """The database of the Gateway. None: it keeps files."""
        return json.loads((self.state_dir / "openclaw.json").read_text()).get("storage")

    def sessions_dir(self, agent: str = "main") -> Path:
        return self.state_dir / "agents" / agent / "sessions"

    def transcript(self, session_id: str, agent: str = "main") -> list[dict[str, Any]]:
        path = self.sessions_dir(agent) / f"{session_id}.jsonl"
        if (storage := self.storage) is not None:
            return [json.loads(line) for line in stored_lines(storage, agent, path.name)]
        return [json.loads(line) for line in path.read_text().splitlines()]


class GatewayProcess(GatewayUnderTest):
    """``async with GatewayProcess(state, config) as gateway``: started, and told to stop at the end."""

    def __init__(
        self, state_dir: Path, config: dict[str, Any] | None = None, env: dict[str, str] | None = None
    ) -> None:
        super().__init__(state_dir, config, env)
        self.before_exec: Callable[[], None] | None = None
        """Runs in the new process before it becomes the Gateway."""
        self._process: subprocess.Popen[str] | None = None

    async def start(self, *args: str) -> GatewayProcess:
        self._process = self._spawn(args)
        line = await asyncio.wait_for(asyncio.to_thread(self._process.stdout.readline), START_S)  # type: ignore[union-attr]
        if "http" not in line:
            raise AssertionError(f"the Gateway did not start: {line!r}\n{self.errors()}")
        self.port = int(line.strip().rsplit(":", 1)[1])
        return self

    def _spawn(self, args: tuple[str, ...]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "openclaw", "gateway", "run", "--port", str(self.port), *args]
        with self.errors_path.open("a") as errors:
            return subprocess.Popen(
                command,
                env=self.env,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=self.before_exec,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As a power cut would: no goodbye."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    async def stop(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._process.wait), 60)
        except TimeoutError:
            self._process.kill()
            raise
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()

    async def __aenter__(self) -> GatewayProcess:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            await self.stop()


class RequestFailed(Exception):
    def __init__(self, error: dict[str, Any], payload: Any) -> None:
        super().__init__(error["message"])
        self.code = error["code"]
        self.error = error
        self.payload = payload


class WireClient:
    """Sends requests and sorts what comes back; events are kept in order of arrival."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.hello: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.bytes_received = 0
        self._answers: dict[str, asyncio.Queue[dict[str, Any] | None]] = {}
        """None in a queue: the connection has closed."""
        self._arrived = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def connect(self, *, token: str = TOKEN, caps: tuple[str, ...] = ("tool-events",), **more: Any) -> None:
        challenge = await self.socket.receive_json()
        assert challenge["event"] == "connect.challenge"
        params = {
            "minProtocol": 3,
            "maxProtocol": 3,
            "client": {"id": "test", "version": "1.0.0", "platform": "linux", "mode": "test"},
            "caps": list(caps),
            "auth": {"token": token},
            **more,
        }
        self._reader = asyncio.create_task(self._read())
        self.hello = await self.call("connect", params)

    async def _read(self) -> None:
        async for message in self.socket:
            self.bytes_received += len(message.data)
            frame = json.loads(message.data)
            if frame["type"] == "res":
                self._answers.setdefault(frame["id"], asyncio.Queue()).put_nowait(frame)
            else:
                self.events.append(frame)
            self._arrived.set()
        self._arrived.set()
        for waiting in self._answers.values():
            waiting.put_nowait(None)

    async def send(self, method: str, params: Any = None) -> str:
        request_id = str(uuid.uuid4())
        self._answers[request_id] = asyncio.Queue()
        frame = {"type": "req", "id": request_id, "method": method}
        await self.socket.send_json(frame if params is None else {**frame, "params": params})
        return request_id

    async def answer(self, request_id: str, timeout: float = 60) -> Any:
        waiting = self._answers[request_id]
        gone = waiting.empty() and self._reader is not None and self._reader.done()
        frame = None if gone else await asyncio.wait_for(waiting.get(), timeout)
        if frame is None:
            raise ConnectionError("the connection closed before the answer")
        if not frame["ok"]:
            raise RequestFailed(frame["error"], frame.get("payload"))
        return frame.get("payload")

    async def call(self, method: str, params: Any = None, timeout: float = 60) -> Any:
        return await self.answer(await self.send(method, params), timeout)

    async def event(self, matches: Any, timeout: float = 60) -> dict[str, Any]:
        """The first event, past or to come, whose (name, payload) the function accepts."""
        seen = 0
        async with asyncio.timeout(timeout):
            while True:
                for frame in self.events[seen:]:
                    if matches(frame["event"], frame.get("payload")):
                        return frame
                seen = len(self.events)
                self._arrived.clear()
                if self.socket.closed:
                    raise AssertionError("the connection closed while waiting for an event")
                await self._arrived.wait()

    async def chat(self, text: str, session_key: str = "main", **more: Any) -> dict[str, Any]:
        """Sends a message and returns the payload of the run's last chat event. A session that is new is begun."""
        run_id = more.pop("run_id", None) or str(uuid.uuid4())
        target = {"sessionKey": session_key} if more.pop("as_given", False) else named(session_key)
        await self.call("chat.send", {**target, "message": text, "idempotencyKey": run_id, **more})
        return await self.ending(run_id)

    async def chat_as_requester(self, text: str, child: str) -> str:
        """Sends a message to a sub-agent as the Gateway does for its requester, and returns the reply."""
        params = {"sessionKey": child, "lane": "subagent", "message": text, "idempotencyKey": str(uuid.uuid4())}
        request = await self.send("agent", params)
        await self.answer(request)
        return str((await self.answer(request))["result"]["payloads"][0]["text"])

    async def ending(self, run_id: str, timeout: float = 60) -> dict[str, Any]:
        def is_end(event: str, payload: Any) -> bool:
            return event == "chat" and payload["runId"] == run_id and payload["state"] in ("final", "error", "aborted")

        return (await self.event(is_end, timeout))["payload"]

    def of_run(self, run_id: str) -> list[dict[str, Any]]:
        return [frame for frame in self.events if (frame.get("payload") or {}).get("runId") == run_id]

    async def close(self) -> None:
        await self.socket.close()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=60)


def named(session_key: str) -> dict[str, str]:
    """The parameters of a message to a session that may be new: its name and its agent."""
    _, agent, name = session_key.split(":", 2) if session_key.startswith("agent:") else ("", "", session_key)
    return {"sessionKey": name, "agentId": agent} if agent else {"sessionKey": name}


def text_of(payload: dict[str, Any]) -> str:
    assert "message" in payload, payload
    return "".join(block["text"] for block in payload["message"]["content"] if block["type"] == "text")


def put_file(gateway: GatewayUnderTest, name: str, data: bytes) -> None:
    """Puts a file into the default agent's workspace."""
    path = gateway.state_dir / "workspace" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
