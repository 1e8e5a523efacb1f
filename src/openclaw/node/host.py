"""The reference node: it connects to a Gateway, carries out what it is asked for, and connects again when cut off.

A command that is running when the connection is lost goes on. Its outcome is told with ``node.event`` once the node is
connected again, so that a command has an end for the agent even if nobody waited for the answer any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import aiohttp
import msgspec

from openclaw import __version__
from openclaw.clock import Clock
from openclaw.node.commands import CommandFailed, NodeCommands, within_bytes
from openclaw.node.identity import CLIENT_ID, CLIENT_MODE, ROLE, NodeIdentity

log = logging.getLogger("openclaw.node")
T = TypeVar("T")

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
PAIRING_PAUSE_S = 5.0
CONNECT_S = 15.0
SILENCE_TICKS = 2.5
"""A Gateway that sends nothing for this many ticks is taken for gone."""
MAX_RUNNING = 32
MAX_UNTOLD = 64
MAX_REMEMBERED = 256
"""Calls whose answers are remembered by their key, so that a repeated call is not carried out again."""
MAX_REMEMBERED_BYTES = 256 * 1024
MAX_FRAME_BYTES = 8 * 1024 * 1024
OUTPUT_CHARS = 20_000
CANCELLED = {"ok": False, "error": {"code": "CANCELLED", "message": "the call was cancelled"}}


class GatewayAddress(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    token: str | None = None
    password: str | None = None
    tls_fingerprint: str | None = None
    """SHA-256 of the only certificate that is accepted."""


class NotLetIn(Exception):
    """The Gateway did not let the node in."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message") or "refused"))
        self.code = str(error.get("code") or "")
        details = error.get("details")
        self.details: dict[str, Any] = details if isinstance(details, dict) else {}
        wait = error.get("retryAfterMs")
        self.retry_after_s = wait / 1000 if isinstance(wait, int) else 0.0


class NodeHost:
    """Keeps one connection to a Gateway. ``run`` returns only when it is cancelled."""

    def __init__(
        self,
        address: GatewayAddress,
        identity: NodeIdentity,
        commands: NodeCommands,
        clock: Clock,
        *,
        display_name: str,
        platform: str,
        path_env: str | None = None,
    ) -> None:
        self._address = address
        self._identity = identity
        self._commands = commands
        self._clock = clock
        self._display_name = display_name
        self._platform = platform
        self._path_env = path_env
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._calls: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._requests: dict[str, str] = {}
        """The keys of calls by the ids that the Gateway gave them."""
        self._untold: deque[dict[str, Any]] = deque(maxlen=MAX_UNTOLD)
        self._unconfirmed: dict[str, asyncio.Future[dict[str, Any]]] = {}
        """What was sent and is not confirmed by the Gateway yet."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.connected = asyncio.Event()

    async def run(self) -> None:
        """Serves the Gateway, with growing pauses while it cannot be reached."""
        pause = FIRST_PAUSE_S
        try:
            while True:
                try:
                    async with self._session() as (socket, tick_s):
                        pause = FIRST_PAUSE_S
                        await self._serve(socket, tick_s)
                    log.info("the connection to %s ended", self._address.url)
                except NotLetIn as refused:
                    pause = self._after_refusal(refused, pause)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    log.warning("%s cannot be reached: %s", self._address.url, str(error) or type(error).__name__)
                await self._clock.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(pause * 2, LONGEST_PAUSE_S)
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._commands.close()

    def _after_refusal(self, refused: NotLetIn, pause: float) -> float:
        """Says why, and how long the node waits before it asks again."""
        if refused.code == "NOT_PAIRED" and (request := refused.details.get("requestId")):
            log.warning("waiting to be let in; on the Gateway: openclaw nodes approve %s", request)
            return PAIRING_PAUSE_S
        log.error("%s does not let this node in: %s", self._address.url, refused)
        return max(pause, refused.retry_after_s, PAIRING_PAUSE_S)

    # The connection

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncGenerator[tuple[aiohttp.ClientWebSocketResponse, float]]:
        """Connects and shakes hands. Raises ``NotLetIn`` and what aiohttp raises."""
        address = self._address
        ssl: Any = True
        if address.tls_fingerprint:
            ssl = aiohttp.Fingerprint(bytes.fromhex(address.tls_fingerprint.replace(":", "")))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.ws_connect(address.url, max_msg_size=MAX_FRAME_BYTES, ssl=ssl, autoclose=True) as socket,
        ):
            async with asyncio.timeout(CONNECT_S):
                hello = await self._shake_hands(socket)
            policy = hello.get("policy") or {}
            tick_s = float(policy.get("tickIntervalMs") or 30_000) / 1000
            self._socket = socket
            self.connected.set()
            log.info("connected to %s as %s", address.url, self._identity.id)
            try:
                yield socket, tick_s
            finally:
                self._socket = None
                self.connected.clear()
                for waiting in self._unconfirmed.values():
                    waiting.cancel()

    async def _shake_hands(self, socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
        challenge = await _frame(socket)
        nonce = str((challenge.get("payload") or {}).get("nonce") or "")
        address = self._address
        token = address.token or (None if address.password else await asyncio.to_thread(self._identity.token))
        connect: dict[str, Any] = {
            "minProtocol": 3,
            "maxProtocol": 3,
            "client": {
                "id": CLIENT_ID,
                "version": __version__,
                "platform": self._platform,
                "mode": CLIENT_MODE,
                "displayName": self._display_name,
                "instanceId": self._identity.id,
            },
            "caps": ["system"],
            "commands": self._commands.names,
            "role": ROLE,
            "scopes": [],
            "device": self._identity.proof(nonce=nonce, token=token),
        }
        if self._path_env:
            connect["pathEnv"] = self._path_env
        if token or address.password:
            connect["auth"] = {"token": token} if token else {"password": address.password}
        await socket.send_json({"type": "req", "id": "connect", "method": "connect", "params": connect})
        answer = await _frame(socket)
        while answer.get("id") != "connect":
            answer = await _frame(socket)
        if not answer.get("ok"):
            raise NotLetIn(answer.get("error") or {})
        hello: dict[str, Any] = answer.get("payload") or {}
        if isinstance(auth := hello.get("auth"), dict):
            await asyncio.to_thread(self._identity.keep_token, auth)
        return hello

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse, tick_s: float) -> None:
        for event in list(self._untold):
            self._untold.remove(event)
            self._spawn(self._tell(event))
        while True:
            try:
                async with asyncio.timeout(tick_s * SILENCE_TICKS):
                    message = await socket.receive()
            except TimeoutError:
                log.warning("the Gateway is silent; the connection is given up")
                await socket.close(code=4000, message=b"tick timeout")
                return
            if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                if socket.closed or message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.ERROR):
                    return
                continue
            self._take(_decoded(message.data))

    def _take(self, frame: dict[str, Any]) -> None:
        payload = frame.get("payload")
        if frame.get("type") == "res":
            waiting = self._unconfirmed.get(str(frame.get("id")))
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
            return
        if frame.get("type") != "event" or not isinstance(payload, dict):
            return
        if frame.get("event") == "node.invoke.request" and payload.get("nodeId") == self._identity.id:
            self._spawn(self._answer(payload))
        elif frame.get("event") == "node.invoke.cancel":
            call = self._calls.get(self._requests.get(str(payload.get("id")), ""))
            if call is not None and not call.done():
                call.cancel()

    # Calls

    async def _answer(self, request: dict[str, Any]) -> None:
        """Carries the request out and answers it. A key that is known is not carried out again."""
        id, command = str(request.get("id") or ""), str(request.get("command") or "")
        key = str(request.get("idempotencyKey") or id)
        call = self._calls.get(key)
        if call is None:
            busy = sum(not known.done() for known in self._calls.values())
            if busy >= MAX_RUNNING:
                error = {"code": "UNAVAILABLE", "message": f"the node is busy with {MAX_RUNNING} commands"}
                await self._send_result(id, {"ok": False, "error": error})
                return
            call = self._calls[key] = self._spawn(self._carry_out(command, request.get("paramsJSON")))
        self._requests[id] = key
        try:
            result = await _ended(call)
        finally:
            self._requests.pop(id, None)
        self._forget_old()
        told = await self._send_result(id, result)
        if not told and command == "system.run" and result is not CANCELLED:
            await self._tell(_outcome(request, result))

    async def _carry_out(self, command: str, params_json: Any) -> dict[str, Any]:
        try:
            params = msgspec.json.decode(params_json) if isinstance(params_json, str) else None
            payload = await self._commands.carry_out(command, params)
        except (msgspec.MsgspecError, RecursionError) as error:
            return {"ok": False, "error": {"code": "INVALID_REQUEST", "message": f"paramsJSON is not JSON: {error}"}}
        except CommandFailed as failed:
            return {"ok": False, "error": {"code": failed.code, "message": str(failed)}}
        except Exception as error:
            log.exception("%s failed", command)
            return {"ok": False, "error": {"code": "UNAVAILABLE", "message": f"the node failed: {error}"}}
        return {"ok": True, "payloadJSON": msgspec.json.encode(payload).decode()}

    def _forget_old(self) -> None:
        over = [key for key, call in self._calls.items() if call.done()]
        sizes = {key: 0 if self._calls[key].cancelled() else _size(self._calls[key].result()) for key in over}
        total = sum(sizes.values())
        for key in over:
            if len(self._calls) > MAX_REMEMBERED or total > MAX_REMEMBERED_BYTES:
                del self._calls[key]
                total -= sizes[key]

    async def _send_result(self, id: str, result: dict[str, Any]) -> bool:
        """Returns whether somebody got the answer."""
        answer = await self._request("node.invoke.result", {"id": id, "nodeId": self._identity.id, **result})
        return answer is not None and not (answer.get("payload") or {}).get("ignored")

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """The Gateway's answer to a request, or None if the connection ended before."""
        socket = self._socket
        if socket is None or socket.closed:
            return None
        id, waiting = str(uuid.uuid4()), asyncio.get_running_loop().create_future()
        self._unconfirmed[id] = waiting
        frame = {"type": "req", "id": id, "method": method, "params": params}
        try:
            await socket.send_str(msgspec.json.encode(frame).decode())
            await asyncio.wait([waiting])
        except (ConnectionError, aiohttp.ClientError, RuntimeError):
            return None
        finally:
            del self._unconfirmed[id]
        return None if waiting.cancelled() else waiting.result()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Outcomes that nobody waited for

    async def _tell(self, event: dict[str, Any]) -> None:
        """Tells the Gateway how a command ended. Without a connection it is kept until there is one."""
        if await self._request("node.event", event) is None:
            self._untold.append(event)


def _outcome(request: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The ``node.event`` that tells how a command ended."""
    asked = _decoded(request.get("paramsJSON") or "{}")
    payload: dict[str, Any] = {"sessionKey": asked.get("sessionKey"), "runId": asked.get("runId"), "host": "node"}
    payload["command"] = str(asked.get("rawCommand") or " ".join(map(str, asked.get("command") or [])))[:2000]
    if result["ok"]:
        ended = _decoded(result["payloadJSON"])
        payload |= {name: ended.get(name) for name in ("exitCode", "timedOut", "success")}
        payload["output"] = within_bytes(str(ended.get("stdout") or "")[-OUTPUT_CHARS:])
    else:
        payload["reason"] = result["error"]["message"]
    told = msgspec.json.encode({name: value for name, value in payload.items() if value is not None}).decode()
    return {"event": "exec.finished" if result["ok"] else "exec.denied", "payloadJSON": told}


async def _ended(task: asyncio.Task[dict[str, Any]]) -> dict[str, Any]:
    """The result of a call. One that the Gateway cancelled has one, too."""
    await asyncio.wait([task])
    return CANCELLED if task.cancelled() else task.result()


async def _frame(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    message = await socket.receive()
    if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
        raise aiohttp.ClientConnectionError("the Gateway closed the connection")
    return _decoded(message.data)


def _decoded(data: str | bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _size(result: dict[str, Any]) -> int:
    return len(result.get("payloadJSON") or "")
