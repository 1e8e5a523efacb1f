"""``sessions archived`` and ``resume`` against a strict stand-in for the Gateway; ``import --from`` without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.storage.files.newer_state import add_session, conversation, database

from .conftest import Cli
from .fake_gateway import FakeGateway, Refusal

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
    row |= {"reason": "daily", "lastMessagePreview": ""}
    listed = {"ts": now, "key": "agent:main:main", "sessionId": "s2", "sessions": [row]}
    gateway.replies["sessions.archived"] = listed
    lines = cli("sessions", "archived").stdout.splitlines()
    assert lines[2].split()[:4] == ["1", "0a1b2c3d", "3h", "ago"]
    assert "\x1b" not in lines[2]
    assert lines[-1] == "Bring one back with: openclaw sessions resume agent:main:main --session 1"


def test_a_chat_without_earlier_sessions_says_so(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["sessions.archived"] = {"ts": 1, "key": "agent:main:main", "sessionId": "s1", "sessions": []}
    assert cli("sessions", "archived").stdout == "agent:main:main has no earlier sessions.\n"


def test_a_first_search_reads_on_until_everything_is_indexed(cli: Cli, gateway: FakeGateway) -> None:
    answers = [
        {"ts": 1, "results": [], "complete": False, "indexed": {"done": 1, "total": 2}},
        {"ts": 2, "results": [], "complete": True, "indexed": {"done": 2, "total": 2}},
    ]
    gateway.replies["sessions.search"] = lambda params: answers.pop(0)
    assert cli("sessions", "search", "shed").stdout == "Nothing found.\n"
    assert [call["readBytes"] for call in gateway.params_of("sessions.search")] == [8 << 20] * 2


def test_archive_goes_on_until_nothing_is_left_and_adds_up(cli: Cli, gateway: FakeGateway) -> None:
    sizes = {"bytesBefore": 100, "bytesAfter": 10, "problems": ["a: no"]}
    answers = [{"compressed": 20, "left": 21, **sizes}, {"compressed": 20, "left": 1, **sizes}]
    answers.append({"compressed": 0, "left": 1, **sizes})
    gateway.replies["sessions.archive"] = lambda params: answers.pop(0)
    done = cli("sessions", "archive", "--json")
    total = {"ok": False, "compressed": 40, "bytesBefore": 300, "bytesAfter": 30, "left": 1, "problems": ["a: no"]}
    assert (done.returncode, json.loads(done.stdout)) == (1, total)


def test_help_lists_the_sub_commands_and_the_options_of_the_usual_one(cli: Cli) -> None:
    shown = cli("sessions", "--help").stdout
    assert "resume" in shown and "archived" in shown and "--active" in shown


def test_a_newer_folder_is_refused_at_the_start_and_read_into_another_one(
    cli: Cli, state: Path, tmp_path: Path
) -> None:
    newer = tmp_path / "newer"
    base = database(newer, version="2026.9.5", schema=21)
    add_session(base, "agent:main:main", "s1", conversation("s1", "q", "a"))
    started = cli("gateway", "run", OPENCLAW_STATE_DIR=str(newer))
    assert started.returncode == 1
    assert "2026.9.5" in started.stderr and "openclaw sessions import --from" in started.stderr
    assert not (newer / "openclaw.json").exists(), "something was written to the folder"
    assert json.loads(cli("doctor", "--json", OPENCLAW_STATE_DIR=str(newer)).stdout)["ok"] is False
    tried = cli("sessions", "import", "--from", str(newer), "--dry-run")
    assert (tried.returncode, "1 imported" in tried.stdout) == (0, True)
    assert not (state / "agents").exists()
    done = cli("sessions", "import", "--from", str(newer))
    assert (done.returncode, "imported  agent:main:main  3 events" in done.stdout) == (0, True)
    assert (state / "agents" / "main" / "sessions" / "s1.jsonl").is_file()
    again = json.loads(cli("sessions", "import", "--from", str(newer), "--json").stdout)
    assert (again["totals"]["present"], again["totals"]["imported"]) == (1, 0)
    assert len(again["sessions"][0]["sha256"]) == 64


def test_import_needs_a_file_with_a_key_or_a_folder(cli: Cli, tmp_path: Path) -> None:
    assert cli("sessions", "import").returncode == 2
    assert cli("sessions", "import", "x.jsonl", "--from", str(tmp_path)).returncode == 1
    refused = cli("sessions", "import", "--from", str(tmp_path / "nowhere"))
    assert (refused.returncode, "is not a state folder" in refused.stderr) == (1, True)


@pytest.fixture
def work(gateway: FakeGateway) -> FakeGateway:
    """A Gateway with the session ``agent:main:work``."""

    def resolve(params: dict[str, Any]) -> dict[str, Any]:
        if params == {"key": "work"}:
            return {"ok": True, "key": "agent:main:work"}
        raise Refusal("No session found", details={"code": "SESSION_NOT_FOUND"})

    row = {"key": "agent:main:work", "sessionId": "s1", "label": "Garden", "model": "mock-1", "thinkingLevel": "low"}
    said = [
        {"role": "user", "content": [{"type": "text", "text": "plant\x1b[31m what?"}]},
        {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "too busy"},
        {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "overloaded"},
    ]
    gateway.replies |= {
        "sessions.resolve": resolve,
        "sessions.list": {"ts": 1, "sessions": [{"key": "agent:main:workshop"}, row]},
        "chat.view": {"messages": said, "run": None, "waiting": [{"text": "and then?"}]},
        "sessions.patch": {"ok": True, "key": "agent:main:work"},
        "sessions.delete": {"ok": True, "key": "agent:main:work", "deleted": True, "archived": ["s1.jsonl.deleted"]},
    }
    return gateway


def test_a_session_is_shown_with_its_facts_and_last_messages(cli: Cli, work: FakeGateway) -> None:
    lines = cli("sessions", "show", "work").stdout.splitlines()
    assert lines[0] == "Session agent:main:work"
    facts = dict(line.split(maxsplit=1) for line in lines if line.startswith("  ") and "failed" not in line)
    assert (facts["id"], facts["label"], facts["settings"]) == ("s1", "Garden", "think:low")
    assert facts["now"] == "idle, 1 waiting"
    assert lines[-2:] == ["› plant[31m what?", "  failed: overloaded"]
    called = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "dig"}
    public = [
        {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, called]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [{"type": "text", "text": "Dig."}]},
    ]
    work.replies["chat.history"] = {"messages": public}
    shown = json.loads(cli("sessions", "show", "work", "--json").stdout)
    assert (shown["label"], shown["messages"]) == ("Garden", public)
    shown = json.loads(cli("sessions", "show", "work", "--json", "--last", "1").stdout)
    assert shown["messages"] == public[2:]
    assert {params["format"] for params in work.params_of("chat.history")} == {"messages"}


def test_a_session_gets_a_label(cli: Cli, work: FakeGateway) -> None:
    assert cli("sessions", "rename", "work", "Shed").stdout == "agent:main:work is now called Shed\n"
    assert work.params_of("sessions.patch") == [{"key": "agent:main:work", "label": "Shed"}]


def test_a_session_is_deleted_only_when_that_was_said(cli: Cli, work: FakeGateway) -> None:
    done = cli("sessions", "delete", "work")
    assert (done.returncode, work.params_of("sessions.delete")) == (2, [])
    assert "--yes" in done.stderr
    done = cli("sessions", "delete", "work", "--yes")
    assert done.stdout == "agent:main:work deleted; its transcript is kept as s1.jsonl.deleted\n"
    assert work.params_of("sessions.delete") == [{"key": "agent:main:work"}]


@pytest.mark.parametrize("words", [("show", "nope"), ("rename", "nope", "x"), ("delete", "nope", "--yes")])
def test_a_session_that_is_not_there_is_said(cli: Cli, work: FakeGateway, words: tuple[str, ...]) -> None:
    done = cli("sessions", *words)
    assert (done.returncode, done.stderr) == (1, "No session found: nope. `openclaw sessions` lists them.\n")
