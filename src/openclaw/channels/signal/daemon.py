"""Our own signal-cli: started with the channel, watched until it is ready, ended with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path

from openclaw.channels.base import NotConfigured
from openclaw.channels.signal.rpc import SignalRpc
from openclaw.clock import Clock
from openclaw.config.schema.channels import SignalAccount

READY_POLL_S = 0.15
END_S = 10.0
MAX_LINE = 2000


class DaemonFailed(Exception):
    """It did not come up, or it ended."""


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
    def __init__(self, settings: SignalAccount, rpc: SignalRpc, clock: Clock, log: logging.Logger) -> None:
        self._settings = settings
        self._rpc = rpc
        self._clock = clock
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once the daemon answers."""
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
        """Waits for the process to end by itself; says how."""
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
                continue  # A line longer than the reader's limit: what is left of it comes next.
            if not raw:
                return
            line = raw.decode(errors="replace").strip()[:MAX_LINE]
            serious = any(word in line for word in ("ERROR", "WARN", "Exception", "Failed"))
            self._log.log(logging.WARNING if serious else logging.DEBUG, "signal-cli: %s", line)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
