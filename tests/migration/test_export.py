"""``openclaw export --for 2026.9``: the way back holds what both versions know, and names the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from openclaw.config.load import parse_config
from openclaw.migration.export import config_for_2026_9

from .newer_folder import make_folder
from .test_migrate import environment, hashes, migrate, outcomes


def export(state: Path, folder: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    words = [sys.executable, "-m", "openclaw", "export", "--for", "2026.9", "--to", str(folder), "--json", *flags]
    done = subprocess.run(words, env=environment(state), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout.startswith("{") else {}


def test_what_came_from_2026_9_goes_back_as_it_was(tmp_path: Path) -> None:
    theirs, ours, back = make_folder(tmp_path / "theirs"), tmp_path / "ours", tmp_path / "back"
    migrate(theirs, ours, "--yes", "--credentials", code=1)
    answer = export(ours, back, "--credentials")
    moved = outcomes(answer)
    names = [("session", "agent:main:plans"), ("workspace", "work"), ("job", "cron/jobs.json")]
    assert [moved[name] for name in names] == ["moved"] * 3
    config = json.loads((back / "openclaw.json").read_text())
    assert config["agents"]["entries"]["work"] == {"identity": {"name": "Willa"}, "tools": {"deny": ["exec"]}}
    assert "list" not in config["agents"] and config["agents"]["ownership"] == "explicit"
    assert config["session"] == {"reset": {"mode": "none"}} and config["messages"] == {"queue": {"mode": "steer"}}
    assert config["channels"]["telegram"] == {"enabled": False, "botToken": "1:their-bot", "streaming": {"mode": "off"}}
    sessions = back / "agents" / "main" / "sessions"
    entries = json.loads((sessions / "sessions.json").read_text())
    assert set(entries) == {"agent:main:main", "agent:main:plans"}
    lines = (sessions / f"{entries['agent:main:plans']['sessionId']}.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["version"] == 3 and "They counted." in "".join(lines)
    assert not (back / "memory").exists() and not (back / "ledger.db").exists()
    assert not (back / "exec-approvals.json").exists() and moved["exec rules", "main /usr/bin/uname"] == "left"


def test_secrets_stay_unless_they_are_asked_for_and_a_used_folder_is_refused(tmp_path: Path) -> None:
    theirs, ours, back = make_folder(tmp_path / "theirs"), tmp_path / "ours", tmp_path / "back"
    migrate(theirs, ours, "--yes", "--credentials", code=1)
    before = hashes(ours)
    export(ours, back)
    written = "".join(path.read_text() for path in back.rglob("*") if path.is_file())
    assert not any(secret in written for secret in ("their-gateway-token", "1:their-bot", "their-device-token"))
    export(ours, back, code=1)
    export(ours, ours / "inside", code=1)
    changed = {name for name, digest in hashes(ours).items() if before.get(name) != digest}
    assert not {name for name in changed if "journal" not in name and "sessions.json" not in name}


def test_keys_that_2026_9_refuses_are_left_out_by_name() -> None:
    text = """{
      agents: { list: [{ id: 'main', budget: { dayUsd: 3 } }] },
      session: { agentToAgent: { maxPingPongTurns: 2 } },
      messages: { queue: { mode: 'collect', debounceMs: 5 } },
      channels: { signal: { account: '+1', httpUrl: 'http://127.0.0.1:1', autoStart: false } },
      models: { providers: { p: { baseUrl: 'http://x', apiKey: 'k', models: [{ id: 'm' }] } } },
    }"""
    exported = config_for_2026_9(parse_config("openclaw.json", text, {}), credentials=True)
    assert exported.left_out == [
        "agents.list[0].budget.dayUsd",
        "session.agentToAgent.maxPingPongTurns",
        "messages.queue.debounceMs",
    ]
    assert exported.values["channels"]["signal"] == {
        "account": "+1",
        "transport": {"kind": "external-native", "url": "http://127.0.0.1:1"},
    }
    assert exported.values["models"]["providers"]["p"]["models"] == [{"id": "m"}]
    assert exported.values["messages"] == {"queue": {"mode": "collect"}}
