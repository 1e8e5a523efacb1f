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
    assert set(found) == {"config", "state", "generation", "sessions", "ledger", "port"}


def test_a_wrong_value_and_an_open_folder_are_errors_with_a_way_out(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text('{ gateway: { port: "many" } }')
    state.chmod(0o755)
    code, found = findings(cli)
    assert code == 1
    assert found["config"]["level"] == "error" and "gateway.port" in found["config"]["text"]
    assert found["state"]["fix"] == f"chmod 700 {state}"


def test_a_value_without_effect_is_a_warning_by_name(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text("{ talk: { voiceId: 'v' } }")
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
