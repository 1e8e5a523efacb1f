from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from openclaw.messages import TextBlock
from openclaw.tools import shell_process
from openclaw.tools.base import ToolContext, ToolError, ToolResult
from openclaw.tools.exec.settings import ASK_LEVELS, SECURITY_LEVELS, ExecSettings, strictest
from openclaw.tools.exec.tool import ExecTool
from openclaw.tools.process import ProcessRegistry, ProcessTool
from tests.support.clock import MovableClock

SCOPE = "main|agent:main:main"
"""The scope of the fixture ``context``."""


@pytest.fixture
def tool(processes: ProcessRegistry) -> ExecTool:
    return ExecTool(ExecSettings(), processes)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


def text_of(result: ToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextBlock)
    return block.text


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something another process does; the test's own timeout is the limit."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def later(clock: MovableClock, call: asyncio.Task[ToolResult]) -> ToolResult:
    """What a call says when its time is up. The clock goes on until it ends: it may not have looked at it yet."""
    async with asyncio.timeout(60):
        while not call.done():
            clock.advance(60)
            await asyncio.sleep(0.01)
    return await call


async def pid_in(path: Path) -> int:
    await until(lambda: path.exists() and path.read_text().strip() != "")
    return int(path.read_text())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo hi; echo err >&2", "hi\nerr"),
        ("true", "(no output)"),
        ("printf '\\033[31mred\\033[0m\\000!'", "red!"),
        ("for i in 1 2 3; do echo o$i; echo e$i >&2; done", "o1\ne1\no2\ne2\no3\ne3"),
        ("echo '  indented'; echo", "  indented"),
    ],
)
async def test_output_and_errors_come_in_the_order_printed(
    tool: ExecTool, context: ToolContext, command: str, expected: str
) -> None:
    result = await tool.run({"command": command}, context)
    assert text_of(result) == expected
    assert result.details.keys() == {"status", "exitCode", "durationMs", "cwd"}
    assert (result.details["status"], result.details["exitCode"]) == ("completed", 0)
    assert result.details["cwd"] == str(context.workspace)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": "echo x; exit 3"}, "x\n\nCommand exited with code 3"),
        ({"command": "exit 3"}, "Command exited with code 3"),
        ({"command": "sleep 30", "timeout": 0.2}, "Command timed out after 0.2 seconds"),
        ({"command": "echo x; kill -9 $$"}, "x\n\nCommand aborted by signal SIGKILL"),
    ],
)
async def test_a_command_that_ends_badly_says_how(
    tool: ExecTool, context: ToolContext, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ToolError) as caught:
        await tool.run(arguments, context)
    assert str(caught.value) == message


async def test_an_unusable_workdir_falls_back_with_a_warning(tool: ExecTool, context: ToolContext) -> None:
    result = await tool.run({"command": "pwd", "workdir": "/no/such"}, context)
    expected = f'Warning: workdir "/no/such" is unavailable; using "{context.workspace}".\n\n{context.workspace}'
    assert text_of(result) == expected
    (context.workspace / "sub").mkdir()
    result = await tool.run({"command": "pwd", "workdir": "sub"}, context)
    assert text_of(result) == f"{context.workspace}/sub"


async def test_the_environment_can_be_extended_and_not_subverted(
    tool: ExecTool, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCLAW_GATEWAY_TOKEN", "canary")
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    result = await tool.run({"command": "echo $TZ; env", "env": {"TZ": "Asia/Tokyo"}}, context)
    assert text_of(result).startswith("Asia/Tokyo\n")
    assert "canary" not in text_of(result)
    with pytest.raises(ToolError, match="'LD_PRELOAD' may not be set"):
        await tool.run({"command": "true", "env": {"LD_PRELOAD": "x"}}, context)


class Outputs:
    """Stores outputs in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def store(self, data: bytes, name: str) -> str:
        path = self.folder / f"{name}.txt"
        path.write_bytes(data)
        return str(path)


async def test_of_a_long_output_the_model_reads_both_ends_and_the_file_has_every_byte(
    context: ToolContext, tmp_path: Path
) -> None:
    processes = ProcessRegistry(spill_folder=tmp_path)
    tool = ExecTool(ExecSettings(), processes, outputs=Outputs(tmp_path))
    result = await tool.run({"command": "seq 1 300000"}, context)
    path = result.details["outputFile"]
    assert Path(path).read_bytes() == b"".join(b"%d\n" % number for number in range(1, 300_001))
    text = text_of(result)
    note = (
        "\n[Output cut: 1988895 bytes in all, of which you see the first 6000 and the last 24000 characters. "
        f"All of it is in {path}]\n"
    )
    head, tail = text.split(note)
    assert head.startswith("1\n2\n3\n") and len(head) == 6000
    assert tail.endswith("\n299999\n300000") and len(tail) == 23_999
    assert (result.details["truncated"], result.details["totalBytes"]) == (True, 1_988_895)
    await processes.close()


@pytest.mark.parametrize("last", [30_000, 30_001])
async def test_an_output_up_to_the_limit_is_whole(tool: ExecTool, context: ToolContext, last: int) -> None:
    text = text_of(await tool.run({"command": f"head -c {last} /dev/zero | tr '\\0' x"}, context))
    assert ("[Output cut: 30001 bytes in all" in text) == (last > 30_000)
    assert last > 30_000 or text == "x" * last


async def test_a_failed_command_with_a_long_output_still_ends_with_its_exit_code(
    processes: ProcessRegistry, context: ToolContext, tmp_path: Path
) -> None:
    tool = ExecTool(ExecSettings(max_output_chars=1000), processes, outputs=Outputs(tmp_path))
    with pytest.raises(ToolError) as caught:
        await tool.run({"command": "seq 1 100000; exit 7"}, context)
    text = str(caught.value)
    assert text.startswith("1\n2\n3\n") and text.endswith("\n99999\n100000\n\nCommand exited with code 7")
    assert caught.value.details["exitCode"] == 7 and caught.value.details["truncated"]


async def test_an_output_larger_than_its_file_is_said_to_be_so(
    context: ToolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_process, "MOST_SPILLED", 1_000_000)
    processes = ProcessRegistry(spill_folder=tmp_path)
    tool = ExecTool(ExecSettings(), processes, outputs=Outputs(tmp_path))
    result = await tool.run({"command": "seq 1 300000"}, context)
    assert f"The first 1000000 bytes are in {result.details['outputFile']}]" in text_of(result)
    assert Path(result.details["outputFile"]).stat().st_size == 1_000_000
    await processes.close()


async def test_a_program_that_reads_its_input_does_not_wait(tool: ExecTool, context: ToolContext) -> None:
    async with asyncio.timeout(60):
        result = await tool.run({"command": "cat; read line || echo closed"}, context)
    assert text_of(result) == "closed"


async def test_the_log_of_a_long_command_has_its_first_lines(context: ToolContext, tmp_path: Path) -> None:
    processes = ProcessRegistry(spill_folder=tmp_path)
    started = await ExecTool(ExecSettings(), processes).run({"command": "seq 1 300000", "background": True}, context)
    slug = started.details["sessionId"]
    session = processes.get(SCOPE, slug)
    assert session is not None
    await session.ended.wait()
    asked = {"action": "log", "sessionId": slug, "offset": 0, "limit": 2}
    log = await ProcessTool(processes).run(asked, context)
    assert text_of(log) == "1\n2" and log.details["totalLines"] == 300_000
    await processes.close()


async def test_a_flood_of_output_does_not_hold_up_the_loop_or_the_memory(
    processes: ProcessRegistry, context: ToolContext
) -> None:
    tool = ExecTool(ExecSettings(), processes)
    with pytest.raises(ToolError, match="Command timed out"):
        await tool.run({"command": "yes", "timeout": 0.3}, context)


async def test_a_command_that_takes_longer_goes_to_the_background(
    clock: MovableClock, context: ToolContext, processes: ProcessRegistry
) -> None:
    processes.clock = clock
    tool = ExecTool(ExecSettings(), processes)
    call = asyncio.create_task(tool.run({"command": "echo begun; sleep 600", "yieldMs": 30_000}, context))
    await until(lambda: any(one.output.total_bytes for one in processes._running.values()))
    result = await later(clock, call)
    slug = result.details["sessionId"]
    assert text_of(result) == (
        f"Command still running (session {slug}, pid {result.details['pid']}). "
        "Use process (list/poll/log/write/kill/clear/remove) for follow-up.\n\nOutput so far:\nbegun"
    )
    assert (result.details["status"], result.details["tail"]) == ("running", "begun\n")
    assert len(slug.split("-")) == 2
    assert [session.id for session in processes.list(SCOPE)] == [slug]
    assert processes.list("other") == []
    await processes.close()
    assert not is_running(result.details["pid"])


async def test_the_end_of_a_background_command_is_announced_once(
    tool: ExecTool, context: ToolContext, processes: ProcessRegistry
) -> None:
    notices: list[str] = []
    told = msgspec.structs.replace(context, notify=notices.append)
    good = await tool.run({"command": "read x; echo got\necho $x", "background": True}, told)
    bad = await tool.run({"command": "read x; exit 4", "background": True}, told)
    for result in (good, bad):
        session = processes.get(SCOPE, result.details["sessionId"])
        assert session is not None
        await session.process.write(b"word\n")
        await session.ended.wait()
    await until(lambda: len(notices) == 2)
    assert notices == [
        f"Exec completed ({good.details['sessionId'][:8]}, code 0) :: got word",
        f"Exec failed ({bad.details['sessionId'][:8]}, code 4)",
    ]


async def test_announcements_can_be_switched_off(processes: ProcessRegistry, context: ToolContext) -> None:
    notices: list[str] = []
    tool = ExecTool(ExecSettings(notify_on_exit=False), processes)
    told = msgspec.structs.replace(context, notify=notices.append)
    result = await tool.run({"command": "true", "background": True}, told)
    session = processes.get(SCOPE, result.details["sessionId"])
    assert session is not None
    await session.ended.wait()
    await processes.close()
    assert notices == []


STUBBORN = "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > grandchild; while :; do sleep 1; done' & wait"


async def test_cancelling_ends_the_whole_group_even_a_grandchild_that_ignores_the_request(
    tool: ExecTool, context: ToolContext, processes: ProcessRegistry
) -> None:
    call = asyncio.create_task(tool.run({"command": STUBBORN}, context))
    grandchild = await pid_in(context.workspace / "grandchild")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not is_running(grandchild))
    assert processes.list(SCOPE) == []


async def test_a_quiet_grandchild_that_left_the_pipes_and_the_session_is_ended_too(
    tool: ExecTool, context: ToolContext
) -> None:
    command = "setsid sh -c 'trap \"\" TERM; echo $$ > grandchild; sleep 60' >/dev/null 2>&1 </dev/null & wait"
    call = asyncio.create_task(tool.run({"command": command}, context))
    grandchild = await pid_in(context.workspace / "grandchild")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not is_running(grandchild))


async def test_cancelling_before_the_command_has_started_leaves_nothing_behind(
    tool: ExecTool, context: ToolContext
) -> None:
    call = asyncio.create_task(tool.run({"command": "echo $$ > started; sleep 60"}, context))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # The thread that starts the command cannot be interrupted: let it finish, then look for what it brought up.
    await asyncio.get_running_loop().shutdown_default_executor()
    await until(lambda: not [name for name in os.listdir("/proc") if _cwd(name) == str(context.workspace)])


def _cwd(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


async def test_a_timeout_ends_the_whole_group_too(
    clock: MovableClock, context: ToolContext, processes: ProcessRegistry
) -> None:
    processes.clock = clock
    tool = ExecTool(ExecSettings(allow_background=False), processes)
    call = asyncio.create_task(tool.run({"command": STUBBORN, "timeout": 50}, context))
    grandchild = await pid_in(context.workspace / "grandchild")
    with pytest.raises(ToolError, match="timed out"):
        await later(clock, call)
    await until(lambda: not is_running(grandchild))


async def test_cancelling_does_not_end_what_is_in_the_background(
    tool: ExecTool, context: ToolContext, processes: ProcessRegistry
) -> None:
    result = await tool.run({"command": "sleep 60", "background": True}, context)
    call = asyncio.create_task(tool.run({"command": "sleep 60"}, context))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert is_running(result.details["pid"])


async def test_nothing_is_left_as_a_zombie_and_no_descriptor_stays_open(tool: ExecTool, context: ToolContext) -> None:
    await tool.run({"command": "true"}, context)
    before = len(os.listdir("/proc/self/fd"))
    for arguments in ({"command": "true"}, {"command": "true", "pty": True}, {"command": "sleep 9", "timeout": 0.1}):
        try:
            await tool.run(arguments, context)
        except ToolError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert [pid for pid in children if not is_running(int(pid))] == []


async def test_a_server_left_behind_by_the_shell_stays_in_reach(
    tool: ExecTool, context: ToolContext, processes: ProcessRegistry
) -> None:
    result = await tool.run({"command": "sleep 60 & echo started $!"}, context)
    assert "The shell itself exited with code 0" in text_of(result)
    assert result.details["tail"].startswith("started ")
    server = int(result.details["tail"].split()[1])
    session = processes.get(SCOPE, result.details["sessionId"])
    assert session is not None
    await processes.stop(session)
    await until(lambda: not is_running(server))


async def test_without_the_process_tool_nothing_goes_to_the_background(
    processes: ProcessRegistry, context: ToolContext
) -> None:
    tool = ExecTool(ExecSettings(background_ms=10, allow_background=False), processes)
    result = await tool.run({"command": "sleep 0.2; echo done; sleep 60 &", "background": True}, context)
    assert text_of(result) == "done"
    assert processes.list(SCOPE) == []


async def test_a_terminal_of_120_by_30_is_given_on_request(tool: ExecTool, context: ToolContext) -> None:
    result = await tool.run({"command": "test -t 0 && test -t 1 && stty size && tty", "pty": True}, context)
    size, terminal = text_of(result).split("\n")
    assert size == "30 120"
    assert terminal.startswith("/dev/")
    controlling = await tool.run({"command": "echo hello > /dev/tty", "pty": True}, context)
    assert text_of(controlling) == "hello"
    piped = await tool.run({"command": "test -t 1 || echo no terminal"}, context)
    assert text_of(piped) == "no terminal"


async def test_progress_is_shown_while_the_command_runs(tool: ExecTool, context: ToolContext) -> None:
    updates: list[ToolResult] = []
    seen = asyncio.Event()

    def update(result: ToolResult) -> None:
        updates.append(result)
        seen.set()

    watched = msgspec.structs.replace(context, update=update)
    call = asyncio.create_task(tool.run({"command": "echo one; while [ ! -e go ]; do sleep 0.02; done"}, watched))
    async with asyncio.timeout(60):
        await seen.wait()
    (context.workspace / "go").touch()
    await call
    assert text_of(updates[0]) == "one\n"
    assert updates[0].details["status"] == "running"


async def test_hosts_and_security_that_are_not_configured_are_refused(
    processes: ProcessRegistry, context: ToolContext, tool: ExecTool
) -> None:
    for arguments, words in (
        ({"host": "node"}, "host node is not allowed"),
        ({"security": "deny"}, "exec is denied"),
    ):
        with pytest.raises(ToolError, match=words):
            await tool.run({"command": "touch ran", **arguments}, context)
    denied = ExecTool(ExecSettings(security="deny"), processes)
    with pytest.raises(ToolError, match="exec is denied"):
        await denied.run({"command": "touch ran"}, context)
    assert not (context.workspace / "ran").exists()


async def test_on_the_gateway_host_only_listed_programs_run_and_only_as_they_were_checked(
    processes: ProcessRegistry, context: ToolContext
) -> None:
    echo = os.path.realpath(shutil.which("echo") or "")
    tool = ExecTool(ExecSettings(host="gateway", allowlist=[echo]), processes)
    result = await tool.run({"command": "echo 'a  $b'", "security": "full"}, context)
    assert text_of(result) == "a  $b"
    for command, words in (
        ("touch ran", "is not on the allowlist"),
        ("echo x > ran", "needs a shell"),
        ("echo $(touch ran)", "needs a shell"),
    ):
        with pytest.raises(ToolError, match=words):
            await tool.run({"command": command}, context)
    with pytest.raises(ToolError, match="needs an approval"):
        await tool.run({"command": "echo x", "ask": "always"}, context)
    assert not (context.workspace / "ran").exists()


def test_everything_works_on_uvloop_too(workspace: Path, context: ToolContext) -> None:
    async def scenario() -> None:
        processes = ProcessRegistry()
        tool = ExecTool(ExecSettings(), processes)
        assert text_of(await tool.run({"command": "echo hi; echo err >&2"}, context)) == "hi\nerr"
        assert text_of(await tool.run({"command": "stty size", "pty": True}, context)) == "30 120"
        with pytest.raises(ToolError, match="timed out"):
            await tool.run({"command": "yes", "timeout": 0.2}, context)
        call = asyncio.create_task(tool.run({"command": STUBBORN}, context))
        grandchild = await pid_in(workspace / "grandchild")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: not is_running(grandchild))
        running = await tool.run({"command": "sleep 60", "background": True}, context)
        await processes.close()
        assert not is_running(running.details["pid"])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


async def test_systems_without_process_descriptors_are_served_too(
    clock: MovableClock, context: ToolContext, processes: ProcessRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    processes.clock = clock
    tool = ExecTool(ExecSettings(allow_background=False), processes)
    with pytest.raises(ToolError, match="x\n\nCommand exited with code 3"):
        await tool.run({"command": "echo x; exit 3"}, context)
    call = asyncio.create_task(tool.run({"command": STUBBORN, "timeout": 50}, context))
    grandchild = await pid_in(context.workspace / "grandchild")
    with pytest.raises(ToolError, match="timed out"):
        await later(clock, call)
    await until(lambda: not is_running(grandchild))


async def test_after_closing_nothing_can_be_started(
    tool: ExecTool, context: ToolContext, processes: ProcessRegistry
) -> None:
    await processes.close()
    with pytest.raises(ToolError, match="shutting down"):
        await tool.run({"command": "true"}, context)
    with pytest.raises(ToolError, match="Missing required parameter: command"):
        await tool.run({}, context)


def test_the_stricter_security_and_the_stronger_ask_win() -> None:
    assert strictest(SECURITY_LEVELS, "allowlist", "full") == "allowlist"
    assert strictest(SECURITY_LEVELS, "full", "deny") == "deny"
    assert strictest(SECURITY_LEVELS, "full", None) == "full"
    assert strictest(ASK_LEVELS, "on-miss", "off") == "on-miss"
    assert strictest(ASK_LEVELS, "off", "always") == "always"


def test_settings_stay_within_their_bounds() -> None:
    low = ExecSettings(background_ms=1, cleanup_ms=1, max_output_chars=1)
    assert (low.background_ms, low.cleanup_ms, low.max_output_chars) == (10, 60_000, 1000)
    high = ExecSettings().with_environment({"PI_BASH_YIELD_MS": "999999", "PI_BASH_MAX_OUTPUT_CHARS": "5000"})
    assert (high.background_ms, high.max_output_chars) == (120_000, 5000)
    assert ExecSettings(background_ms=500).with_environment({"PI_BASH_YIELD_MS": "700"}).background_ms == 500
    decoded = msgspec.convert({"backgroundMs": 50, "timeoutSec": 5}, ExecSettings)
    assert (decoded.background_ms, decoded.timeout_sec) == (50, 5)
