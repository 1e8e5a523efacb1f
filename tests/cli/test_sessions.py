"""``openclaw sessions archived`` and ``resume`` against a strict stand-in for the Gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Cli
from .fake_gateway import FakeGateway

RESUMED = {"ok": True, "key": "agent:main:main", "sessionId": "s2", "marker": "Back in an earlier session."}


@pytest.mark.parametrize(
    ("words", "params"),
    [
        ((), {"key": "main"}),
        (("agent:main:work",), {"key": "agent:main:work"}),
        (("main", "--session", "2"), {"key": "main", "index": 2}),
        (("main", "--session", "0a1b2c3d"), {"key": "main", "sessionId": "0a1b2c3d"}),
        (("main", "--session", "12345678"), {"key": "main", "sessionId": "12345678"}),
    ],
)
def test_resume_asks_for_the_session_that_was_named(
    cli: Cli, gateway: FakeGateway, words: tuple[str, ...], params: dict[str, Any]
) -> None:
    gateway.replies["sessions.resume"] = RESUMED
    done = cli("sessions", "resume", *words)
    assert gateway.params_of("sessions.resume") == [params]
    assert done.stdout == "agent:main:main: Back in an earlier session.\n"


def test_resume_prints_json_for_scripts(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.resume"] = RESUMED
    assert json.loads(cli("sessions", "resume", "--json").stdout) == RESUMED


def test_there_is_no_earlier_session_number_zero(cli: Cli, gateway: FakeGateway) -> None:
    done = cli("sessions", "resume", "--session", "0")
    assert (done.returncode, done.stderr) == (1, "--session 0: the newest earlier session is number 1\n")
    assert gateway.calls == []


def test_earlier_sessions_are_numbered_with_age_and_title(cli: Cli, gateway: FakeGateway) -> None:
    now = 1_800_000_000_000
    row = {"index": 1, "sessionId": "0a1b2c3d-4e5f", "endedAt": now - 3 * 3_600_000, "title": "gar\x1b[31mden"}
    gateway.replies["sessions.archived"] = {"ts": now, "key": "agent:main:main", "sessions": [row]}
    lines = cli("sessions", "archived").stdout.splitlines()
    assert lines[2].split()[:4] == ["1", "0a1b2c3d", "3h", "ago"]
    assert "\x1b" not in lines[2]
    assert lines[-1] == "Bring one back with: openclaw sessions resume agent:main:main --session 1"


def test_a_chat_without_earlier_sessions_says_so(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.archived"] = {"ts": 1, "key": "agent:main:main", "sessions": []}
    assert cli("sessions", "archived").stdout == "agent:main:main has no earlier sessions.\n"


def test_help_lists_the_sub_commands_and_the_options_of_the_usual_one(cli: Cli) -> None:
    shown = cli("sessions", "--help").stdout
    assert "resume" in shown and "archived" in shown and "--active" in shown
