"""The connection to a signal-cli daemon: its process, JSON-RPC calls and the event stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from openclaw.channels.base import NotConfigured
from openclaw.clock import Clock
from openclaw.config.schema.channels import SignalAccount
from openclaw.url_text import redact_urls

log = logging.getLogger("openclaw.channels.signal")

TIMEOUT_S = 10.0
MAX_ANSWER = 192 * 1024 * 1024
"""An attachment comes as base64 in one answer. Its own limit is checked before it is requested."""
MAX_EVENT = 4 * 1024 * 1024
IDLE_S = 60.0
"""The daemon sends something every 15 s. A stream that is silent for this long is dead."""
READY_POLL_S = 0.15
END_S = 10.0
MAX_LINE = 2000


class RpcError(Exception):
    """The daemon answered with an error."""

    def __init__(self, method: str, code: int, message: str, data: Any = None) -> None:
        super().__init__(redact_urls(f"signal-cli {method}: {message} (code {code})"))
        self.code = code
        self.data = data


class RpcUnreachable(Exception):
    """The daemon did not answer. If ``sent``, the request was sent and may have been carried out."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(redact_urls(message))
        self.sent = sent


class SignalRpc:
    def __init__(self, http: aiohttp.ClientSession, base_url: str) -> None:
        self._http = http
        self._base_url = base_url

    async def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> Any:
        """Returns the result, or None if there is none. Raises ``RpcError`` or ``RpcUnreachable``."""
        request: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "id": str(uuid.uuid4())}
        if params is not None:
            request["params"] = params
        body = msgspec.json.encode(request)
        headers = {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(timeout_s):
                async with self._http.post(f"{self._base_url}/api/v1/rpc", data=body, headers=headers) as response:
                    if response.status == 201:
                        return None
                    if response.status != 200:
                        raise RpcError(
                            method, response.status, f"HTTP {response.status} {response.reason or ''}".strip()
                        )
                    return _result(method, request["id"], await _read(response, method))
        except TimeoutError:
            raise RpcUnreachable(f"signal-cli {method}: no answer within {timeout_s:g} s", sent=True) from None
        except aiohttp.ClientConnectorError as error:
            raise RpcUnreachable(f"signal-cli at {self._base_url} cannot be reached: {error}", sent=False) from None
        except aiohttp.ClientError as error:
            detail = str(error) or type(error).__name__
            raise RpcUnreachable(f"signal-cli {method}: the connection broke ({detail})", sent=True) from None

    async def check(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Whether the daemon is up."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._http.get(f"{self._base_url}/api/v1/check") as response:
                    return response.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return False


async def _read(response: aiohttp.ClientResponse, method: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(256 * 1024):
        size += len(chunk)
        if size > MAX_ANSWER:
            raise RpcError(method, response.status, f"the answer is larger than {MAX_ANSWER} bytes")
        parts.append(chunk)
    return b"".join(parts)


def _result(method: str, request_id: str, body: bytes) -> Any:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise RpcError(method, 0, "the answer is not JSON; is this really a signal-cli daemon?") from None
    match answer:
        case {"error": {"code": int(code), "message": str(message), **more}}:
            raise RpcError(method, code, message, more.get("data"))
        case {"jsonrpc": "2.0", "id": answered, "result": result} if answered == request_id:
            return result
        case _:
            raise RpcError(method, 0, "the answer is no JSON-RPC response to this request")


class StreamLost(Exception):
    """The stream ended or could not be opened. The message says why."""


class ServerEvent(msgspec.Struct, frozen=True):
    """One event of the stream. A keep-alive has empty ``data``."""

    data: bytes = b""
    id: str = ""


async def read_events(
    http: aiohttp.ClientSession, base_url: str, account: str | None, last_id: str, idle_s: float = IDLE_S
) -> AsyncGenerator[ServerEvent]:
    """Yields the events of the stream. The first one has no data and says that the stream is open.

    It always ends with ``StreamLost``. Newer daemons begin after ``last_id``. Dedupe drops repeated events.
    """
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=idle_s)
    params = {"account": account} if account else {}
    try:
        async with http.get(f"{base_url}/api/v1/events", params=params, headers=headers, timeout=timeout) as response:
            if response.status == 400:
                raise StreamLost(f"the daemon does not know the account {account}")
            if response.status != 200:
                raise StreamLost(f"the daemon answered {response.status} {response.reason or ''}".strip())
            yield ServerEvent()
            async for event in _parse(response.content):
                yield event
    except TimeoutError:
        raise StreamLost(f"nothing was heard for {idle_s:g} s") from None
    except aiohttp.ClientError as error:
        raise StreamLost(str(error) or type(error).__name__) from None
    raise StreamLost("the daemon closed the stream")


async def _parse(content: aiohttp.StreamReader) -> AsyncIterator[ServerEvent]:
    pending = bytearray()
    data: list[bytes] = []
    size = 0
    event_id = ""
    async for chunk in content.iter_any():
        pending += chunk
        *lines, rest = pending.split(b"\n")
        pending = bytearray(rest)
        if size + len(pending) > MAX_EVENT:
            raise StreamLost(f"one event is larger than {MAX_EVENT} bytes")
        for raw in lines:
            line = bytes(raw).rstrip(b"\r")
            if not line:
                if data:
                    yield ServerEvent(b"\n".join(data), event_id)
                data, size = [], 0
                continue
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if not name:
                yield ServerEvent()
            elif name == b"data":
                data.append(value)
                size += len(value)
            elif name == b"id" and b"\0" not in value:
                event_id = value.decode(errors="replace")


class DaemonFailed(Exception):
    """The daemon did not start, or it ended."""


def arguments(settings: SignalAccount) -> list[str]:
    account = ["-a", settings.account] if settings.account else []
    listen = f"{settings.http_host}:{settings.http_port}"
    options = ["--http", listen, "--no-receive-stdout"]
    if settings.receive_mode:
        options += ["--receive-mode", settings.receive_mode]
    if settings.ignore_attachments:
        options.append("--ignore-attachments")
    if settings.ignore_stories:
        options.append("--ignore-stories")
    return [str(Path(settings.cli_path).expanduser()), *account, "daemon", *options]


class Daemon:
    """Our own signal-cli process. It runs as long as the channel."""

    def __init__(self, settings: SignalAccount, rpc: SignalRpc, clock: Clock, log: logging.Logger) -> None:
        self._settings = settings
        self._rpc = rpc
        self._clock = clock
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the process and returns when it answers."""
        command = arguments(self._settings)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=64 * 1024,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise NotConfigured(
                f"{command[0]} cannot be started ({error.strerror}). Install signal-cli, name it in"
                " channels.signal.cliPath, or set channels.signal.httpUrl to a daemon that runs elsewhere."
            ) from None
        self._reader = asyncio.create_task(self._pass_on_output(self._process))
        try:
            await self._until_ready(self._process)
        except BaseException:
            await self.stop()
            raise

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        allowed = self._settings.startup_timeout_ms / 1000
        deadline = self._clock.monotonic() + allowed
        while process.returncode is None:
            if await self._rpc.check(timeout_s=1.0):
                return
            if self._clock.monotonic() >= deadline:
                raise DaemonFailed(f"signal-cli was not ready after {allowed:g} s (channels.signal.startupTimeoutMs)")
            await self._clock.sleep(READY_POLL_S)
        raise DaemonFailed(f"signal-cli ended at once with code {process.returncode}; its log says why")

    async def ended(self) -> str:
        """Waits until the process ends by itself and returns how it ended."""
        assert self._process is not None
        return f"signal-cli ended with code {await self._process.wait()}"

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(END_S):
                    await process.wait()
            except TimeoutError:
                _signal_group(process.pid, signal.SIGKILL)
                await process.wait()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _pass_on_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                raw = await process.stdout.readline()
            except ValueError:
                continue  # The line is longer than the reader's limit; its rest comes next.
            if not raw:
                return
            line = raw.decode(errors="replace").strip()[:MAX_LINE]
            serious = any(word in line for word in ("ERROR", "WARN", "Exception", "Failed"))
            self._log.log(logging.WARNING if serious else logging.DEBUG, "signal-cli: %s", line)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
