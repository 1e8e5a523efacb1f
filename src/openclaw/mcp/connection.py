"""The connection to one MCP server: started when it is first needed, restarted when it dies, closed at the end.

The library ``mcp`` is imported in a thread, and only here: a Gateway without servers never loads it. A server that is a
program is spoken to over its standard input and output, one line of JSON for each message, and ended with its children.
A line and what is kept of the standard error have a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import random
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from openclaw import __version__
from openclaw.clock import Clock, wait_within
from openclaw.config.schema.tools import McpServer
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.foreign_text import disarmed_name
from openclaw.mcp.foreign_tool import MOST_TOOLS, Answered, ForeignTool, ListedTool, offered, server_part
from openclaw.outbound.backoff import Backoff
from openclaw.redact import redact
from openclaw.text import clipped
from openclaw.tools.base import ToolError
from openclaw.tools.exec.environment import command_environment
from openclaw.tools.shell_process import Members, survivors

if TYPE_CHECKING:
    from mcp.client._transport import Transport, TransportStreams

    from mcp import Client


MAX_LINE_BYTES = 16 * 1024 * 1024
"""The longest message. A picture in base64 fits."""
KEPT_ERRORS = 4000
LEAVE_S = 2.0
"""How long a server may take to end once its input is closed, and again once it is asked to end."""
LOOK_S = 0.05


class ServerLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is started."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


class CannotStartServer(Exception):
    """The program cannot be started. The message says why, in words for the owner."""


def launch_of(command: str, args: list[str], env: Mapping[str, str], cwd: str | None) -> ServerLaunch:
    """Looks for the program. Raises ``CannotStartServer`` if there is none. Blocking."""
    environment = {**command_environment(os.environ, {}, {}, []), **env}
    program = shutil.which(Path(command).expanduser(), path=environment["PATH"])
    if program is None:
        raise CannotStartServer(f"there is no program {command!r} (looked in PATH)")
    folder = Path(cwd).expanduser() if cwd else Path.home()
    if not folder.is_dir():
        raise CannotStartServer(f"its folder {folder} does not exist")
    return ServerLaunch(command=program, args=tuple(args), env=environment, cwd=str(folder))


class ServerProcess:
    """The program of one server, from its start to its end."""

    def __init__(self, ended: Callable[[], None]) -> None:
        """``ended`` is called when the program says nothing more."""
        self._ended = ended
        self._errors = ""
        self.problem = ""
        """Why it was given up, if it broke the rules of the protocol."""
        self.pid = 0

    @property
    def last_words(self) -> str:
        """The end of what it wrote to its standard error."""
        lines = [line.strip() for line in self._errors.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    @asynccontextmanager
    async def transport(self, launch: ServerLaunch) -> AsyncGenerator[TransportStreams]:
        """Starts the program. At the end it is stopped, and everything that it started with it."""
        import anyio
        from mcp.shared.message import SessionMessage

        try:
            process = await asyncio.create_subprocess_exec(
                launch.command,
                *launch.args,
                env=dict(launch.env),
                cwd=launch.cwd,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
                limit=MAX_LINE_BYTES,
            )
        except OSError as error:
            raise CannotStartServer(f"{launch.command} cannot be started: {error.strerror or error}") from None
        self.pid = process.pid
        heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, said = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(process, heard), name="mcp reads"),
            asyncio.create_task(self._write(process, said), name="mcp writes"),
            asyncio.create_task(self._keep_errors(process), name="mcp errors"),
        ]
        try:
            yield incoming, outgoing
        finally:
            try:
                await _end(process)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for stream in (heard, incoming, outgoing, said):
                    stream.close()

    async def _read(self, process: Process, heard: Any) -> None:
        from mcp.shared.message import SessionMessage
        from mcp.types import jsonrpc_message_adapter

        assert process.stdout is not None
        try:
            async with heard:
                while True:
                    line = await process.stdout.readuntil(b"\n")
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        log.debug("a server printed a line that is no message")
                        continue
                    await heard.send(SessionMessage(message))
        except asyncio.IncompleteReadError:
            pass
        except asyncio.LimitOverrunError:
            self.problem = f"it sent a message of more than {MAX_LINE_BYTES // 1024 // 1024} MB"
        except Exception as error:  # The other end of the stream is closed, or the pipe broke.
            log.debug("a server is not read any more: %r", error)
        finally:
            self._ended()

    async def _write(self, process: Process, said: Any) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            async for message in said:
                process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()

    async def _keep_errors(self, process: Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(4096):
            self._errors = (self._errors + chunk.decode("utf-8", "replace"))[-KEPT_ERRORS:]


async def _end(process: Process) -> None:
    """Closes the input, which asks a server to end, then asks its whole process tree, then kills it."""
    members = await _left(process, {})
    if process.stdin is not None:
        process.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        members = await _left(process, members)
        if number is not None:
            for pid in members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        if await _gone(process, members):
            return


async def _gone(process: Process, members: Members) -> bool:
    """Waits for the end of the program and of what it started. True if nothing is left."""
    for _ in range(round(LEAVE_S / LOOK_S)):
        if process.returncode is not None and not await _left(process, members):
            return True
        await asyncio.sleep(LOOK_S)
    return False


async def _left(process: Process, members: Members) -> Members:
    """The living processes of the program's tree, and those of ``members`` that still live."""
    found = await asyncio.to_thread(survivors, process.pid, members)
    if process.returncode is not None and process.pid in found:
        # The program is gone, and its number belongs to another one by now.
        return {pid: born for pid, born in found.items() if members.get(pid) == born and pid != process.pid}
    return found


log = logging.getLogger("openclaw.mcp")

State: TypeAlias = Literal["idle", "starting", "ready", "waiting", "failed", "closed"]
"""``waiting``: it failed and is tried again by itself. ``failed``: it is tried again when a run needs it."""
PAUSES = Backoff(initial_s=1.0, max_s=60.0)
MOST_ATTEMPTS = 5
"""How often in a row a server is started in vain before it rests until a run needs it."""
STABLE_S = 60.0
"""A server that was ready for so long and then dies is started again as if it had never failed."""
REST_S = 60.0
LISTEN_S = 5.0
"""How long a server may take to say that it will tell of changes."""
RELIST_S = 1.0
"""The least time between two readings of a server's list."""
CLOSE_S = 10.0
MAX_SSE_BYTES = 16 * 1024 * 1024
MAX_BODY_BYTES = 16 * 1024 * 1024
"""The longest plain answer over HTTP that is read."""
MAX_PAGES = 20
TOO_LONG = f"its answer is longer than {MAX_BODY_BYTES // 1024**2} MB"
LONGEST_PROBLEM = 300
NOT_INSTALLED = "the package mcp is not installed: openclaw extras add mcp"


class ServerProblem(Exception):
    """The server cannot be used. The message says why, in words for the owner."""


class ServerConnection:
    """One configured server. Its tools are those that it listed last."""

    def __init__(
        self,
        name: str,
        settings: McpServer,
        clock: Clock,
        environ: Mapping[str, str],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``changed`` is called when its state or its tools have changed."""
        self.name = name
        self.part = server_part(name)
        self.settings = settings
        self.state: State = "idle"
        self.tools: list[ForeignTool] = []
        self.problem = ""
        """Why it is not ready, in one line."""
        self.left_out: list[str] = []
        """Tools that are not offered, and why."""
        self.version = ""
        """What the server calls itself."""
        self.starts = 0
        self._clock = clock
        self._environ = environ
        self._changed = changed
        self._client: Client | None = None
        self._process: ServerProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Set when the first attempt has ended, well or badly."""
        self._leave = asyncio.Event()
        self._stir = asyncio.Event()
        """Wakes the task: the server has ended, or its list of tools has changed."""
        self._lost = ""
        self._relist = False
        self._rests_until = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def want(self) -> None:
        """Starts the server if it is not running and may be tried. Returns at once."""
        if self._leave.is_set() or (self._task is not None and not self._task.done()):
            return
        if self.state == "failed" and self._clock.monotonic() < self._rests_until:
            return
        self._task = asyncio.create_task(self._live(), name=f"mcp server {self.name}")

    async def ready(self, seconds: float) -> bool:
        """Waits for the first attempt to start it, at most so long. True if it can be used."""
        self.want()
        if not self._settled.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._settled.wait()
        return self.state == "ready"

    async def close(self) -> None:
        """Ends the server and everything that it started."""
        self._leave.set()
        self._stir.set()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=CLOSE_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._become("closed")

    async def call(
        self, own_name: str, arguments: dict[str, Any], report: Callable[[str], None] | None = None
    ) -> Answered:
        """Calls a tool; its progress goes to ``report``. Raises ``ToolError`` with one line if there is no answer."""
        client = self._client
        if client is None:
            raise ToolError(f"The MCP server {self.name} is not there: {self.problem or 'it is being started'}.")
        from mcp import types

        async def told(progress: float, total: float | None, message: str | None) -> None:
            if report is not None:
                of = f" of {total:g}" if total else ""
                report(f"{progress:g}{of}" + (f": {clipped(disarmed_name(message), 200)}" if message else ""))

        request = types.CallToolRequest(params=types.CallToolRequestParams(name=own_name, arguments=arguments))
        seconds = self.settings.timeout_seconds
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                # The result is not checked against the server's schema: its expressions could take for ever.
                answer = await client.session.send_request(request, types.CallToolResult, progress_callback=told)
        except TimeoutError:
            if not timer.expired():
                raise
            raise ToolError(
                f"{own_name} of the MCP server {self.name} gave no answer within {seconds} s. It may still be at work."
            ) from None
        except Exception as error:
            problem = self._words(error)
            if self._is_loss(error):
                self._lose(problem)
                problem += ". Nobody knows whether the call was carried out; the server is started again"
            raise ToolError(f"{own_name} of the MCP server {self.name} failed: {problem}.") from None
        content = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in answer.content]
        return Answered(content=content, structured=answer.structured_content, failed=bool(answer.is_error))

    # Its life

    async def _live(self) -> None:
        attempts = 0
        while not self._leave.is_set():
            self.starts += 1
            self._become("starting")
            began, self._lost, self._relist = self._clock.monotonic(), "", False
            problem = ""
            try:
                await self._serve_once()
                problem = self._lost
            except TimeoutError:
                problem = f"it did not answer within {self.settings.connection_timeout_ms / 1000:g} s"
            except Exception as error:
                problem = self._words(error)
                log.debug("the MCP server %s cannot be used", self.name, exc_info=True)
            if self._leave.is_set():
                return
            stable = self.state == "ready" and self._clock.monotonic() - began >= STABLE_S
            attempts = 1 if stable else attempts + 1
            self.tools, self.problem = [], problem
            log.warning("the MCP server %s is not there: %s", self.name, problem)
            if attempts >= MOST_ATTEMPTS or problem == NOT_INSTALLED:
                self._rests_until = self._clock.monotonic() + REST_S
                self._become("failed")
                return
            self._become("waiting")
            await wait_within(self._leave, PAUSES.delay_s(attempts, random.random), self._clock)

    async def _serve_once(self) -> None:
        """Connects, lists the tools, and stays until the server ends or the connection is closed."""
        try:
            await asyncio.to_thread(importlib.import_module, "mcp")
        except ImportError:
            raise ServerProblem(NOT_INSTALLED) from None
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self.settings.connection_timeout_ms / 1000):
                client = await stack.enter_async_context(await self._make_client())
                # Changes are heard before the list is read, so that none is missed between the two.
                await stack.enter_async_context(self._hearing_changes(client))
                await self._list(client)
            stack.callback(self._disconnected)
            self._client = client
            self._become("ready")
            log.info("the MCP server %s is ready: %d tools", self.name, len(self.tools))
            while not self._leave.is_set() and not self._lost:
                await self._stir.wait()
                self._stir.clear()
                if self._relist and not self._lost and not self._leave.is_set():
                    self._relist = False
                    async with asyncio.timeout(self.settings.connection_timeout_ms / 1000):
                        await self._list(client)
                    self._changed()
                    # A server may tell of changes without end.
                    await wait_within(self._leave, RELIST_S, self._clock)

    def _disconnected(self) -> None:
        self._client = None

    async def _make_client(self) -> Client:
        from mcp import Client, types

        async def hear(message: Any) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                self._tools_changed()

        return Client(
            await self._transport(),
            client_info=types.Implementation(name="openclaw", version=__version__),
            message_handler=hear,
            cache=None,
        )

    async def _transport(self) -> Transport:
        settings = self.settings
        wants_http = settings.transport == "streamable-http" or (settings.transport is None and not settings.command)
        if wants_http and settings.url:
            return _http_transport(settings.url, await self._secrets("headers"), settings.timeout_seconds)  # type: ignore[return-value]
        if not wants_http and settings.command:
            env = await self._secrets("env")
            launch = await asyncio.to_thread(launch_of, settings.command, settings.args, env, settings.cwd)
            self._process = process = ServerProcess(lambda: self._lose(""))
            return process.transport(launch)  # type: ignore[return-value]
        raise ServerProblem(f"mcp.servers.{self.name} needs a {'url' if wants_http else 'command'}")

    async def _secrets(self, key: Literal["env", "headers"]) -> dict[str, str]:
        given = self.settings.env if key == "env" else self.settings.headers

        def resolve() -> dict[str, str]:
            where = f"mcp.servers.{self.name}.{key}"
            return {
                name: resolve_secret(value, self._environ, f"{where}.{name}") or "" for name, value in given.items()
            }

        return await asyncio.to_thread(resolve)

    async def _list(self, client: Client) -> None:
        from mcp import types

        listed: list[ListedTool] = []
        cursor: str | None = None
        if client.server_capabilities.tools is not None:
            for _ in range(MAX_PAGES):
                page = await client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
                listed += [ListedTool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
                cursor = page.next_cursor
                if not cursor or len(listed) > 10 * MOST_TOOLS:
                    break
        names = self.settings.tools
        tools, self.left_out = offered(self.part, listed, names.allow, names.deny)
        if tools != self.tools:
            self.tools = tools
        for line in self.left_out[:10]:
            log.warning("the MCP server %s: %s", self.name, line)
        info = client.server_info
        self.version = clipped(disarmed_name(f"{info.name} {info.version}"), 80) if info is not None else ""
        self.problem = ""

    @asynccontextmanager
    async def _hearing_changes(self, client: Client) -> AsyncGenerator[None]:
        """Listens for changes of the tool list. Servers of older protocols send them without being asked."""
        from mcp.types.version import MODERN_PROTOCOL_VERSIONS

        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            yield
            return

        settled = asyncio.Event()

        async def listen() -> None:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    settled.set()
                    async for _ in changes:
                        self._tools_changed()
            except Exception as error:  # The server does not tell of changes, or has ended.
                log.debug("changes of the MCP server %s are not heard: %r", self.name, error)
            finally:
                settled.set()

        task = asyncio.create_task(listen(), name=f"mcp changes {self.name}")
        try:
            await wait_within(settled, LISTEN_S, self._clock)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _tools_changed(self) -> None:
        self._relist = True
        self._stir.set()

    def _lose(self, problem: str) -> None:
        """The server is gone. The task ends what is left of it and starts it again."""
        self._client = None
        if not self._lost:
            self._lost = problem or self._end_words()
        self._stir.set()

    def _end_words(self) -> str:
        process = self._process
        said = process.problem or process.last_words if process is not None else ""
        return self._one_line(f"it ended: {said}" if said else "it ended")

    def _is_loss(self, error: Exception) -> bool:
        """Whether the connection is gone, and not only this call failed."""
        from mcp.types import CONNECTION_CLOSED

        return self._client is None or getattr(error, "code", None) == CONNECTION_CLOSED or _leaf_is_network(error)

    def _words(self, error: BaseException) -> str:
        """One line about an error, without secrets."""
        leaf = _leaf(error)
        if isinstance(leaf, ServerProblem | CannotStartServer | SecretUnavailable):
            return clipped(redact(str(leaf)), LONGEST_PROBLEM)
        if self._lost:
            return self._lost
        process = self._process
        if process is not None and (process.problem or process.last_words) and self._client is None:
            return self._end_words()
        text = str(leaf).strip() or type(leaf).__name__
        if self.settings.url and _leaf_is_network(leaf):
            text = f"no connection to {self.settings.url} ({text})"
        return self._one_line(text)

    @staticmethod
    def _one_line(text: str) -> str:
        return clipped(disarmed_name(redact(text)), LONGEST_PROBLEM).rstrip(".")

    def _become(self, state: State) -> None:
        self.state = state
        if state in ("ready", "waiting", "failed", "closed"):
            self._settled.set()
        self._changed()


def _leaf(error: BaseException) -> BaseException:
    """The first error inside a group of errors."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _leaf_is_network(error: BaseException) -> bool:
    import httpx2

    return isinstance(_leaf(error), httpx2.TransportError | OSError)


def _bounded() -> Any:
    """A transport whose answers are no longer than ``MAX_BODY_BYTES``, because the library reads them whole.

    A stream of events may be longer: there the library bounds each event. A packed answer is refused, because its
    length says nothing about what comes out of it.
    """
    import httpx2

    class Body(httpx2.AsyncByteStream):
        def __init__(self, stream: Any, headers: httpx2.Headers) -> None:
            self._stream = stream
            self._packed = headers.get("content-encoding", "").strip().lower() not in ("", "identity")
            self._endless = headers.get("content-type", "").lower().startswith("text/event-stream")

        async def __aiter__(self) -> AsyncGenerator[bytes]:
            # The library takes this error for one of the call. Others would end the connection.
            if self._packed:
                raise httpx2.StreamError("its answer is packed")
            read = 0
            async for part in self._stream:
                read += len(part)
                if read > MAX_BODY_BYTES and not self._endless:
                    raise httpx2.StreamError(TOO_LONG)
                yield part

        async def aclose(self) -> None:
            await self._stream.aclose()

    class Transport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            response = await super().handle_async_request(request)
            response.stream = Body(response.stream, response.headers)
            return response

    return Transport()


@asynccontextmanager
async def _http_transport(url: str, headers: Mapping[str, str], timeout_s: float) -> AsyncGenerator[Any]:
    """Streamable HTTP. A redirect is followed only within the same origin, so that the headers stay with it."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(30.0, read=timeout_s + 30)
    plain = {"Accept-Encoding": "identity", **headers}
    async with (
        httpx2.AsyncClient(headers=plain, timeout=timeout, follow_redirects=False, transport=_bounded()) as http,
        streamable_http_client(url, http_client=http, max_sse_event_size=MAX_SSE_BYTES) as streams,
    ):
        yield streams
