"""A server that is a program: it is started, spoken to over its standard input and output, and ended with its children.

Each message is one line of JSON. A line and what is kept of the standard error have a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.tools.exec.environment import command_environment
from openclaw.tools.shell_process import Members, survivors

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

log = logging.getLogger("openclaw.mcp")

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
