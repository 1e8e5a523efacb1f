"""The commands of the reference node: what runs, under which rules, and what is answered."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.clock import SystemClock
from openclaw.node.host import BadIdentity, CommandFailed, NodeCommands, NodeIdentity, command_text, within_bytes
from openclaw.tools.exec.settings import ExecSettings
from tests.support.clock import until


@pytest.fixture
async def commands(tmp_path: Path) -> AsyncIterator[NodeCommands]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OPENCLAW_GATEWAY_TOKEN": "hunter2-token"}
    made = NodeCommands(str(tmp_path / "state"), ExecSettings(), SystemClock(), environ)
    yield made
    await made.close()


def rules(tmp_path: Path, **defaults: Any) -> None:
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / "exec-approvals.json").write_text(json.dumps({"version": 1, "defaults": defaults}))


def shell(text: str, **more: Any) -> dict[str, Any]:
    return {"command": ["/bin/sh", "-lc", text], "rawCommand": text, **more}


@pytest.mark.parametrize(
    ("words", "raw", "expected"),
    [
        (["uname", "-a"], None, "uname -a"),
        (["echo", "a b"], None, "echo 'a b'"),
        (["echo", "a b"], 'echo "a b"', "echo 'a b'"),
        (["/bin/sh", "-lc", "a && b"], "a && b", "a && b"),
        (["bash", "-c", "a | b"], None, "a | b"),
        (["/tmp/sh", "-c", "a"], None, "/tmp/sh -c a"),
    ],
)
def test_the_text_of_a_command(words: list[str], raw: str | None, expected: str) -> None:
    assert command_text(words, raw) == expected


@pytest.mark.parametrize(
    ("words", "raw"),
    [
        (["/bin/sh", "-lc", "rm -rf ."], "ls"),
        (["rm", "-rf", "."], "ls"),
        (["echo", "a b"], "echo a b"),
        (["/tmp/sh", "-c", "ls"], "ls"),
        ([], "ls"),
        (["a\0b"], None),
        (["sh", "-c", "  "], None),
        (["x" * 200_000], None),
    ],
)
def test_a_command_that_is_not_what_a_person_was_shown_is_refused(words: list[str], raw: str | None) -> None:
    with pytest.raises(CommandFailed):
        command_text(words, raw)


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        ({}, {}, "SYSTEM_RUN_DENIED: approval required"),
        ({}, {"approved": True}, None),
        ({}, {"approvalDecision": "allow-once"}, None),
        ({}, {"approvalDecision": "deny"}, "SYSTEM_RUN_DENIED: approval required"),
        ({"security": "full", "ask": "off"}, {}, None),
        ({"security": "full", "ask": "always"}, {}, "SYSTEM_RUN_DENIED: approval required"),
        ({"security": "full", "ask": "off"}, {"security": "deny"}, "SYSTEM_RUN_DISABLED"),
        ({"security": "full", "ask": "off"}, {"security": "allowlist"}, "SYSTEM_RUN_DENIED: exec is denied"),
        ({"security": "allowlist", "ask": "off"}, {}, "SYSTEM_RUN_DENIED: exec is denied"),
        ({"security": "allowlist", "ask": "off"}, {"security": "full"}, "SYSTEM_RUN_DENIED: exec is denied"),
        ({"security": "deny"}, {"approved": True}, "SYSTEM_RUN_DISABLED"),
    ],
)
async def test_rules_of_the_node_and_of_the_gateway(
    commands: NodeCommands, tmp_path: Path, own: dict[str, str], asked: dict[str, Any], expected: str | None
) -> None:
    rules(tmp_path, **own)
    wanted = shell("touch made", **asked)
    if expected is None:
        assert (await commands.carry_out("system.run", wanted)).exit_code == 0
    else:
        with pytest.raises(CommandFailed) as refused:
            await commands.carry_out("system.run", wanted)
        assert str(refused.value).startswith(expected)
    assert (tmp_path / "made").exists() == (expected is None)


async def test_what_was_asked_about_is_what_runs(commands: NodeCommands, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("echo good\n")
    wanted = shell("sh job.sh", runId="r1")
    with pytest.raises(CommandFailed, match="approval required"):
        await commands.carry_out("system.run", wanted)
    script.write_text("touch made\n")
    with pytest.raises(CommandFailed, match="is not what it was"):
        await commands.carry_out("system.run", {**wanted, "approved": True})
    assert not (tmp_path / "made").exists()


async def test_output_time_and_secrets_are_bounded(commands: NodeCommands, tmp_path: Path) -> None:
    rules(tmp_path, security="full", ask="off")
    long = await commands.carry_out("system.run", shell("head -c 3000000 /dev/zero | tr '\\0' '\"'; echo end"))
    assert long.stdout.endswith("end\n") and long.truncated
    assert len(msgspec.json.encode(long)) < 400_000
    slow = await commands.carry_out("system.run", shell("echo $$; exec sleep 600", timeoutMs=1500))
    assert (slow.timed_out, slow.success) == (True, False)
    assert not slow.stdout or not Path(f"/proc/{int(slow.stdout)}").exists()
    env = await commands.carry_out("system.run", shell("env; pwd", env={"TZ": "UTC"}))
    assert "hunter2" not in env.stdout and "TZ=UTC" in env.stdout and str(tmp_path) in env.stdout
    with pytest.raises(CommandFailed, match="may not be set"):
        await commands.carry_out("system.run", shell("env", env={"LD_PRELOAD": "x"}))
    with pytest.raises(CommandFailed, match="is not available here"):
        await commands.carry_out("system.run", shell("pwd", cwd="/nowhere/at/all"))


async def test_a_cancelled_command_is_ended(commands: NodeCommands, tmp_path: Path) -> None:
    rules(tmp_path, security="full", ask="off")
    running = asyncio.create_task(commands.carry_out("system.run", shell("echo $$ > pid; exec sleep 600")))
    async with asyncio.timeout(30):
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()):
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    # The command is killed at once; the process is gone when its end was read.
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not Path(f"/proc/{pid}").exists())


async def test_the_other_commands(commands: NodeCommands, tmp_path: Path) -> None:
    found = await commands.carry_out("system.which", {"bins": ["sh", "no-such-program", "../sh", ""]})
    assert list(found["bins"]) == ["sh"]
    before = await commands.carry_out("system.execApprovals.get", None)
    assert before["exists"] is False
    file = {"version": 1, "defaults": {"security": "deny"}, "agents": {}}
    after = await commands.carry_out("system.execApprovals.set", {"file": file})
    assert after["file"]["defaults"] == {"security": "deny"}
    with pytest.raises(CommandFailed, match="base hash required"):
        await commands.carry_out("system.execApprovals.set", {"file": file})
    for command, params, error in (
        ("system.fly", {}, "command not supported"),
        ("system.run", {"command": "ls"}, r"invalid system\.run params"),
        ("system.which", [], r"invalid system\.which params"),
    ):
        with pytest.raises(CommandFailed, match=error):
            await commands.carry_out(command, params)


@pytest.mark.parametrize("text", ["", "plain", '"' * 1000, "\x00" * 1000, "é" * 1000, "x" * 100_000])
def test_a_text_is_cut_to_the_bytes_that_json_needs(text: str) -> None:
    kept = within_bytes(text, 500)
    assert text.endswith(kept) and len(msgspec.json.encode(kept)) <= max(500, 2)
    assert kept == text or len(msgspec.json.encode(kept)) > 300


def test_an_identity_stays_the_same_and_a_damaged_one_is_not_replaced(tmp_path: Path) -> None:
    clock = SystemClock()
    first = NodeIdentity(str(tmp_path), clock)
    path = tmp_path / "identity" / "device.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert NodeIdentity(str(tmp_path), clock).id == first.id
    first.store_token({"deviceToken": "t1", "scopes": []})
    assert NodeIdentity(str(tmp_path), clock).token() == "t1"
    for damaged in ("{", "[]", '{"privateKeyPem": "nonsense"}'):
        path.write_text(damaged)
        with pytest.raises(BadIdentity):
            NodeIdentity(str(tmp_path), clock)
        assert path.read_text() == damaged
