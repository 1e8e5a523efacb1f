"""``openclaw doctor`` looks at the files themselves; no Gateway needs to run."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.cli import doctor
from openclaw.findings import Finding
from openclaw.storage.postgres.database import PostgresDatabase
from openclaw.storage.postgres.documents import PostgresDocuments
from tests.support.postgres import storage_for, stored_rows
from tests.support.tmux import Tmux, need_tmux

from .conftest import Cli

NO_PORT = {"OPENCLAW_GATEWAY_PORT": "1"}


def findings(cli: Cli) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the last finding of each check."""
    done = cli("doctor", "--json")
    return done.returncode, {found["check"]: found for found in json.loads(done.stdout)["findings"]}


def test_a_fresh_machine_is_well(cli: Cli) -> None:
    code, found = findings(cli)
    assert code == 0
    assert found.pop("model")["fix"].startswith("put a key such as ")
    assert {finding["level"] for finding in found.values()} == {"ok"}
    assert {"config", "state", "disk", "generation", "sessions", "ledger", "damage", "port", "security"} <= set(found)


def test_a_wrong_value_and_an_open_folder_are_errors_with_a_way_out(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text('{ gateway: { port: "many" } }')
    state.chmod(0o755)
    code, found = findings(cli)
    assert code == 1
    assert found["config"]["level"] == "error" and "gateway.port" in found["config"]["text"]
    assert found["state"]["fix"] == f"chmod 700 {state}"


def test_a_file_that_is_no_json5_does_not_stop_the_other_checks(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text('{ gateway: { port: "x" ')
    code, found = findings(cli)
    assert code == 1 and "line 1" in found["config"]["text"]
    assert found["port"]["level"] == "warning" and "not checked" in found["port"]["text"]
    assert {"state", "disk", "ledger", "model", "security"} <= set(found)


def test_what_is_closed_to_us_is_a_finding_and_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def closed(_: doctor.Installation) -> Iterator[Finding]:
        raise PermissionError(errno.EACCES, "Permission denied", "/closed")
        yield

    monkeypatch.setattr(doctor, "CHECKS", (closed,))
    monkeypatch.setenv("OPENCLAW_CONFIG_PATH", str(tmp_path / "none"))
    (found,) = doctor._examine(tmp_path, False)  # pyright: ignore[reportPrivateUsage]
    assert (found.code, found.severity) == ("closed", "critical") and "/closed: Permission denied" in found.text
    assert found.fix == f"chmod 700 {tmp_path}"


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
        0, "1 session is listed", "0 messages are in the ledger",
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
    answer, found = damage("--fix")
    closed, *rest = sorted(answer["repaired"], key=lambda sentence: "closed to other users" not in sentence)
    assert "closed to other users" in closed and len(rest) == 4, answer["repaired"]
    assert "agent:main:main" in (folder / "sessions.json").read_text()
    assert (bookmark.with_suffix("").read_text(), bool(list(state.glob("ledger.db.damaged-*")))) == ("17", True)
    assert not [text for text in found if " is gone" in text or "ledger.db is damaged" in text]


def test_what_can_be_mended_is_mended_and_every_finding_says_what_to_do(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text('{ "gateway": { "port": "many" } }')
    (state / "openclaw.json.last-good").write_text('{ "gateway": { "port": 18999 } }')
    (state / "notes.json").write_text("{}")
    for name in ("openclaw.json.last-good", "notes.json"):
        (state / name).chmod(0o644)
    leftover, young = state / ".jobs.json.1.tmp", state / "model.part"
    for path in (leftover, young):
        path.write_text("")
    os.utime(leftover, (1, 1))
    (state / "gateway.lock").write_text(json.dumps({"pid": 2**22 + 5, "port": 1}))
    answer = json.loads(cli("doctor", "--json", **NO_PORT).stdout)
    wrong = [found for found in answer["findings"] if found["level"] != "ok"]
    assert {found["check"] for found in wrong} >= {"config", "state", "leftovers"}
    assert all(found["fix"] for found in wrong)
    assert any("ended without saying goodbye" in found["text"] for found in answer["findings"])
    shown = cli("doctor", **NO_PORT)
    assert shown.returncode == 1 and "`openclaw doctor --fix` repairs 3 of them" in shown.stdout
    answer = json.loads(cli("doctor", "--fix", "--yes", "--json", **NO_PORT).stdout)
    assert not {found["check"] for found in answer["findings"] if found["level"] == "error"}
    assert "18999" in (state / "openclaw.json").read_text()
    assert "many" in next(state.glob("openclaw.json.broken-*")).read_text()
    assert not leftover.exists() and young.exists()
    assert (state / "notes.json").stat().st_mode & 0o077 == 0


def test_a_missing_key_and_a_taken_port_are_told(cli: Cli, state: Path) -> None:
    model = {"agents": {"defaults": {"model": "anthropic/claude-sonnet-4-5"}}}
    (state / "openclaw.json").write_text(json.dumps(model))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = cli("doctor", "--json", OPENCLAW_GATEWAY_PORT=str(taken.getsockname()[1]))
    found = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["model"]["level"] == found["port"]["level"] == "error"
    assert "no key for anthropic" in found["model"]["text"] and "config set gateway.port" in found["port"]["fix"]


async def test_on_a_terminal_a_repair_is_asked_about_first() -> None:
    need_tmux()
    # A long path would wrap the lines that are looked for.
    with tempfile.TemporaryDirectory(prefix="d") as folder:
        state = Path(folder) / "state"
        state.mkdir(mode=0o755)
        state.chmod(0o755)
        env = {**os.environ, **NO_PORT, "OPENCLAW_STATE_DIR": str(state), "HOME": folder}
        async with Tmux(Path(folder), env, "doctor", "--fix") as terminal:
            await terminal.shows("can be read by other users", "Repair these 1? [Y/n]")
            await terminal.press("Enter")
            await terminal.shows("repaired", "closed to other users")
        assert state.stat().st_mode & 0o077 == 0


def test_the_security_audit_is_one_line(cli: Cli, state: Path) -> None:
    (state / "openclaw.json").write_text('{ "commands": { "useAccessGroups": false } }')
    (state / "openclaw.json").chmod(0o600)
    code, found = findings(cli)
    assert (code, found["security"]["level"], found["security"]["fix"]) == (1, "error", "openclaw security audit")
    assert found["security"]["text"].startswith("security audit: 1 critical")
    (state / "openclaw.json").write_text("{}")
    _, found = findings(cli)
    assert found["security"]["level"] == "ok"
    assert found["security"]["text"].endswith("1 info; `openclaw security audit` lists them")


def kept_in_database(state: Path, documents: dict[str, bytes]) -> dict[str, str]:
    """Writes the configuration of a Gateway on PostgreSQL, makes its tables, and puts documents there."""

    async def put() -> None:
        database = await PostgresDatabase.open(storage["url"], schema=storage["schema"])
        for name, data in documents.items():
            await PostgresDocuments(database).put(name, data, None)
        await database.close()

    storage = storage_for(state)
    (state / "openclaw.json").write_text(json.dumps({"storage": storage}))
    (state / "openclaw.json").chmod(0o600)
    asyncio.run(put())
    return storage


def test_what_is_in_a_database_is_looked_at_there(cli: Cli, state: Path) -> None:
    paired = {"credentials/signal-allowFrom.json": b'{"version": 1, "allowFrom": ["+1", "+2"]}'}
    device = {"devices/paired.json": b'{"d1": {"deviceId": "d1", "role": "operator"}}', "devices/pending.json": b"{"}
    rules = {"exec-approvals.json": b'{"version": 1, "defaults": {"allowlist": [{"pattern": "*"}]}, "agents": {}}'}
    jobs = [{"id": "j", "schedule": {"kind": "every", "everyMs": 60_000}}, {"id": "k", "enabled": False}]
    job = json.dumps({"version": 1, "jobs": jobs}).encode()
    kept_in_database(state, {**paired, **device, **rules, "cron/jobs.json": job})
    (state / "credentials").mkdir(mode=0o700)
    (state / "exec-approvals.json").write_text("what files say does not count")
    (state / "exec-approvals.json").chmod(0o600)
    done = cli("doctor", "--json")
    told = [(one["check"], one["level"], one["text"]) for one in json.loads(done.stdout)["findings"]]
    assert ("pairing", "ok", "2 people were let in by pairing, 0 wait; 1 device is paired, 0 wait") in told
    assert ("rules", "ok", "1 rule allows commands") in told
    assert ("ledger", "ok", "0 messages are in the ledger, 0 unfinished") in told
    assert ("sessions", "ok", "0 sessions are listed") in told and any(check == "storage" for check, _, _ in told)
    (damaged,) = [text for check, level, text in told if (check, level) == ("pairing", "error")]
    assert "/devices/pending.json cannot be read" in damaged
    assert done.returncode == 1 and not done.stderr
    audited = json.loads(cli("security", "audit", "--json").stdout)
    (wide,) = [one for one in audited["findings"] if one["checkId"] == "tools.exec.allowlist_wide"]
    assert "postgresql://" in wide["detail"] and "#test_" in wide["detail"]


def test_a_database_that_cannot_be_reached_is_said_so(cli: Cli, state: Path, tmp_path: Path) -> None:
    url = f"postgresql://me:hush@/db?host={tmp_path}/nowhere"
    (state / "openclaw.json").write_text(json.dumps({"storage": {"url": url}}))
    (state / "openclaw.json").chmod(0o600)
    code, found = findings(cli)
    assert (
        code == 1
        and "cannot be reached" in found["storage"]["text"]
        and "start the database" in found["storage"]["fix"]
    )
    assert not {"sessions", "ledger", "rules", "cron", "pairing"} & set(found)
    shown = cli("security", "audit").stdout
    assert "storage.unreachable" in shown and "hush" not in shown + cli("doctor").stdout


def test_looking_makes_no_tables(cli: Cli, state: Path) -> None:
    storage = storage_for(state)
    (state / "openclaw.json").write_text(json.dumps({"storage": storage}))
    (state / "openclaw.json").chmod(0o600)
    code, found = findings(cli)
    assert code == 0 and "makes its tables" in found["storage"]["text"]
    made = stored_rows(storage, "SELECT 1 FROM pg_namespace WHERE nspname = $1", storage["schema"])
    assert not made
