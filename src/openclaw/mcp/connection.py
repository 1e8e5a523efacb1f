"""The connection to one MCP server: started when it is first needed, restarted when it dies, closed at the end.

The library ``mcp`` is imported in a thread, and only here: a Gateway without servers never loads it. A server that is a
program is spoken to over its standard input and output, one line of JSON for each message, and ended with its children.
A line and what is kept of the standard error have a limit.

A server chooses the names, descriptions, parameters and results of its tools. What a model may see of them is made here
(``offered``, ``tool_result``): the texts are bounded and disarmed, the name is one that every provider takes, and the
parameters keep only the keywords of JSON Schema that every provider takes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import importlib
import logging
import os
import random
import re
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec

from openclaw import __version__
from openclaw.clock import Backoff, Clock, wait_within
from openclaw.config.schema.tools import McpServer
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.messages import TextBlock, ToolSpec, UserBlock
from openclaw.pictures import MAX_SOURCE_BYTES, ImageProblem, fit_image, off_loop, sniff_image
from openclaw.redact import redact
from openclaw.text import clipped
from openclaw.tools.base import ToolError, ToolResult, indented
from openclaw.tools.exec.settings import command_environment
from openclaw.tools.shell_process import Members, survivors
from openclaw.untrusted_text import disarmed, disarmed_name

if TYPE_CHECKING:
    from mcp.client._transport import Transport, TransportStreams

    from mcp import Client


log = logging.getLogger("openclaw.mcp")

State: TypeAlias = Literal["idle", "starting", "ready", "waiting", "failed", "closed"]
"""``waiting``: it failed and is tried again by itself. ``failed``: it is tried again when a run needs it."""
PAUSES = Backoff(initial_s=1.0, max_s=60.0)
MOST_ATTEMPTS = 5
"""How often in a row a server fails to start before it rests until a run needs it."""
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
MAX_VALUES = 200_000
"""The most values in one message. The library decodes messages on the event loop, and each value takes its time."""
TOO_LONG = f"its answer is longer than {MAX_BODY_BYTES // 1024**2} MB"
TOO_MANY = f"its answer has more than {MAX_VALUES} values"
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
    ) -> None:
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
        self._client: Client | None = None
        self._process: ServerProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Set when the first attempt has ended, well or badly."""
        self._leave = asyncio.Event()
        self._wake = asyncio.Event()
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
        self._wake.set()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=CLOSE_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._become("closed")

    async def call(
        self, own_name: str, arguments: dict[str, Any], report: Callable[[str], None] | None = None
    ) -> Answered:
        """Calls a tool; its progress goes to ``report``. Raises ``ToolError`` with one line if it fails."""
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
                # The result is not checked against the server's schema: its expressions could take forever.
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
                await self._wake.wait()
                self._wake.clear()
                if self._relist and not self._lost and not self._leave.is_set():
                    self._relist = False
                    async with asyncio.timeout(self.settings.connection_timeout_ms / 1000):
                        await self._list(client)
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
            self._process = process = ServerProcess(lambda: self._lose(""))
            env = await self._secrets("env")
            return process.transport(settings.command, settings.args, env, settings.cwd)  # type: ignore[return-value]
        raise ServerProblem(f"mcp.servers.{self.name} needs a {'url' if wants_http else 'command'}")

    async def _secrets(self, key: Literal["env", "headers"]) -> dict[str, str]:
        variables = self.settings.env if key == "env" else self.settings.headers

        def resolve() -> dict[str, str]:
            where = f"mcp.servers.{self.name}.{key}"
            return {
                name: resolve_secret(value, self._environ, f"{where}.{name}") or "" for name, value in variables.items()
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
        tools, self.left_out = await asyncio.to_thread(offered, self.part, listed, names.allow, names.deny)
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
        self._wake.set()

    def _lose(self, problem: str) -> None:
        """The server is gone. The task ends what is left of it and starts it again."""
        self._client = None
        if not self._lost:
            self._lost = problem or self._end_words()
        self._wake.set()

    def _end_words(self) -> str:
        process = self._process
        problem_text = process.problem or process.last_error if process is not None else ""
        return self._one_line(f"it ended: {problem_text}" if problem_text else "it ended")

    def _is_loss(self, error: Exception) -> bool:
        """Whether the connection is gone, and not only this call failed."""
        from mcp.types import CONNECTION_CLOSED

        return self._client is None or getattr(error, "code", None) == CONNECTION_CLOSED or _leaf_is_network(error)

    def _words(self, error: BaseException) -> str:
        """One line about an error, without secrets."""
        leaf = _leaf(error)
        if isinstance(leaf, ServerProblem | SecretUnavailable):
            return clipped(redact(str(leaf)), LONGEST_PROBLEM)
        if self._lost:
            return self._lost
        process = self._process
        if process is not None and (process.problem or process.last_error) and self._client is None:
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


def _leaf(error: BaseException) -> BaseException:
    """The first error inside a group of errors."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _leaf_is_network(error: BaseException) -> bool:
    import httpx2

    return isinstance(_leaf(error), httpx2.TransportError | OSError)


def most_values(data: bytes) -> int:
    """Return the most values that this part of a JSON text can hold. Commas inside of texts count as well."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _bounded() -> Any:
    """A transport that bounds answers by ``MAX_BODY_BYTES`` and ``MAX_VALUES``, because the library reads them whole.

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
            read = values = 0
            async for part in self._stream:
                if self._endless and b"\n\n" in part:  # Each event is decoded alone.
                    values = 0
                read += len(part)
                values += most_values(part)
                if read > MAX_BODY_BYTES and not self._endless:
                    raise httpx2.StreamError(TOO_LONG)
                if values > MAX_VALUES:
                    raise httpx2.StreamError(TOO_MANY)
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


# The program of a server

MAX_LINE_BYTES = 16 * 1024 * 1024
"""The longest message. A picture in base64 fits."""
KEPT_ERRORS = 4000
LEAVE_S = 2.0
"""How long a server may take to end once its input is closed, and again once it is asked to end."""
LOOK_S = 0.05


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
    def last_error(self) -> str:
        """The end of what it wrote to its standard error."""
        lines = [line.strip() for line in self._errors.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    @asynccontextmanager
    async def transport(
        self, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None
    ) -> AsyncGenerator[TransportStreams]:
        """Starts the program. At the end it is stopped, and everything that it started with it.

        Raises ``ServerProblem``.
        """
        import anyio
        from mcp.shared.message import SessionMessage

        environment = {**command_environment(os.environ, {}, {}, []), **env}
        folder = Path(cwd).expanduser() if cwd else Path.home()
        program = await asyncio.to_thread(shutil.which, Path(command).expanduser(), path=environment["PATH"])
        if program is None:
            raise ServerProblem(f"program not found in PATH: {command!r}")
        if not await asyncio.to_thread(folder.is_dir):
            raise ServerProblem(f"its folder {folder} does not exist")
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *args,
                env=environment,
                cwd=folder,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                start_new_session=True,
                limit=MAX_LINE_BYTES,
            )
        except OSError as error:
            raise ServerProblem(f"{program} cannot be started: {error.strerror or error}") from None
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
                    if most_values(line) > MAX_VALUES:
                        self.problem = f"it sent a message of more than {MAX_VALUES} values"
                        return
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        log.debug("a server printed a line that is not a message")
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
    pids = await asyncio.to_thread(survivors, process.pid, members)
    if process.returncode is not None and process.pid in pids:
        # The program is gone, and its number belongs to another one by now.
        return {pid: born for pid, born in pids.items() if members.get(pid) == born and pid != process.pid}
    return pids


# The tools of a server as a model may see them

LONGEST_NAME = 64
LONGEST_OWN_NAME = 256
LONGEST_SERVER = 24
MOST_TOOLS = 100
"""How many tools one server may offer. Providers refuse a request with too many."""
LONGEST_DESCRIPTION = 1024
LONGEST_SUMMARY = 160
LONGEST_WORDS = 400
"""The longest description of one parameter."""
MAX_SCHEMA_BYTES = 32 * 1024
MAX_LISTED_SCHEMA_BYTES = 256 * 1024
"""The longest schema that is looked at."""
MAX_NODES = 2000
"""The most parts of a schema, counted where references put them in."""
MAX_DEPTH = 12
MAX_RESULT_CHARS = 50_000
MAX_IMAGES = 4
SEPARATOR = "__"
_UNFIT = re.compile(r"[^a-z0-9_-]")
_PARAMETER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What every provider takes as the name of a parameter."""
_PLAIN_KEYWORDS = {
    **dict.fromkeys(("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"), (int, float)),
    "required": list,
    "enum": list,
}
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")


class ForeignTool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool that a server offers."""

    own_name: str
    """What the server calls it."""
    spec: ToolSpec
    summary: str


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as the server lists it."""

    name: str
    description: str
    schema: Mapping[str, Any]


def server_part(name: str) -> str:
    """The beginning of the names of a server's tools. It holds no ``__`` and begins and ends with a letter or a digit.

    So the first ``__`` of a tool's name always ends the server's part, and two servers never share a name.
    """
    lowered = name.strip().lower()
    part = re.sub("_{2,}", "_", _UNFIT.sub("_", lowered)).strip("_-")
    if part and part == lowered and len(part) <= LONGEST_SERVER:
        return part
    return f"{part[: LONGEST_SERVER - 7].rstrip('_') or 'server'}-{_digest(name)[:6]}"


def tool_name(part: str, own: str, taken: Collection[str] = ()) -> str:
    """``<server>__<tool>`` in lower case, at most ``LONGEST_NAME`` characters, different from those ``taken``."""
    full_name = f"{part}{SEPARATOR}{_UNFIT.sub('_', own.lower())}"
    if own and len(full_name) <= LONGEST_NAME and full_name not in taken:
        return full_name
    return f"{full_name[: LONGEST_NAME - 9]}-{_digest(own)[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def offered(
    part: str, listed: Iterable[ListedTool], allow: Sequence[str], deny: Sequence[str]
) -> tuple[list[ForeignTool], list[str]]:
    """The tools of a server that may be offered, and what had to be left out, in words."""
    tools: dict[str, ForeignTool] = {}
    left_out: list[str] = []
    for tool in listed:
        shown = clipped(disarmed_name(tool.name[:LONGEST_OWN_NAME]), 80)
        if len(tool.name) > LONGEST_OWN_NAME:
            left_out.append(f"{shown}: its name is longer than {LONGEST_OWN_NAME} characters")
            continue
        if not _wanted(tool.name, allow, deny):
            continue
        if len(tools) >= MOST_TOOLS:
            left_out.append(f"it has more than {MOST_TOOLS} tools; choose some with tools.allow")
            break
        name = tool_name(part, tool.name, tools)
        parameters = usable_schema(tool.schema)
        if name in tools or parameters is None:
            why = "its name comes twice" if name in tools else "its parameters have names that no model may use"
            left_out.append(f"{shown}: {why}")
            continue
        description = disarmed(tool.description.strip()[:LONGEST_DESCRIPTION])
        tools[name] = ForeignTool(
            own_name=tool.name,
            spec=ToolSpec(name=name, description=description or shown, parameters=parameters),
            summary=clipped(disarmed_name(tool.description), LONGEST_SUMMARY) or shown,
        )
    return list(tools.values()), left_out


def _wanted(name: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    if any(fnmatchcase(name.lower(), pattern.lower()) for pattern in deny):
        return False
    return not allow or any(fnmatchcase(name.lower(), pattern.lower()) for pattern in allow)


def usable_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema with the keywords that every provider takes. None if it needs a parameter that none would take.

    References are put in. A schema that is too large or too deep becomes an object with any parameters.
    """
    try:
        size = len(msgspec.json.encode(schema))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return _anything()
    if size > MAX_LISTED_SCHEMA_BYTES:
        return _anything()
    try:
        cleaned = _SchemaCleaner(schema).cleaned(schema, 0)
    except (_SchemaTooLarge, RecursionError):
        return _anything()
    cleaned.pop("anyOf", None)  # Providers want a plain object at the top.
    properties = cast("dict[str, Any]", cleaned.get("properties", {}))
    required = [name for name in cleaned.get("required", []) if isinstance(name, str)]
    if any(not _PARAMETER.fullmatch(name) for name in required):
        return None
    usable = {name: value for name, value in properties.items() if _PARAMETER.fullmatch(name)}
    result: dict[str, Any] = {"type": "object", "properties": usable}
    if needed := [name for name in required if name in usable]:
        result["required"] = needed
    if cleaned.get("additionalProperties") is False:
        result["additionalProperties"] = False
    return result if len(msgspec.json.encode(result)) <= MAX_SCHEMA_BYTES else _anything()


def _anything() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


class _SchemaTooLarge(Exception):
    pass


class _SchemaCleaner:
    """Copies the usable part of one schema.

    A schema of a few hundred bytes can stand for billions of parts, because references put the same definition in many
    times. So every part counts, wherever it comes from, and a definition that refers to itself is left open there.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions = {
            f"#/{key}/{name}": value
            for key in ("$defs", "definitions")
            if isinstance(section := schema.get(key), dict)
            for name, value in cast("dict[str, Any]", section).items()
        }
        self._nodes = 0
        self._inside: list[str] = []
        """The references that are being put in."""

    def cleaned(self, schema: Any, depth: int) -> dict[str, Any]:
        """Raises ``_SchemaTooLarge``."""
        self._count(1)
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return {}
        fields = cast("dict[str, Any]", schema)
        if isinstance(reference := fields.get("$ref"), str):
            return self._referred(reference, fields, depth)
        inner = partial(self.cleaned, depth=depth + 1)
        result: dict[str, Any] = {}
        for part in fields["allOf"] if isinstance(fields.get("allOf"), list) else ():
            _merge(result, inner(part))
        if (types := _types(fields.get("type"))) is not None:
            result["type"] = types
        if isinstance(words := fields.get("description"), str):
            result["description"] = disarmed(words[:LONGEST_WORDS])
        for keyword, kind in _PLAIN_KEYWORDS.items():
            if isinstance(value := fields.get(keyword), kind) and not isinstance(value, bool):
                result[keyword] = self._plain(value)
        if "const" in fields and "enum" not in result:
            result["enum"] = [self._plain(fields["const"])]
        for keyword in ("anyOf", "oneOf"):
            if isinstance(options := fields.get(keyword), list) and options:
                result["anyOf"] = [inner(option) for option in cast("list[Any]", options)]
        if isinstance(properties := fields.get("properties"), dict):
            own = {str(name): inner(value) for name, value in cast("dict[Any, Any]", properties).items()}
            result["properties"] = {**result.get("properties", {}), **own}
        if isinstance(extra := fields.get("additionalProperties"), bool | dict):
            result["additionalProperties"] = extra if isinstance(extra, bool) else inner(extra)
        if result.get("type") == "array":
            result["items"] = inner(fields.get("items"))  # Providers refuse a list whose items are not told.
        return result

    def _referred(self, reference: str, fields: dict[str, Any], depth: int) -> dict[str, Any]:
        definition = self._definitions.get(reference)
        aside = {key: value for key, value in fields.items() if key == "description"}
        if reference in self._inside or not isinstance(definition, dict):
            return self.cleaned(aside, depth + 1)
        self._inside.append(reference)
        try:
            return self.cleaned({**cast("dict[str, Any]", definition), **aside}, depth + 1)
        finally:
            self._inside.pop()

    def _plain(self, value: Any) -> Any:
        """A value of the schema. Its texts are somebody else's, and a model reads them."""
        if isinstance(value, str):
            return disarmed(value[:LONGEST_WORDS])
        if isinstance(value, list):
            items = cast("list[Any]", value)[:200]
            self._count(len(items))
            return [self._plain(item) for item in items]
        return value if isinstance(value, int | float | bool) or value is None else str(value)[:LONGEST_WORDS]

    def _count(self, parts: int) -> None:
        self._nodes += parts
        if self._nodes > MAX_NODES:
            raise _SchemaTooLarge


def _types(declared: Any) -> str | list[str] | None:
    named = [declared] if isinstance(declared, str) else declared
    types = [name for name in cast("list[Any]", named) if name in _TYPES] if isinstance(named, list) else []
    return types[0] if len(types) == 1 else types or None


def _merge(result: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds what one part of ``allOf`` asks for."""
    properties = {**result.get("properties", {}), **more.get("properties", {})}
    required = [*result.get("required", []), *more.get("required", [])]
    result.update(more)
    if properties:
        result["properties"] = properties
    if required:
        result["required"] = list(dict.fromkeys(required))


class Answered(msgspec.Struct, kw_only=True):
    """What a server answered to a call, in plain values: the blocks of MCP as they stand on the wire."""

    content: list[dict[str, Any]]
    structured: Any = None
    failed: bool = False


async def tool_result(answer: Answered, server: str, own_name: str, *, sees_images: bool) -> ToolResult:
    """The answer as a model may read it: bounded, disarmed, with pictures that providers take."""
    texts: list[str] = []
    blocks: list[UserBlock] = []
    for block in answer.content:
        if block.get("type") == "image":
            shown = await _picture(block, sees_images and len(blocks) < MAX_IMAGES)
            if isinstance(shown, str):
                texts.append(shown)
            else:
                blocks.append(shown)
        elif text := _text_of(block):
            texts.append(text)
    if not texts and not blocks and answer.structured is not None:
        texts.append(await asyncio.to_thread(indented, answer.structured))
    whole = "\n".join(texts)
    text = disarmed(whole[:MAX_RESULT_CHARS])
    if len(whole) > MAX_RESULT_CHARS:
        text += f"\n[Cut: {MAX_RESULT_CHARS} of {len(whole)} characters]"
    if text or not blocks:
        blocks.insert(0, TextBlock(text=text or "(no output)"))
    status = "error" if answer.failed else "completed"
    details = {"status": status, "server": server, "tool": own_name, "truncated": len(whole) > MAX_RESULT_CHARS}
    return ToolResult(content=blocks, details=details)


def _text_of(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource_link":
            return f"Resource: {block.get('name', '')} {block.get('uri', '')}".strip()
        case "resource":
            resource = cast("dict[str, Any]", block.get("resource") or {})
            text = resource.get("text")
            return str(text) if text is not None else f"(a binary file: {resource.get('uri', '')})"
        case "audio":
            return f"(a sound that cannot be heard here: {block.get('mimeType', '')})"
        case _:
            return ""


async def _picture(block: Mapping[str, Any], shown: bool) -> UserBlock | str:
    if not shown:
        return "(a picture that is not shown)"
    encoded = str(block.get("data", ""))
    if len(encoded) > MAX_SOURCE_BYTES:
        return "(a picture that is too large)"
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "(a picture that cannot be decoded)"
    kind = sniff_image(data[:16])
    if kind is None:
        return "(a picture of an unknown kind)"
    try:
        fitted = await off_loop(partial(fit_image, data, kind))
    except ImageProblem as problem:
        return f"(a picture that is not shown: {problem})"
    return fitted.block
