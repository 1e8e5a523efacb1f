"""Commands that need a person's yes, and the terms on which commands run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.clock import SystemClock
from openclaw.questions.desk import UnknownQuestion
from openclaw.storage.files.disk import FileDocuments
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.exec.approvals import (
    ApprovalRequest,
    ApprovalRules,
    BadRules,
    approval_question,
)
from openclaw.tools.exec.settings import (
    CommandPolicy,
    ExecArguments,
    ExecOverrides,
    ExecSettings,
    HostRules,
    command_policy,
)
from openclaw.tools.exec.tool import ExecTool
from openclaw.tools.process import ProcessRegistry
from tests.support.questions import begin, memory_desk

ECHO = os.path.realpath(shutil.which("echo") or "")


class Asked:
    """An exec tool whose questions a test answers."""

    def __init__(self, tmp_path: Path, processes: ProcessRegistry, context: ToolContext) -> None:
        self.desk = memory_desk()
        self.rules = ApprovalRules(FileDocuments(tmp_path / "state"), SystemClock())
        self.file = tmp_path / "state" / "exec-approvals.json"
        self.processes = processes
        self.context = msgspec.structs.replace(context, run_id="r1", call_id="c1")

    async def begin(self, command: str, wish: ExecOverrides) -> Any:
        return await begin(self.desk, self.run(command, wish))

    async def run(
        self, command: str, wish: ExecOverrides, settings: ExecSettings | None = None, **arguments: Any
    ) -> Any:
        settings = settings or ExecSettings()
        tool = ExecTool(settings, self.processes, self.rules, self.desk)

        async def wished() -> ExecOverrides:
            return wish

        context = msgspec.structs.replace(self.context, exec_overrides=wished)
        return await tool.run({"command": command, **arguments}, context)

    def write_rules(self, **file: Any) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(json.dumps({"version": 1, **file}))


@pytest.fixture
async def asked(tmp_path: Path, processes: ProcessRegistry, context: ToolContext) -> AsyncIterator[Asked]:
    made = Asked(tmp_path, processes, context)
    yield made
    await made.desk.close()


ALWAYS = ExecOverrides(ask="always")
CAREFUL = ExecOverrides(host="gateway")


async def test_a_command_that_needs_a_yes_is_not_run_before_it(asked: Asked) -> None:
    call = await asked.begin("touch ran; echo one; echo two >&2", ALWAYS)
    assert not (asked.context.workspace / "ran").exists()
    await asked.desk.answer(call.question.id, "allow-once")
    result = await asyncio.wait_for(call.task, 60)
    assert result.content[0].text == "one\ntwo"
    assert result.details["status"] == "completed"
    assert (asked.context.workspace / "ran").exists()


async def test_a_failure_after_the_answer_is_the_result_of_the_call(asked: Asked) -> None:
    call = await asked.begin("echo one; exit 3", ALWAYS)
    await asked.desk.answer(call.question.id[:8], "allow-once")
    with pytest.raises(ToolError, match="one\n\nCommand exited with code 3"):
        await asyncio.wait_for(call.task, 60)


async def test_a_no_is_the_result_and_nothing_runs(asked: Asked) -> None:
    call = await asked.begin("touch ran", ALWAYS)
    await asked.desk.answer(call.question.id, "deny")
    result = await asyncio.wait_for(call.task, 60)
    assert result.content[0].text == f"Exec denied (gateway id={call.question.id}, user-denied): touch ran"
    assert (result.failed, result.details["status"]) == (True, "denied")
    assert not (asked.context.workspace / "ran").exists()


async def test_silence_is_a_no(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval_question, "__kwdefaults__", {**approval_question.__kwdefaults__, "timeout_ms": 1})
    result = await asked.run("touch ran", ALWAYS)
    assert "approval-timeout" in result.content[0].text
    assert result.details["status"] == "expired"
    assert not (asked.context.workspace / "ran").exists()
    asked.write_rules(defaults={"askFallback": "full"})
    await asked.run("touch ran", ALWAYS)
    assert (asked.context.workspace / "ran").exists()


async def test_allow_always_is_remembered_for_the_programs_of_the_command(asked: Asked) -> None:
    call = await asked.begin("echo one", CAREFUL)
    await asked.desk.answer(call.question.id, "allow-always")
    assert (await asyncio.wait_for(call.task, 60)).content[0].text == "one"
    again = await asked.run("echo two", CAREFUL)
    assert again.content[0].text == "two"
    other = await asked.begin("touch ran", CAREFUL)
    await asked.desk.withdraw([other.question])
    assert (await other.task).details["status"] == "withdrawn"
    stored = json.loads(asked.file.read_text())
    assert [entry["pattern"] for entry in stored["agents"]["main"]["allowlist"]] == [ECHO]
    assert asked.file.stat().st_mode & 0o777 == 0o600


async def test_a_resumed_call_uses_the_answer_once_and_for_the_same_command_only(asked: Asked) -> None:
    call = await asked.begin("touch ran", ALWAYS)
    call.task.cancel()
    await asked.desk.answer(call.question.id, "allow-once")
    asked.context = msgspec.structs.replace(asked.context, resumed=True)
    with pytest.raises(ToolError, match="it is not what it was when a person was asked"):
        await asked.run("touch ran other", ALWAYS)
    await asked.run("touch ran", ALWAYS)
    (asked.context.workspace / "ran").unlink()
    with pytest.raises(ToolError, match="has begun before"):
        await asked.run("touch ran", ALWAYS)
    assert not (asked.context.workspace / "ran").exists()


async def test_without_anyone_to_ask_the_command_is_refused(processes: ProcessRegistry, context: ToolContext) -> None:
    tool = ExecTool(ExecSettings(host="gateway", ask="always"), processes)
    with pytest.raises(ToolError, match="nobody can be asked"):
        await tool.run({"command": "echo x"}, context)


async def test_a_damaged_rules_file_forbids_commands_and_says_where_it_is(asked: Asked) -> None:
    asked.write_rules(defaults={"security": "sometimes"})
    with pytest.raises(ToolError, match="is not valid"):
        await asked.run("touch ran", ExecOverrides())
    asked.file.write_text("{")
    with pytest.raises(ToolError, match=r"exec-approvals\.json is invalid JSON"):
        await asked.run("touch ran", ExecOverrides())


async def test_the_rules_file_is_replaced_only_by_who_has_read_it(asked: Asked) -> None:
    first = await asked.rules.replace({"version": 1, "defaults": {"ask": "always"}}, None)
    assert first.view()["file"]["defaults"] == {"ask": "always"}
    with pytest.raises(BadRules, match="base hash required"):
        await asked.rules.replace({"version": 1}, None)
    with pytest.raises(BadRules, match="changed since last load"):
        await asked.rules.replace({"version": 1}, "0" * 64)
    second = await asked.rules.replace({"version": 1, "socket": {"path": "/tmp/s", "token": "secret"}}, first.hash)
    assert "secret" not in json.dumps(second.view())
    assert "secret" in asked.file.read_text()


async def test_an_approval_is_found_by_its_beginning_when_that_is_enough() -> None:
    desk = memory_desk()
    for name in ("abcd-1", "abcd-2"):
        await desk.ask(approval_question(ApprovalRequest(command="x"), id=name))
    with pytest.raises(ValueError, match="already used"):
        await desk.ask(approval_question(ApprovalRequest(command="x"), id="abcd-1"))
    with pytest.raises(UnknownQuestion, match="ambiguous"):
        await desk.find("abcd")
    assert (await desk.find("abcd-2")).id == "abcd-2"
    with pytest.raises(UnknownQuestion, match="unknown question id"):
        await desk.find("abc")
    await desk.close()


USUAL = CommandPolicy(host="sandbox", security="full", ask="on-miss")
ASKING = CommandPolicy(host="gateway", security="allowlist", ask="on-miss")
ON_NODE = CommandPolicy(host="node", security="full", ask="on-miss")
MAY = {"elevated_allowed": True}
FULL = CommandPolicy(host="gateway", security="full", ask="off")


@pytest.mark.parametrize(
    ("settings", "wish", "rules", "arguments", "expected"),
    [
        ({}, {}, {}, {}, USUAL),
        ({"host": "gateway"}, {}, {}, {}, ASKING),
        ({"host": "gateway"}, {"security": "full", "ask": "off"}, {}, {}, FULL),
        ({"host": "gateway"}, {"security": "full", "ask": "off"}, {"security": "deny"}, {}, "exec is denied"),
        ({"host": "gateway"}, {"ask": "off"}, {"ask": "always"}, {}, msgspec.structs.replace(ASKING, ask="always")),
        ({}, {"security": "deny"}, {}, {}, "exec is denied"),
        ({}, {"host": "node", "node": "attic"}, {}, {}, ON_NODE),
        # The rules file of this machine says nothing about other machines.
        ({}, {"host": "node"}, {"security": "deny"}, {}, ON_NODE),
        ({"host": "node", "security": "deny"}, {}, {}, {}, "exec is denied"),
        ({}, {"host": "gateway"}, {}, {"host": "sandbox"}, "host sandbox is not allowed"),
        ({}, {}, {}, {"security": "allowlist"}, CommandPolicy(host="sandbox", security="allowlist", ask="on-miss")),
        # Elevated: needs permission, goes to the host, and only "full" does without asking.
        ({}, {"elevated": "full"}, {}, {}, USUAL),
        ({"security": "deny"}, {"elevated": "full", **MAY}, {"ask": "always"}, {}, FULL),
        ({}, {"elevated": "on", **MAY}, {}, {}, ASKING),
        ({}, {"elevated": "ask", **MAY}, {}, {}, ASKING),
        ({}, {"elevated": "off", **MAY}, {}, {}, USUAL),
        ({}, {"elevated": "full", **MAY}, {}, {"elevated": False}, USUAL),
        ({}, MAY, {}, {"elevated": True}, ASKING),
        ({}, {}, {}, {"elevated": True}, "elevated is not available"),
        ({}, {"elevated": "off", **MAY}, {}, {"elevated": True}, "elevated is not available"),
        ({}, {"security": "deny", "elevated": "full", **MAY}, {}, {}, "exec is denied"),
    ],
)  # fmt: skip
def test_the_terms_of_a_command(
    settings: dict[str, Any], wish: dict[str, Any], rules: dict[str, Any], arguments: dict[str, Any], expected: Any
) -> None:
    def policy() -> CommandPolicy:
        requested = ExecArguments(command="ls", **arguments)
        return command_policy(ExecSettings(**settings), ExecOverrides(**wish), HostRules(**rules), requested=requested)

    if isinstance(expected, str):
        with pytest.raises(ToolError, match=expected):
            policy()
    else:
        assert policy() == expected
