"""The reference node: it connects to a Gateway, runs the commands that it gets, and reconnects when cut off.

``NodeHost`` is the connection. A command that is running when the connection is lost continues. The node reports its
outcome with ``node.event`` once it is connected again, so that a command has an end for the agent even if nobody waits
for the answer. ``NodeCommands`` runs commands, under the exec rules of the node's own machine.
``NodeIdentity`` is its device key and the tokens that Gateways gave it, in ``identity/device.json`` and
``identity/device-auth.json`` of the state folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import shlex
import shutil
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import aiohttp
import msgspec

from openclaw import __version__
from openclaw.clock import Clock
from openclaw.config.store import write_private
from openclaw.device_keys import device_id, encode_base64url, signed_text
from openclaw.storage.files.disk import FileDocuments
from openclaw.text import clipped
from openclaw.tools.base import ToolError
from openclaw.tools.exec.allowlist import AllowRule
from openclaw.tools.exec.approvals import ApprovalRules, BadRules
from openclaw.tools.exec.settings import (
    SECURITY_LEVELS,
    ExecArguments,
    ExecOverrides,
    ExecSettings,
    Security,
    command_environment,
    command_policy,
    wanted_variables,
    working_directory,
)
from openclaw.tools.exec.tool import NeedsApproval, check_command
from openclaw.tools.nodes import APPROVAL_REQUIRED, DENIED
from openclaw.tools.process import ProcessRegistry, ProcessSession
from openclaw.tools.shell_process import ShellCommand

log = logging.getLogger("openclaw.node")
T = TypeVar("T")
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
PAIRING_PAUSE_S = 5.0
CONNECT_S = 15.0
SILENCE_TICKS = 2.5
"""A Gateway that sends nothing for this many ticks is taken for gone."""
MAX_RUNNING = 32
MAX_UNREPORTED = 64
MAX_REMEMBERED = 256
"""Calls whose answers are remembered by their key, so that a repeated call is not carried out again."""
MAX_REMEMBERED_BYTES = 256 * 1024
MAX_FRAME_BYTES = 8 * 1024 * 1024
OUTPUT_CHARS = 20_000
CLIENT_ID, CLIENT_MODE, ROLE = "node-host", "node", "node"
MAX_OUTPUT_CHARS = 200_000
MAX_OUTPUT_BYTES = 300_000
"""What of an output goes into an answer, as JSON writes it. A frame may have 512 KiB."""
MAX_TIMEOUT_MS = 24 * 3_600_000
MAX_BINS = 200
MAX_ASKED = 64
"""Commands that wait for a person's approval."""
LONGEST_TEXT = 100_000
SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh"})


class GatewayAddress(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    token: str | None = None
    password: str | None = None
    tls_fingerprint: str | None = None
    """SHA-256 of the only certificate that is accepted."""


class FrameError(msgspec.Struct, rename="camel", omit_defaults=True):
    """The error of an answer, from the Gateway or from this node."""

    code: str = ""
    message: str = ""
    once_only: str = ""
    """Why ``allow-always`` would not be remembered for a command that needs an approval."""
    details: Any = None
    retry_after_ms: int | None = None


class Frame(msgspec.Struct):
    """A frame of the Gateway: an answer or an event."""

    type: str = ""
    id: str = ""
    event: str = ""
    ok: bool = False
    payload: Any = None
    error: FrameError | None = None


class InvokeRequest(msgspec.Struct, rename="camel"):
    id: str
    node_id: str
    command: str
    params_json: str | None = msgspec.field(name="paramsJSON", default=None)
    idempotency_key: str = ""


class CallResult(msgspec.Struct, omit_defaults=True):
    """The end of a command, as ``node.invoke.result`` reports it."""

    ok: bool
    payload_json: str | None = msgspec.field(name="payloadJSON", default=None)
    error: FrameError | None = None


CANCELLED = CallResult(False, error=FrameError("CANCELLED", "the call was cancelled"))


class ConnectRejected(Exception):
    """The Gateway rejected the node."""

    def __init__(self, error: FrameError) -> None:
        super().__init__(error.message or "refused")
        self.code = error.code
        self.details: dict[str, Any] = error.details if isinstance(error.details, dict) else {}
        self.retry_after_s = (error.retry_after_ms or 0) / 1000


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
        self._calls: dict[str, asyncio.Task[CallResult]] = {}
        self._requests: dict[str, str] = {}
        """The keys of calls by the ids that the Gateway gave them."""
        self._unreported: deque[NodeReport] = deque(maxlen=MAX_UNREPORTED)
        self._unconfirmed: dict[str, asyncio.Future[Frame]] = {}
        """Requests that the Gateway has not answered yet."""
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
                except ConnectRejected as refused:
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

    def _after_refusal(self, refused: ConnectRejected, pause: float) -> float:
        """Says why, and how long the node waits before it asks again."""
        if refused.code == "NOT_PAIRED" and (request := refused.details.get("requestId")):
            log.warning("waiting to be let in; on the Gateway: openclaw nodes approve %s", request)
            return PAIRING_PAUSE_S
        log.error("%s does not let this node in: %s", self._address.url, refused)
        return max(pause, refused.retry_after_s, PAIRING_PAUSE_S)

    # The connection

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncGenerator[tuple[aiohttp.ClientWebSocketResponse, float]]:
        """Connects and shakes hands. Raises ``ConnectRejected`` and what aiohttp raises."""
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
        nonce = str(challenge.payload.get("nonce") or "") if isinstance(challenge.payload, dict) else ""
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
        while answer.id != "connect":
            answer = await _frame(socket)
        if not answer.ok:
            raise ConnectRejected(answer.error or FrameError())
        hello: dict[str, Any] = answer.payload or {}
        if isinstance(auth := hello.get("auth"), dict):
            await asyncio.to_thread(self._identity.store_token, auth)
        return hello

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse, tick_s: float) -> None:
        for event in list(self._unreported):
            self._unreported.remove(event)
            self._spawn(self._report(event))
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
            self._handle(_decoded(message.data))

    def _handle(self, frame: Frame) -> None:
        if frame.type == "res":
            waiting = self._unconfirmed.get(frame.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
            return
        if frame.type != "event" or not isinstance(frame.payload, dict):
            return
        if frame.event == "node.invoke.request":
            try:
                request = msgspec.convert(frame.payload, InvokeRequest)
            except msgspec.ValidationError as error:
                log.warning("ignored a malformed node.invoke.request: %s", error)
                return
            if request.node_id == self._identity.id:
                self._spawn(self._answer(request))
        elif frame.event == "node.invoke.cancel":
            call = self._calls.get(self._requests.get(str(frame.payload.get("id")), ""))
            if call is not None and not call.done():
                call.cancel()

    # Calls

    async def _answer(self, request: InvokeRequest) -> None:
        """Run the command and answer the request. A call with a repeated key is not run again."""
        id, key = request.id, request.idempotency_key or request.id
        call = self._calls.get(key)
        if call is None:
            busy = sum(not running.done() for running in self._calls.values())
            if busy >= MAX_RUNNING:
                error = FrameError("UNAVAILABLE", f"the node is busy with {MAX_RUNNING} commands")
                await self._send_result(id, CallResult(False, error=error))
                return
            call = self._calls[key] = self._spawn(self._carry_out(request))
        self._requests[id] = key
        try:
            await asyncio.wait([call])
            result = _result(call)
        finally:
            self._requests.pop(id, None)
        self._forget_old()
        delivered = await self._send_result(id, result)
        if not delivered and request.command == "system.run" and result is not CANCELLED:
            await self._report(_outcome(request, result))

    async def _carry_out(self, request: InvokeRequest) -> CallResult:
        try:
            params = None if request.params_json is None else msgspec.json.decode(request.params_json)
            payload = await self._commands.carry_out(request.command, params)
        except (msgspec.MsgspecError, RecursionError) as error:
            return CallResult(False, error=FrameError("INVALID_REQUEST", f"paramsJSON is not JSON: {error}"))
        except CommandFailed as failed:
            return CallResult(False, error=failed.error)
        except Exception as error:
            log.exception("%s failed", request.command)
            return CallResult(False, error=FrameError("UNAVAILABLE", f"the node failed: {error}"))
        return CallResult(True, msgspec.json.encode(payload).decode())

    def _forget_old(self) -> None:
        over = [key for key, call in self._calls.items() if call.done()]
        sizes = {key: len(_result(self._calls[key]).payload_json or "") for key in over}
        total = sum(sizes.values())
        for key in over:
            if len(self._calls) > MAX_REMEMBERED or total > MAX_REMEMBERED_BYTES:
                del self._calls[key]
                total -= sizes[key]

    async def _send_result(self, id: str, result: CallResult) -> bool:
        """Return whether somebody received the answer."""
        params = {"id": id, "nodeId": self._identity.id, **msgspec.to_builtins(result)}
        answer = await self._request("node.invoke.result", params)
        return answer is not None and not (isinstance(answer.payload, dict) and answer.payload.get("ignored"))

    async def _request(self, method: str, params: object) -> Frame | None:
        """Return the Gateway's answer to a request, or None if the connection ended before."""
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

    async def _report(self, event: NodeReport) -> None:
        """Report the end of a command to the Gateway. Without a connection the report waits for one.

        It is sent again while the Gateway cannot store it, for example because its disk is full.
        """
        pause = FIRST_PAUSE_S
        while (answer := await self._request("node.event", event)) is not None:
            if answer.error is None or answer.error.code != "UNAVAILABLE":
                return
            await self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)
        self._unreported.append(event)


class NodeReport(msgspec.Struct):
    """The parameters of ``node.event``."""

    event: str
    payload_json: str = msgspec.field(name="payloadJSON")


class CommandEnd(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The payload of the event that reports how a command ended."""

    session_key: str | None = None
    run_id: str | None = None
    host: Literal["node"]
    command: str
    exit_code: int | None = None
    timed_out: bool | None = None
    success: bool | None = None
    output: str | None = None
    reason: str | None = None


def _outcome(request: InvokeRequest, result: CallResult) -> NodeReport:
    """Return the ``node.event`` that reports how a command ended."""
    try:
        run = msgspec.json.decode(request.params_json or "{}", type=SystemRun)
    except (msgspec.MsgspecError, RecursionError):
        run = SystemRun()
    end = CommandEnd(
        session_key=run.session_key,
        run_id=run.run_id,
        host="node",
        command=(run.raw_command or " ".join(run.command))[:2000],
    )
    if result.payload_json is not None:
        output = msgspec.json.decode(result.payload_json, type=SystemRunResult)
        end.exit_code, end.timed_out, end.success = output.exit_code, output.timed_out, output.success
        end.output = within_bytes(output.stdout[-OUTPUT_CHARS:])
    elif result.error is not None:
        end.reason = result.error.message
    return NodeReport("exec.finished" if result.ok else "exec.denied", msgspec.json.encode(end).decode())


def _result(call: asyncio.Task[CallResult]) -> CallResult:
    """Return the result of a call that is over, also if the Gateway cancelled it."""
    return CANCELLED if call.cancelled() else call.result()


async def _frame(socket: aiohttp.ClientWebSocketResponse) -> Frame:
    message = await socket.receive()
    if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
        raise aiohttp.ClientConnectionError("the Gateway closed the connection")
    return _decoded(message.data)


def _decoded(data: str | bytes) -> Frame:
    try:
        return msgspec.json.decode(data, type=Frame)
    except (msgspec.MsgspecError, RecursionError):
        return Frame()


# Commands


class CommandFailed(Exception):
    """The answer to a command is an error."""

    def __init__(self, code: str, message: str, *, once_only: str = "") -> None:
        super().__init__(message)
        self.error = FrameError(code, message, once_only)


class SystemRun(msgspec.Struct, kw_only=True, rename="camel"):
    command: list[str] = []
    raw_command: str | None = None
    cwd: str | None = None
    env: dict[str, str] | None = None
    timeout_ms: float | None = None
    agent_id: str | None = None
    session_key: str | None = None
    run_id: str | None = None
    approved: bool | None = None
    approval_decision: str | None = None
    security: str | None = None
    """How strict the Gateway is. The stricter of this and the node's own rules counts."""


class SystemWhich(msgspec.Struct, kw_only=True):
    bins: list[str] = []


class SystemNotify(msgspec.Struct, kw_only=True):
    title: str = ""
    body: str = ""


class RulesSet(msgspec.Struct, kw_only=True, rename="camel"):
    file: dict[str, Any]
    base_hash: str | None = None


class NodeCommands:
    """Carries out commands. ``close`` ends those that still run."""

    def __init__(self, state_dir: str, settings: ExecSettings, clock: Clock, environ: Mapping[str, str]) -> None:
        self._settings = msgspec.structs.replace(settings, host="gateway", max_output_chars=MAX_OUTPUT_CHARS)
        self._rules = ApprovalRules(FileDocuments(state_dir), clock)
        self._processes = ProcessRegistry(clock=clock)
        self._environ = environ
        self._asked: dict[str, tuple[str, NeedsApproval]] = {}
        self._table: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "system.run": self._run,
            "system.which": self._which,
            "system.execApprovals.get": self._get_rules,
            "system.execApprovals.set": self._set_rules,
        }
        self._notifier = shutil.which("notify-send", path=environ.get("PATH"))
        if self._notifier is not None:
            self._table["system.notify"] = self._notify

    @property
    def names(self) -> list[str]:
        """What the node declares."""
        return list(self._table)

    async def carry_out(self, command: str, params: Any) -> Any:
        """The payload of the answer. Raises ``CommandFailed``. Cancelled, it ends the processes that it started."""
        action = self._table.get(command)
        if action is None:
            raise CommandFailed("UNAVAILABLE", "command not supported")
        try:
            return await action({} if params is None else params)
        except msgspec.ValidationError as error:
            raise CommandFailed("INVALID_REQUEST", f"invalid {command} params: {error}") from None

    async def close(self) -> None:
        await self._processes.close()

    # system.run

    async def _run(self, params: Any) -> SystemRunResult:
        run = msgspec.convert(params, SystemRun)
        text = command_text(run.command, run.raw_command)
        agent_id = run.agent_id or "main"
        try:
            command = await self._checked(run, text, agent_id)
            session = await self._processes.start(command, scope="node", max_output_chars=MAX_OUTPUT_CHARS)
        except ToolError as refused:
            raise CommandFailed("UNAVAILABLE", f"{DENIED}: {refused}") from None
        except OSError as error:
            raise CommandFailed("UNAVAILABLE", f"{DENIED}: the command could not be started: {error}") from None
        try:
            await session.ended.wait()
        except asyncio.CancelledError:
            await asyncio.shield(self._processes.stop(session))
            raise
        return await asyncio.to_thread(_command_result, session)

    async def _checked(self, run: SystemRun, text: str, agent_id: str) -> ShellCommand:
        """Return the command if it may run. Raises ``CommandFailed`` and ``ToolError``."""
        rules = await self._rules.rules_for(agent_id)
        # The rules file holds this machine's own settings. Without it the level is ``allowlist``, with a question.
        own = ExecOverrides(security=self._settings.security or rules.security, ask=rules.ask)
        try:
            levels: dict[str, Security] = {level: level for level in SECURITY_LEVELS}
            requested = ExecArguments(command=text, security=levels.get(run.security or ""))
            policy = command_policy(self._settings, own, rules, requested=requested)
        except ToolError as denied:
            raise CommandFailed("UNAVAILABLE", f"SYSTEM_RUN_DISABLED: {denied}") from None
        sets = wanted_variables(run.env or {})
        home = Path(self._environ.get("HOME") or "/")
        cwd, missing = working_directory(home, run.cwd)
        if missing:
            raise ToolError(f"the working directory {clipped(repr(run.cwd), 200)} is not available here")
        timeout = min(run.timeout_ms or self._settings.timeout_sec * 1000, MAX_TIMEOUT_MS) / 1000
        command = ShellCommand(
            text=text,
            cwd=cwd,
            env=command_environment(self._environ, {}, sets, self._settings.path_prepend),
            use_pty=False,
            timeout=timeout,
        )
        checked = await check_command(command, sets, policy, rules, self._settings, home)
        if isinstance(checked, ShellCommand):
            return checked
        approved = run.approved is True or run.approval_decision in ("allow-once", "allow-always")
        if not approved:
            if run.run_id:
                while len(self._asked) >= MAX_ASKED:
                    del self._asked[next(iter(self._asked))]
                self._asked[run.run_id] = (text, checked)
            once_only = checked.rule if isinstance(checked.rule, str) else ""
            raise CommandFailed("UNAVAILABLE", APPROVAL_REQUIRED, once_only=once_only)
        # An approval holds for the files as they were when the person was asked.
        asked = self._asked.pop(run.run_id or "", None)
        meant = asked[1] if asked is not None and asked[0] == text else checked
        if run.approval_decision == "allow-always" and isinstance(meant.rule, AllowRule):
            await self._rules.allow_always(agent_id, meant.rule, text)
        return msgspec.structs.replace(meant.command, timeout=timeout)

    # The others

    async def _which(self, params: Any) -> dict[str, Any]:
        query = msgspec.convert(params, SystemWhich)
        env = command_environment(self._environ, {}, {}, self._settings.path_prepend)

        def find() -> dict[str, str]:
            names = [name.strip() for name in query.bins[:MAX_BINS]]
            paths = {name: shutil.which(name, path=env["PATH"]) for name in names if name and "/" not in name}
            return {name: path for name, path in paths.items() if path}

        return {"bins": await asyncio.to_thread(find)}

    async def _notify(self, params: Any) -> dict[str, Any]:
        notification = msgspec.convert(params, SystemNotify)
        if self._notifier is None or not (notification.title or notification.body).strip():
            raise CommandFailed("INVALID_REQUEST", "INVALID_REQUEST: empty notification")
        program = [self._notifier, "--", clipped(notification.title or notification.body, 500)]
        program += [clipped(notification.body, 2000)] if notification.title and notification.body else []
        env = command_environment(self._environ, {}, {}, [])
        command = ShellCommand(text=shlex.join(program), cwd="/", env=env, use_pty=False, timeout=10)
        session = await self._processes.start(command, scope="node", max_output_chars=2000)
        await session.ended.wait()
        if session.process.exit_code != 0:
            raise CommandFailed("UNAVAILABLE", f"notify-send failed: {session.output.tail(200).strip()}")
        return {"ok": True}

    async def _get_rules(self, _: Any) -> dict[str, Any]:
        try:
            return (await self._rules.snapshot()).view()
        except BadRules as bad:
            raise CommandFailed("UNAVAILABLE", str(bad)) from None

    async def _set_rules(self, params: Any) -> dict[str, Any]:
        rules = msgspec.convert(params, RulesSet)
        try:
            return (await self._rules.replace(rules.file, rules.base_hash)).view()
        except BadRules as bad:
            raise CommandFailed("INVALID_REQUEST", str(bad)) from None


def command_text(words: list[str], raw: str | None) -> str:
    """The text that a shell reads. What a person was shown and what runs must be the same. Raises ``CommandFailed``."""
    if not words or any("\0" in word for word in words):
        raise CommandFailed("INVALID_REQUEST", "command required")
    wrapped = words[2] if len(words) == 3 and is_shell(words[0]) and words[1] in ("-c", "-lc") else None
    text = wrapped if wrapped is not None else shlex.join(words)
    if raw is not None and raw.strip() and raw.strip() != text.strip() and _words(raw) != words:
        raise CommandFailed("INVALID_REQUEST", "rawCommand does not match command")
    if not text.strip() or len(text) > LONGEST_TEXT:
        raise CommandFailed("INVALID_REQUEST", f"command must have 1 to {LONGEST_TEXT} characters")
    return text


def is_shell(program: str) -> bool:
    folder, _, name = program.rpartition("/")
    return folder in ("", "/bin", "/usr/bin") and name in SHELLS


def _words(text: str) -> list[str] | None:
    try:
        return shlex.split(text)
    except ValueError:
        return None


class SystemRunResult(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    exit_code: int | None
    timed_out: bool
    success: bool
    stdout: str
    stderr: str
    error: str | None
    truncated: bool = False


def _command_result(session: ProcessSession) -> SystemRunResult:
    code = session.process.exit_code
    return SystemRunResult(
        exit_code=code,
        timed_out=session.timed_out,
        success=code == 0 and not session.timed_out,
        stdout=within_bytes(session.output.text()),
        stderr="",
        error=f"ended by {session.exit_signal}" if session.exit_signal and not session.timed_out else None,
        truncated=session.output.truncated,
    )


def within_bytes(text: str, most: int = MAX_OUTPUT_BYTES) -> str:
    """Return the end of a text that has at most so many bytes when JSON encodes it."""
    while (size := len(msgspec.json.encode(text))) > most:
        text = text[-max(0, len(text) * most // size - 16) :] if len(text) > 32 else ""
    return text


# Identity


class BadIdentity(Exception):
    """A file of the identity cannot be read. The message says which, and what to do."""


class NodeIdentity:
    """The device key of a state folder. It is made when it is first needed."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._folder = Path(state_dir) / "identity"
        self._clock = clock
        path = self._folder / "device.json"
        stored = read_object(path)
        if stored is None:
            self._key = Ed25519PrivateKey.generate()
            self._store(path)
        else:
            self._key = _private_key(stored, path)
        raw = self._key.public_key().public_bytes_raw()
        self.id = device_id(raw)
        self.public_key = encode_base64url(raw)

    def proof(self, *, nonce: str, token: str | None) -> dict[str, Any]:
        """The ``device`` of a ``connect`` request that answers this challenge."""
        signed_at = self._clock.now_ms()
        text = signed_text(
            device_id=self.id,
            client_id=CLIENT_ID,
            client_mode=CLIENT_MODE,
            role=ROLE,
            scopes=(),
            signed_at=signed_at,
            token=token,
            nonce=nonce,
        )
        signature = encode_base64url(self._key.sign(text.encode()))
        proof = {"id": self.id, "publicKey": self.public_key, "signature": signature}
        return {**proof, "signedAt": signed_at, "nonce": nonce}

    def token(self) -> str | None:
        """The token that a Gateway gave to this device."""
        stored = read_object(self._folder / "device-auth.json") or {}
        tokens = stored.get("tokens") if stored.get("deviceId") == self.id else None
        issued = tokens.get(ROLE) if isinstance(tokens, dict) else None
        return str(issued["token"]) if isinstance(issued, dict) and issued.get("token") else None

    def store_token(self, auth: dict[str, Any]) -> None:
        """Store the token from ``hello-ok``. With it the node connects without the Gateway's own secret."""
        if not auth.get("deviceToken") or auth["deviceToken"] == self.token():
            return
        path = self._folder / "device-auth.json"
        stored = read_object(path) or {}
        before = stored.get("tokens") if stored.get("deviceId") == self.id else None
        issued = {"token": auth["deviceToken"], "role": ROLE, "scopes": auth.get("scopes") or []}
        issued["updatedAtMs"] = self._clock.now_ms()
        tokens = {**(before if isinstance(before, dict) else {}), ROLE: issued}
        write_object(path, {"version": 1, "deviceId": self.id, "tokens": tokens})

    def _store(self, path: Path) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

        public = self._key.public_key()
        private = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        stored = {"version": 1, "deviceId": device_id(public.public_bytes_raw())}
        stored["publicKeyPem"] = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        stored["privateKeyPem"] = private.decode()
        write_object(path, {**stored, "createdAtMs": self._clock.now_ms()})


def _private_key(stored: dict[str, Any], path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(str(stored.get("privateKeyPem") or "").encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadIdentity(f"{path} holds no device key ({error}); mend it, or move it away for a new one") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadIdentity(f"{path} holds a key of another kind; move it away for a new one")
    return key


def read_object(path: Path) -> dict[str, Any] | None:
    """Read the object in a JSON file, or return None if the file does not exist. Raise ``BadIdentity``."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadIdentity(f"{path} cannot be read ({error}); mend it or move it away") from None
    if not isinstance(content, dict):
        raise BadIdentity(f"{path} holds no JSON object; mend it or move it away")
    return content


def write_object(path: Path, value: dict[str, Any]) -> None:
    write_private(str(path), json.dumps(value, indent=2, ensure_ascii=False) + "\n")
