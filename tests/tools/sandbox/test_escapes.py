"""Tricks that try to leave a sandbox, against a real bubblewrap. None of them gets out."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw.messages import TextBlock
from openclaw.path_opener import PathRefused
from openclaw.tools.base import ToolError
from openclaw.tools.sandbox.launch import ControlGroup

from .support import Inside, needs_bubblewrap

SECRET = "the-owner's-secret-0815"
RACES = int(os.environ.get("OPENCLAW_SANDBOX_RACES", "150"))
MINE = os.getpid()
"""In the arguments of commands that are looked for on the whole machine, where other tests may run too."""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    needs_bubblewrap()
    state = tmp_path / "home" / ".openclaw"
    (state / "workspace").mkdir(parents=True)
    (state / "openclaw.json").write_text(SECRET)
    (state / "ledger.db").write_text(SECRET)
    (state.parent / "secret.txt").write_text(SECRET)
    (state / "workspace" / "MEMORY.md").write_text(SECRET)
    return state


@pytest.fixture
def inside(state: Path) -> Inside:
    return Inside(state)


READS = [
    "cat {state}/openclaw.json",
    "cat {home}/secret.txt",
    "cat {state}/workspace/MEMORY.md",
    "ls -R {home}",
    "find / -name openclaw.json 2>/dev/null | xargs cat",
    "grep -rs '{secret}' / --exclude-dir=proc --exclude-dir=usr",
    "ln -s {state}/openclaw.json l; cat l",
    "ln -s / root; cat root{state}/openclaw.json",
    "cat /proc/1/root{state}/openclaw.json",
    "cat /proc/self/root/../..{state}/openclaw.json",
    "for p in /proc/[0-9]*; do cat $p/root{state}/openclaw.json $p/cwd/../../openclaw.json; done",
    "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; done",
    "for f in /proc/self/fd/*; do cat $f/openclaw.json $f/../openclaw.json < /dev/null; done",
    "ln {state}/openclaw.json hard; cat hard",
    "mount --bind {state} /tmp; cat /tmp/openclaw.json",
    "mount -t proc proc /tmp && cat /tmp/1/root{state}/openclaw.json",
    "unshare -Urm sh -c 'mount --bind / /tmp && cat /tmp{state}/openclaw.json'",
    "chroot / cat {state}/openclaw.json",
    "nsenter -t 1 -a cat {state}/openclaw.json",
    "mknod disk b 252 0; cat disk | head -c 100",
    "debugfs -R 'cat {state}/openclaw.json' /dev/vda",
    "cat /etc/shadow",
    "cd ../../../../..; cat .{state}/openclaw.json",
    "env; set; export -p",
    "sudo -n cat {state}/openclaw.json; su -c 'cat {state}/openclaw.json'",
]


@pytest.mark.parametrize("trick", READS)
async def test_no_trick_reads_what_is_outside(inside: Inside, trick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_GATEWAY_TOKEN", SECRET)
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    command = trick.replace("{state}", str(inside.state)).replace("{home}", str(inside.state.parent))
    printed = await inside.run(command.replace("{secret}", SECRET[-4:]), timeout=60)
    assert SECRET not in printed
    assert "root:$" not in printed and "root:*" not in printed


WRITES = [
    "echo bad > {state}/openclaw.json",
    "echo bad > {home}/secret.txt",
    "echo bad > /usr/bin/true",
    "echo bad > /etc/passwd",
    "touch /new /usr/new /dev/new /proc/new",
    "cp /proc/sys/kernel/core_pattern /tmp/p; cat /tmp/p > /proc/sys/kernel/core_pattern && echo BROKEN",
    "echo 1 > /proc/sys/vm/drop_caches && echo BROKEN",
    "echo b > /proc/sysrq-trigger && echo BROKEN",
    "echo -1000 > /proc/self/oom_score_adj && echo BROKEN",
    "cp /bin/sh s; chmod u+s s; ./s -p -c 'id -u' | grep -x 0 && echo BROKEN",
    "mount -o remount,rw /usr && echo BROKEN",
    "umount /workspace && echo BROKEN",
    "unshare -U true && echo BROKEN",
    "mkdir -p /sys/fs/cgroup && echo BROKEN",
    'python3 -c \'import ctypes; c = ctypes.CDLL(None); print("BRO" + "KEN" if c.ptrace(16, 2, 0, 0) == 0 and '
    'open("/proc/2/cmdline").read().startswith("/lib/systemd") else "held")\'',
]


@pytest.mark.parametrize("trick", WRITES)
async def test_no_trick_changes_what_is_outside(inside: Inside, trick: str) -> None:
    command = trick.replace("{state}", str(inside.state)).replace("{home}", str(inside.state.parent))
    assert "BROKEN" not in (await inside.run(command, timeout=60)).splitlines()
    assert (inside.state / "openclaw.json").read_text() == SECRET
    assert (inside.state.parent / "secret.txt").read_text() == SECRET


@pytest.mark.parametrize(
    "path",
    [
        "{state}/openclaw.json", "../../openclaw.json", "/workspace/../openclaw.json", "/etc/passwd", "~/../secret.txt",
        "/proc/self/environ", "/proc/self/root/etc/passwd", "/proc/self/cwd", "link", "folder/openclaw.json", "hard",
        "link/../../openclaw.json", "@{state}/openclaw.json", "/workspace//..//..//etc/passwd", "/agent/MEMORY.md",
        "{state}/workspace/MEMORY.md",
    ],
)  # fmt: skip
async def test_file_tools_stop_at_the_same_boundary(inside: Inside, path: str) -> None:
    await inside.run("true")
    folder = inside.plan.folder
    (folder / "link").symlink_to(inside.state / "openclaw.json")
    (folder / "folder").symlink_to(inside.state)
    (folder / "hard").hardlink_to(inside.state / "openclaw.json")
    named = path.replace("{state}", str(inside.state))
    with pytest.raises((ToolError, PathRefused)):
        await inside.call("read", path=named)
    if path not in ("hard", "link"):
        with pytest.raises((ToolError, PathRefused)):
            await inside.call("write", path=named, content="bad")
    with pytest.raises((ToolError, PathRefused)):
        await inside.call("edit", path=named, oldText=SECRET, newText="bad")
    assert (inside.state / "openclaw.json").read_text() == SECRET


@pytest.fixture
def swapping(inside: Inside) -> Iterator[Path]:
    """A name in the sandbox that is a folder and a link to the state folder by turns."""
    folder = inside.plan.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "real").mkdir()
    (folder / "real" / "openclaw.json").write_text("harmless")
    (folder / "link").symlink_to(inside.state)
    stop = threading.Event()

    def swap() -> None:
        name = folder / "swap"
        while not stop.is_set():
            for source in ("real", "link"):
                try:
                    (folder / source).rename(name)
                except OSError:  # The write tool made the folder meanwhile.
                    shutil.rmtree(name, ignore_errors=True)
                else:
                    name.rename(folder / source)

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    yield folder / "swap"
    stop.set()
    thread.join()


async def test_races_of_swapped_links_never_lead_out(inside: Inside, swapping: Path) -> None:
    seen = {"refused": 0, "read": 0}
    for number in range(RACES):
        try:
            result = await inside.call("read", path=f"{swapping.name}/openclaw.json")
            (block,) = result.content
            assert isinstance(block, TextBlock) and block.text == "harmless"
            seen["read"] += 1
        except (ToolError, PathRefused):
            seen["refused"] += 1
        try:
            await inside.call("write", path=f"{swapping.name}/new{number}.txt", content="bad")
        except (ToolError, PathRefused):
            pass
    assert seen["refused"] and not list(inside.state.glob("new*"))


async def test_nobody_is_reached_over_the_network(inside: Inside) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = await inside.run(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo CONNECTED; ls /sys/class/net")
        assert "CONNECTED" not in said
        server.settimeout(0.01)
        with pytest.raises(TimeoutError):
            server.accept()


async def test_the_machines_own_network_is_a_setting(state: Path) -> None:
    inside = Inside(state, {"docker": {"network": "host"}})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "CONNECTED" in await inside.run(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo CONNECTED")


async def test_a_fork_bomb_stays_within_the_limit(state: Path) -> None:
    inside = Inside(state, {"docker": {"pidsLimit": 40}})
    bomb = """
import os, time
made = 0
try:
    while made < 300:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    pass
print("made", made)
"""
    await inside.call("write", path="bomb.py", content=bomb)
    said = await inside.run("python3 bomb.py", timeout=60)
    assert said.startswith("made ") and 0 < int(said.split()[1]) <= 40
    assert inside.boundary.limits["processes"] == "40"
    assert await inside.run("echo fine") == "fine"


async def test_a_fork_bomb_ends_where_nobody_can_make_control_groups(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw.tools.sandbox.boundary.control_group", lambda *_: ControlGroup())
    inside = Inside(state, {"docker": {"pidsLimit": 40}})
    bomb = "import os, time\nfor _ in range(200):\n    os.fork() or time.sleep(4325.5)\ntime.sleep(60)\n"
    await inside.call("write", path="bomb.py", content=bomb)
    said = await inside.run("python3 bomb.py", timeout=50)
    assert "more than 40 processes" in said or "Resource temporarily unavailable" in said
    assert await inside.run("echo fine") == "fine"


async def test_memory_files_and_output_are_limited(state: Path) -> None:
    inside = Inside(state, {"docker": {"memory": "256m", "ulimits": {"fsize": 1_000_000}}})
    assert "MemoryError" in await inside.run("python3 -c 'x = bytearray(600 * 1024 * 1024)'")
    assert "File size limit" in await inside.run("head -c 3000000 /dev/zero > big; ls -l big")
    said = await inside.run("head -c 700000000 /dev/zero | split -b 900000 - /dev/shm/x && echo WROTE")
    assert "WROTE" not in said  # The folder is full, or its memory is used up.
    printed = await inside.run("yes 'many words' | head -c 3000000")
    assert len(printed) <= 30_300
    (path,) = re.findall(r"All of it is in (/workspace/\.outputs/[\w-]+\.txt)\]", printed)
    assert await inside.run(f"wc -c < {path}") == "3000000"
    (page,) = (await inside.call("read", path=path, limit=1)).content
    assert isinstance(page, TextBlock) and page.text.startswith("many words\n")


async def test_nothing_outlives_the_command(inside: Inside) -> None:
    said = await inside.run(f"nohup setsid sleep 4321.{MINE} >/dev/null 2>&1 & echo started")
    assert said == "started"
    for _ in range(3000):
        if not _running(f"4321.{MINE}"):
            break
        await asyncio.sleep(0.02)
    assert not _running(f"4321.{MINE}")


async def test_a_command_in_the_background_goes_on_and_is_killed_with_all_it_started(inside: Inside) -> None:
    result = await inside.call("exec", command=f"setsid sleep 4322.{MINE} & sleep 4323.{MINE}", background=True)
    assert isinstance(result.details, dict) and result.details["status"] == "running"
    slug: str = result.details["sessionId"]
    await inside.call("process", action="kill", sessionId=slug)
    for _ in range(3000):
        if not _running(f"4322.{MINE}") and not _running(f"4323.{MINE}"):
            break
        await asyncio.sleep(0.02)
    assert not _running(f"4322.{MINE}") and not _running(f"4323.{MINE}")


async def test_a_command_dies_with_a_gateway_that_is_killed(state: Path) -> None:
    program = f"""
import asyncio
from pathlib import Path
from tests.tools.sandbox.support import Inside
asyncio.run(Inside(Path({str(state)!r})).run("setsid sleep 4324.{MINE}"))
"""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=Path(__file__).parents[3])
    for _ in range(3000):
        if _running(f"4324.{MINE}"):
            break
        await asyncio.sleep(0.02)
    assert _running(f"4324.{MINE}")
    child.kill()
    await child.wait()
    for _ in range(3000):
        if not _running(f"4324.{MINE}"):
            break
        await asyncio.sleep(0.02)
    assert not _running(f"4324.{MINE}")


def _running(argument: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", argument.encode()]:
            return True
    return False


async def test_a_call_cannot_take_longer_than_the_configuration_says(inside: Inside) -> None:
    exec_tool = inside.tools["exec"]
    exec_tool._settings.timeout_sec = 0.3  # type: ignore[attr-defined]
    assert "timed out after 0.3 seconds" in await inside.run("sleep 60", timeout=3600)


@pytest.mark.parametrize(("call", "arguments"), [(250, "0, -3, 0"), (425, "1, 0"), (321, "0, 0, 0"), (298, "0, 0, 0")])
async def test_doors_of_the_kernel_that_no_program_needs_are_shut(inside: Inside, call: int, arguments: str) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    program = f"import ctypes; c = ctypes.CDLL(None, use_errno=True); c.syscall({call}, {arguments}); "
    said = await inside.run(f"python3 -c '{program} print(ctypes.get_errno())'; grep Seccomp: /proc/self/status")
    assert said.split() == ["1", "Seccomp:", "2"]


async def test_the_environment_is_clean(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    inside.context.env = {"SKILL_API_KEY": SECRET}
    names = {line.partition("=")[0] for line in (await inside.run("env")).splitlines()}
    assert names <= {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PWD", "SHLVL", "_", "OLDPWD"}


async def test_a_terminal_is_there_when_asked_for(inside: Inside) -> None:
    assert "a terminal" in await inside.run("test -t 0 && test -t 1 && echo a terminal", pty=True)


async def test_a_read_only_workspace_cannot_be_written(state: Path) -> None:
    inside = Inside(state, {"workspaceAccess": "ro"})
    assert await inside.run("cat /agent/MEMORY.md") == SECRET
    for trick in (
        "echo bad > /agent/MEMORY.md",
        "rm /agent/MEMORY.md",
        "chmod 777 /agent; touch /agent/x",
        "mount -o remount,rw /agent; echo bad > /agent/MEMORY.md",
        "ln -s /agent/MEMORY.md m; echo bad > m",
    ):
        assert "code" in await inside.run(trick)
    assert (state / "workspace" / "MEMORY.md").read_text() == SECRET
    with pytest.raises((ToolError, PathRefused)):
        await inside.call("write", path="/agent/MEMORY.md", content="bad")
    assert os.listdir(state / "workspace") == ["MEMORY.md"]


async def test_a_shared_workspace_is_the_agents_own(state: Path) -> None:
    inside = Inside(state, {"workspaceAccess": "rw"})
    assert await inside.run("echo new > note; cat MEMORY.md") == SECRET
    assert (state / "workspace" / "note").read_text() == "new\n"
    await inside.call("write", path="note2", content="x")
    assert await inside.run("cat /workspace/note2") == "x"
    assert not inside.plan.own_folder.exists()


async def test_files_and_commands_see_the_same(inside: Inside) -> None:
    (inside.state / "workspace" / "AGENTS.md").write_text("be kind")
    await inside.call("write", path="/workspace/a/b.txt", content="one\n")
    assert await inside.run("cat a/b.txt; cat AGENTS.md", workdir="/workspace") == "one\nbe kind"
    assert await inside.run("cat b.txt", workdir="a") == "one"
    assert await inside.run("pwd", workdir="/workspace/a") == "/workspace/a"
    assert await inside.run("pwd", workdir="~/a") == "/workspace/a"
    await inside.run("echo two > c.txt")
    (block,) = (await inside.call("read", path="/workspace/c.txt")).content
    assert isinstance(block, TextBlock) and block.text == "two\n"
    said = await inside.run("pwd", workdir="/etc")
    assert said == 'Warning: workdir "/etc" is unavailable; using "/workspace".\n\n/workspace'
