"""Commands while no Gateway runs: what can be read is read from the state folder, the rest says what to do."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw.cli.command import Action, Group
from openclaw.cli.main import TABLE, find_command, main
from openclaw.cli.offline import READABLE
from openclaw.gateway.assemble import METHOD_FAMILIES
from openclaw.gateway.server.registry import MethodTable
from tests.support.gateway import model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer
from tests.support.tmux import Tmux, need_tmux

from .conftest import Cli

NO_PORT = {"OPENCLAW_GATEWAY_PORT": "1"}
STARTS_ONE = {"chat", "message", "agent", "node"}


@pytest.fixture
def alone(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a command on a new machine."""
    for name, value in {**NO_PORT, "OPENCLAW_STATE_DIR": str(state), "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("sessions",), "None yet."),
        (("status",), "not running"),
        (("models", "list"), "local/"),
        (("skills",), "Skills:"),
        (("agents", "list"), "main"),
        (("cron", "list"), ""),
    ],
)
def test_on_a_new_machine_what_can_be_read_is_read_and_nothing_is_written(
    alone: None, state: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], shown: str
) -> None:
    assert main([*words]) == 0
    told = capsys.readouterr()
    assert shown in told.out
    assert "No Gateway is running" in told.err
    assert main([*words, "--json"]) == 0
    json.loads(capsys.readouterr().out)
    assert os.listdir(state) == []


def test_the_log_is_read_where_the_configuration_puts_it(
    alone: None, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "openclaw.json").write_text("{ logging: { file: '~/own.log' } }")
    assert main(["logs"]) == 1
    assert str(tmp_path / "own.log") in capsys.readouterr().err
    (tmp_path / "own.log").write_text(json.dumps({"level": "error", "message": "it went wrong"}) + "\n")
    assert main(["logs"]) == 0
    assert "it went wrong" in capsys.readouterr().out


async def test_conversations_can_be_read_after_the_gateway_stopped(tmp_path: Path) -> None:
    async with ModelServer() as server:
        server.reply("Blue.")
        config = model_config(server.base_url, server.api_key)
        async with InProcessGateway(tmp_path / "state", config) as gateway:
            done = await gateway.command("message", "send", "Which colour?", "--session", "paint")
            assert done.returncode == 0, done.stderr
    gateway.env |= NO_PORT
    listed = json.loads((await gateway.command("sessions", "--json")).stdout)
    assert [row["key"] for row in listed["sessions"]] == ["agent:main:paint"]
    assert listed["path"].startswith(str(tmp_path / "state"))
    shown = await gateway.command("sessions", "show", "paint")
    assert shown.returncode == 0 and "Which colour?" in shown.stdout and "Blue." in shown.stdout
    told = await gateway.command("why", "1")
    assert told.returncode == 0 and "answered" in told.stdout
    status = json.loads((await gateway.command("status", "--json")).stdout)
    assert status["gateway"]["reachable"] is False and status["sessions"]["count"] == 1


def test_a_broken_configuration_is_told_and_left_out(cli: Cli, state: Path) -> None:
    (state / "agents").mkdir()
    (state / "openclaw.json").write_text('{ "gateway": { "port": "many" } }')
    done = cli("skills", "list", **NO_PORT)
    assert done.returncode == 0
    assert "is not valid" in done.stderr and "openclaw doctor" in done.stderr


def test_configured_channels_are_listed_although_none_is_connected(
    alone: None, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channels = {"telegram": {"botToken": "123:canary"}, "irc": {"host": "irc.example.org"}}
    (state / "openclaw.json").write_text(json.dumps({"channels": channels}))
    assert main(["channels", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == ["Telegram: default", "IRC: default"]
    assert main(["channels", "status"]) == 1
    told = capsys.readouterr().out
    assert "Telegram default: not running" in told and "IRC default: not configured" in told and "canary" not in told


def test_only_methods_that_there_are_can_be_read() -> None:
    table = MethodTable(*(family.methods for family in METHOD_FAMILIES))
    assert set(table.advertised()) >= READABLE


def _actions() -> Iterator[tuple[str, Action]]:
    for name, _, _ in TABLE:
        command = find_command(name)
        if isinstance(command, Group):
            yield from ((f"{name} {sub}", action) for sub, action in command.actions.items())
        elif command is not None:
            yield name, command


def test_every_failure_is_json_where_json_was_asked_for(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    for words, action in _actions():
        if not action.prints_json:
            continue
        assert main([*words.split(), "--json", "--no-such-option"]) == 2, words
        told = json.loads(capsys.readouterr().out)
        assert told["ok"] is False and told["error"]["code"] == "USAGE", words
        asks = any(flag.group == "gateway" for flag in action.flags)
        if not asks or words.split()[0] in STARTS_ONE:
            continue
        example = shlex.split(action.example.splitlines()[0])[1:]
        end = example.index("--") if "--" in example else len(example)
        code = main([*example[:end], "--json", *example[end:]])
        told = json.loads(capsys.readouterr().out)
        # These have an answer, and tell by their code whether what they speak of runs.
        if code and words not in ("gateway status", "channels status", "channels"):
            assert told["ok"] is False and told["error"]["message"], words


async def test_on_a_terminal_a_command_offers_to_start_the_gateway(tmp_path: Path) -> None:
    need_tmux()
    env = {**os.environ, **NO_PORT, "OPENCLAW_STATE_DIR": str(tmp_path / "state"), "HOME": str(tmp_path)}
    async with Tmux(tmp_path, env, "system", "presence") as terminal:
        await terminal.shows("Start it now? [Y/n]")
        await terminal.type("n")
        await terminal.press("Enter")
        await terminal.shows("openclaw gateway start")
