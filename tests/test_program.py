"""Running a program to its end: what it prints, how it fails, and that nothing of it goes on or is waited for."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from openclaw.program import ProgramFailed, run_program

MANY = 1 << 20


async def run(script: str, folder: Path, *, most_bytes: int = MANY, given: bytes = b"") -> str:
    return await run_program([sys.executable, "-c", script], folder, os.environ, most_bytes=most_bytes, given=given)


async def test_a_program_gets_its_input_and_returns_what_it_prints(tmp_path: Path) -> None:
    assert await run("import sys; print(sys.stdin.read().upper())", tmp_path, given=b"hello") == "HELLO\n"


async def test_a_program_without_input_does_not_wait_for_any(tmp_path: Path) -> None:
    assert await run("import sys; print(len(sys.stdin.read()))", tmp_path) == "0\n"


async def test_output_beyond_the_limit_is_dropped_and_the_program_ends(tmp_path: Path) -> None:
    printed = await run(f"print('x' * {4 * MANY})", tmp_path)
    assert MANY <= len(printed) < 2 * MANY


async def test_a_failure_has_the_status_and_what_the_program_complained_of(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed) as failed:
        await run("import sys; print('half'); sys.exit('no such model')", tmp_path)
    assert (failed.value.problem, failed.value.complaint) == ("ended with status 1", "no such model")


async def test_a_program_that_is_not_there_fails(tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match="cannot be started"):
        await run_program(["/nowhere/program"], tmp_path, {}, most_bytes=MANY)


DETACHED = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
"""


async def test_a_detached_child_that_keeps_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    printed = await run(DETACHED, tmp_path)
    os.kill(int(printed), 9)
    assert time.monotonic() - began < 30


GROUP = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path("child").write_text(str(child.pid))
pathlib.Path("child").rename("ready")
time.sleep(60)
"""


async def test_a_cancelled_caller_leaves_nothing_running(tmp_path: Path) -> None:
    running = asyncio.create_task(run(GROUP, tmp_path))
    while not (tmp_path / "ready").exists():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    child = int((tmp_path / "ready").read_text())
    async with asyncio.timeout(60):
        while _is_running(child):
            await asyncio.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
