"""Runs a program of this machine to its end and keeps what it prints."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

LONGEST_COMPLAINT = 600
LOOK_S = 0.25
"""The longest time until the end of a program is noticed."""
PATIENCE_S = 2.0
"""How long the output is read on after the program has ended."""


class ProgramFailed(Exception):
    """The program cannot be started, or it ended with an error."""

    def __init__(self, problem: str, complaint: str = "") -> None:
        super().__init__(f"{problem}: {complaint}".rstrip(": "))
        self.problem = problem
        """``cannot be started (…)`` or ``ended with status …``."""
        self.complaint = complaint
        """The end of what the program said about it."""


async def run_program(
    argv: Sequence[str], folder: str | Path, environ: Mapping[str, str], *, most_bytes: int, given: bytes = b""
) -> str:
    """Return what the program printed, up to ``most_bytes``. ``given`` is its input. Raises ``ProgramFailed``.

    Nothing in the program's process group goes on running, also when the caller is cancelled. A child that has left
    the group may hold the output open. It is not waited for.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        raise ProgramFailed(f"cannot be started ({error.strerror or error})") from None
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    reply, complained = bytearray(), bytearray()
    outputs = [
        asyncio.create_task(_read(process.stdout, reply, most_bytes)),
        asyncio.create_task(_read(process.stderr, complained, most_bytes)),
    ]
    writing = asyncio.create_task(_write(process.stdin, given))
    try:
        while process.returncode is None and not all(task.done() for task in outputs):
            await asyncio.wait(outputs, timeout=LOOK_S)
        # What the program started in a session of its own may keep the pipes open for as long as it runs.
        await asyncio.wait(outputs, timeout=PATIENCE_S)
        status = await _status(process)
    finally:
        for task in (*outputs, writing):
            task.cancel()
        # What the program started may outlive it and must not, also if the program itself has ended.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await _status(process)
        process._transport.close()  # type: ignore[attr-defined]  # pyright: ignore
    printed, complaints = reply.decode("utf-8", "replace"), complained.decode("utf-8", "replace")
    if status != 0:
        complaint = (complaints.strip() or printed.strip())[-LONGEST_COMPLAINT:]
        raise ProgramFailed(f"ended with status {status}", complaint)
    return printed


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    """Give the program its input. A program that does not read it has closed the pipe."""
    with contextlib.suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
    stream.close()


async def _read(stream: asyncio.StreamReader, kept: bytearray, most_bytes: int) -> None:
    """Read a stream to its end. Drops the excess, so that the program can end."""
    while chunk := await stream.read(64 * 1024):
        if len(kept) < most_bytes:
            kept += chunk


async def _status(process: asyncio.subprocess.Process) -> int:
    """Wait for the end of the program. The library's own wait also waits for whoever else has the pipes open."""
    pause_s = 0.001
    while process.returncode is None:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S)
    return process.returncode
