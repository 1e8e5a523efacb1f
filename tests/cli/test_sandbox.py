"""``openclaw sandbox`` without a Gateway: what counts for a session, and recreating a sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openclaw.cli.main import main


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("OPENCLAW_CONFIG_PATH", raising=False)
    values = {
        "agents": {
            "defaults": {"sandbox": {"mode": "non-main", "docker": {"network": "bridge"}}},
            "list": [{"id": "main"}, {"id": "free", "sandbox": {"mode": "off"}}],
        }
    }
    (tmp_path / "openclaw.json").write_text(json.dumps(values))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(["sandbox", *argv])
    return code, capsys.readouterr().out


def test_explain_says_whether_a_session_is_sandboxed_and_what_keeps_it_from_running(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, "explain")
    assert code == 0 and "runs on this machine directly (mode non-main)" in text
    code, text = said(capsys, "explain", "--session", "agent:main:work")
    assert code == 1 and "It runs in a sandbox (mode non-main; backend bubblewrap, scope agent)." in text
    assert "Its runs are refused:" in text and "tools: read, search, write" in text
    code, text = said(capsys, "explain", "--session", "agent:main:work", "--json")
    shown = json.loads(text)
    assert shown["sandbox"]["sessionIsSandboxed"] and "bridge" in shown["sandbox"]["problem"]
    assert shown["sandbox"]["tools"]["offered"][:3] == ["read", "search", "write"]
    assert not (state / "sandboxes").exists()


def test_explain_knows_the_session_that_spawned_one(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = state / "agents" / "free" / "sessions"
    folder.mkdir(parents=True)
    entry = {"sessionId": "x", "spawnedBy": "agent:main:work"}
    (folder / "sessions.json").write_text(json.dumps({"agent:free:subagent:1": entry}))
    _, text = said(capsys, "explain", "--session", "agent:free:subagent:1")
    assert "it was spawned by agent:main:work" in text
    _, text = said(capsys, "explain", "--session", "agent:free:subagent:2")
    assert "runs on this machine directly" in text


def test_list_and_recreate(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "list") == (0, "No sandbox was used yet.\n")
    root = state / "sandboxes"
    for name, key in (("a-1", "agent:main"), ("b-2", "agent:main:work")):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text("x")
        record = {"scopeKey": key, "scope": "agent", "agentId": "main", "sessionKey": key, "backend": "bubblewrap",
                  "workspaceAccess": "none", "createdAtMs": 1}  # fmt: skip
        (root / f"{name}.json").write_text(json.dumps(record))
    _, text = said(capsys, "list", "--json")
    assert {one["sessionKey"] for one in json.loads(text)["containers"]} == {"agent:main", "agent:main:work"}
    assert "agent:main:work  bubblewrap  access none" in said(capsys, "list")[1]
    assert main(["sandbox", "recreate"]) != 0
    code, text = said(capsys, "recreate", "--session", "agent:main:work")
    assert code != 0 and (root / "b-2" / "file").exists()
    code, text = said(capsys, "recreate", "--session", "agent:main:work", "--force", "--json")
    assert (code, json.loads(text)["removed"]) == (0, [str(root / "b-2")])
    assert not (root / "b-2").exists() and (root / "a-1").exists()
    assert said(capsys, "recreate", "--all", "--force")[0] == 0 and not (root / "a-1").exists()
    assert said(capsys, "recreate", "--all", "--force")[1] == "There is no such sandbox.\n"
