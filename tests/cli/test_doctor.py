"""``openclaw doctor`` looks at the files themselves; no Gateway needs to run."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from .conftest import Cli


def findings(cli: Cli) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the last finding of each check."""
    done = cli("doctor", "--json")
    return done.returncode, {found["check"]: found for found in json.loads(done.stdout)["findings"]}


def test_a_fresh_machine_is_well(cli: Cli) -> None:
    code, found = findings(cli)
    assert code == 0
    assert {finding["level"] for finding in found.values()} == {"ok"}
    assert set(found) == {"config", "state", "generation", "sessions", "ledger", "damage", "port", "security"}


def test_a_wrong_value_and_an_open_folder_are_errors_with_a_way_out(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text('{ gateway: { port: "many" } }')
    state.chmod(0o755)
    code, found = findings(cli)
    assert code == 1
    assert found["config"]["level"] == "error" and "gateway.port" in found["config"]["text"]
    assert found["state"]["fix"] == f"chmod 700 {state}"


def test_a_value_without_effect_is_a_warning_by_name(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text("{ talk: { voiceId: 'v' } }")
    (state / "openclaw.json").chmod(0o600)
    code, found = findings(cli)
    assert (code, found["config"]["level"]) == (0, "warning")
    assert found["config"]["text"].startswith("talk ")
    assert "talk" in cli("doctor").stdout


def test_damaged_stores_are_named(cli: Cli, state: Path) -> None:
    folder = state / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    (folder / "sessions.json").write_text("no json")
    (state / "ledger.db").write_text("no database")
    done = cli("doctor", "--json")
    wrong = [found for found in json.loads(done.stdout)["findings"] if found["level"] == "error"]
    assert done.returncode == 1
    assert [str(folder / "sessions.json") in wrong[0]["text"], str(state / "ledger.db") in wrong[1]["text"]] == [
        True
    ] * 2


def test_sessions_and_messages_are_counted(cli: Cli, state: Path) -> None:
    folder = state / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    (folder / "sessions.json").write_text('{ "agent:main:main": { "sessionId": "s" } }')
    with sqlite3.connect(state / "ledger.db") as ledger:
        ledger.execute("CREATE TABLE messages (id)")
    code, found = findings(cli)
    assert (code, found["sessions"]["text"], found["ledger"]["text"]) == (
        0, "1 sessions are listed", "0 messages are in the ledger",
    )  # fmt: skip


def test_what_is_damaged_or_gone_is_listed_and_repaired(cli: Cli, state: Path) -> None:
    folder = state / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    (folder / "sessions.json.bak").write_text('{"agent:main:main": {"sessionId": "s", "updatedAt": 1}}')
    (folder / "s.jsonl").write_bytes(b'{"type":"session","id":"s"}\n{"type":"mess\x00ge","id":"a","parentId":null}\n')
    (state / "openclaw.json.last-good").write_text('{"gateway": {"mode": "local"}}')
    (state / "openclaw.json").unlink(missing_ok=True)
    (state / "ledger.db").write_bytes(b"no database" * 1000)
    bookmark = state / "channels" / "signal" / "default" / "last-event.bak"
    bookmark.parent.mkdir(parents=True)
    bookmark.write_text("17")

    def damage(*args: str) -> tuple[dict[str, Any], list[str]]:
        answer = json.loads(cli("doctor", "--json", *args).stdout)
        return answer, [found["text"] for found in answer["findings"] if found["check"] == "damage"]

    _, found = damage()
    for what in ("openclaw.json is gone", "sessions.json is gone", "ledger.db is damaged", "last-event is gone"):
        assert any(what in text for text in found), found
    assert any("s.jsonl: line 2 is damaged" in text for text in found)
    assert not (state / "openclaw.json").exists(), "looking changes nothing"
    answer, found = damage("--repair")
    assert len(answer["repaired"]) == 4, answer["repaired"]
    assert "agent:main:main" in (folder / "sessions.json").read_text()
    assert (bookmark.with_suffix("").read_text(), bool(list(state.glob("ledger.db.damaged-*")))) == ("17", True)
    assert not [text for text in found if " is gone" in text or "ledger.db is damaged" in text]


def test_the_security_audit_is_one_line(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text('{ "commands": { "useAccessGroups": false } }')
    (state / "openclaw.json").chmod(0o600)
    code, found = findings(cli)
    assert (code, found["security"]["level"], found["security"]["fix"]) == (1, "error", "openclaw security audit")
    assert found["security"]["text"].startswith("security audit: 1 critical")
