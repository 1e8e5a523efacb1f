"""``openclaw migrate``: everything of a folder of 2026.9 comes, once, and what cannot come is named."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from openclaw.clock import SystemClock
from openclaw.config.load import read_config
from openclaw.migration.continuity import Difference, check_continuity, their_request
from tests.storage.files.newer_state import conversation

from .newer_folder import compacted, make_folder

SECRETS = ("their-gateway-token", "1:their-bot", "their-device-token", "their-socket", "api_key")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "theirs")


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return tmp_path / "ours"


def environment(state: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(state.parent), "OPENCLAW_STATE_DIR": str(state)}


def command(theirs: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "openclaw", "migrate", "--from", str(theirs), "--json", *flags]


def migrate(theirs: Path, ours: Path, *flags: str, code: int = 0) -> dict[str, Any]:
    before = hashes(theirs)
    done = subprocess.run(
        command(theirs, *flags), env=environment(ours), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert hashes(theirs) == before, "the other folder was written to"
    return json.loads(done.stdout)


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def outcomes(answer: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(moved["kind"], moved["name"]): moved["outcome"] for moved in answer["moved"]}


def test_a_dry_run_names_everything_and_writes_nothing(theirs: Path, ours: Path) -> None:
    for flags in ((), ("--dry-run",)):
        answer = migrate(theirs, ours, *flags, code=1)
        assert answer["dryRun"] is True and not ours.exists()
        assert outcomes(answer)["session", "agent:main:plans"] == "moved"
        assert outcomes(answer)["job", "narrow"] == "failed"


def test_everything_comes_and_what_cannot_come_is_named(theirs: Path, ours: Path) -> None:
    answer = migrate(theirs, ours, "--yes", "--credentials", code=1)
    assert outcomes(answer) == {
        ("configuration", "openclaw.json"): "moved",
        ("workspace", "main"): "moved",
        ("workspace", "work"): "moved",
        ("job", "morning"): "moved",
        ("job", "narrow"): "failed",
        ("job", "heartbeat-main"): "left",
        ("people", "telegram 4711"): "moved",
        ("people", "telegram 4712"): "left",
        ("device", "Ana's laptop"): "moved",
        ("exec rules", "main"): "moved",
        ("credentials", "main mock:default"): "moved",
        ("credentials", "work mock:default"): "moved",
        ("session", "agent:main:main"): "moved",
        ("session", "agent:main:plans"): "moved",
        ("session", "agent:work:main"): "moved",
    }
    assert answer["differences"] == []
    failed = next(moved for moved in answer["moved"] if moved["outcome"] == "failed")
    assert "some tools only" in failed["detail"]
    session = next(moved for moved in answer["moved"] if moved["name"] == "agent:main:main")
    assert session["count"] == 5 and len(session["sha256"]) == 64
    config = read_config(str(ours / "openclaw.json"), {}).config
    assert [agent.id for agent in config.agents.list] == ["main", "work"] and config.agents.list[1].tools.deny == [
        "exec"
    ]
    assert config.session.reset and config.session.reset.mode == "none" and config.messages.queue.mode == "steer"
    assert (ours / "workspace-work" / "AGENTS.md").read_text() == "# workspace-work\n"
    (job,) = json.loads((ours / "cron/jobs.json").read_text())["jobs"]
    assert job["payload"] == {"kind": "agentTurn", "message": "Good morning"} and job["id"] == "job-1"
    assert json.loads((ours / "credentials/telegram-allowFrom.json").read_text())["allowFrom"] == ["4711"]
    (device,) = json.loads((ours / "devices/paired.json").read_text()).values()
    assert device["tokens"]["operator"]["token"] == "their-device-token"
    rules = json.loads((ours / "exec-approvals.json").read_text())
    assert rules["agents"]["main"]["allowlist"][0]["pattern"] == "/usr/bin/uname" and "socket" not in rules


def test_secrets_come_only_when_they_are_asked_for(theirs: Path, ours: Path) -> None:
    answer = migrate(theirs, ours, "--yes", code=1)
    text = "".join(path.read_text("utf-8", "replace") for path in ours.rglob("*") if path.is_file())
    assert [secret for secret in SECRETS if secret in text or secret in json.dumps(answer)] == []
    assert outcomes(answer)["credentials", "gateway.auth.token"] == "left"
    assert outcomes(answer)["device", "Ana's laptop"] == "left"
    assert migrate(theirs, ours, "--yes", "--credentials", code=1)
    assert "1:their-bot" in (ours / "openclaw.json").read_text()


def test_repeating_it_changes_nothing_and_what_is_here_stays(theirs: Path, ours: Path) -> None:
    ours.mkdir(mode=0o700)
    (ours / "openclaw.json").write_text('{ gateway: { port: 20111, auth: { token: "mine" } } }')
    (ours / "workspace").mkdir()
    (ours / "workspace" / "AGENTS.md").write_text("# mine\n")
    answer = migrate(theirs, ours, "--yes", "--credentials", code=1)
    workspace = next(moved for moved in answer["moved"] if moved["kind"] == "workspace")
    assert "AGENTS.md" in workspace["detail"] and (ours / "workspace" / "AGENTS.md").read_text() == "# mine\n"
    config = read_config(str(ours / "openclaw.json"), {}).config
    assert (config.gateway.port, config.gateway.auth.token) == (20111, "mine")
    before = settled(ours)
    again = outcomes(migrate(theirs, ours, "--yes", "--credentials", code=1))
    assert "moved" not in again.values() and settled(ours) == before


def settled(state: Path) -> dict[str, Any]:
    """What the folder holds, without files that only say how it came to be written."""
    files: dict[str, Any] = hashes(state)
    for name in [name for name in files if "journal" in name or name.endswith((".lock", ".bak"))]:
        del files[name]
    for name in [name for name in files if name.endswith("sessions.json")]:
        files[name] = json.loads((state / name).read_text())
    return files


def test_it_may_be_killed_at_any_moment_and_run_again(theirs: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    began = time.monotonic()
    migrate(theirs, whole, "--yes", "--credentials", code=1)
    span, chance, before = time.monotonic() - began, random.Random(29), hashes(theirs)
    folder = tmp_path / "killed"
    for _ in range(20):
        process = subprocess.Popen(
            command(theirs, "--yes", "--credentials"),
            env=environment(folder),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(chance.uniform(0.2, 1) * span)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert hashes(theirs) == before
        if chance.random() < 0.3:
            folder = folder.with_name(f"{folder.name}-")  # Sometimes the first run is the one that is killed.
    answer = migrate(theirs, folder, "--yes", "--credentials", code=1)
    assert answer["differences"] == []
    ours, reference = settled(folder), settled(whole)
    assert ours.pop("openclaw.json") and reference.pop("openclaw.json")
    assert ours == reference and not list(folder.rglob("*.tmp"))


def test_the_folder_in_use_and_a_foreign_folder_are_refused(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source, state, words in (
        (theirs, theirs, "is the state folder in use"),
        (tmp_path / "empty", tmp_path / "ours", "is not a state folder"),
    ):
        done = subprocess.run(
            command(source, "--yes"), env=environment(state), capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 1 and words in done.stdout + done.stderr


async def differences(theirs: Path, ours: Path) -> list[Difference]:
    return [found async for found in check_continuity(theirs, ours, SystemClock()) if found is not None]


async def test_a_session_that_would_go_on_otherwise_is_named(theirs: Path, ours: Path) -> None:
    migrate(theirs, ours, "--yes", code=1)
    assert await differences(theirs, ours) == []
    file = ours / "agents/main/sessions/s-plans.jsonl"
    file.write_text(file.read_text().replace("They counted.", "They slept."))
    (ours / "agents/work/sessions/s-work.jsonl").unlink()
    found = {difference.key: difference.detail for difference in await differences(theirs, ours)}
    assert "They counted." in found["agent:main:plans"] and "They slept." in found["agent:main:plans"]
    assert "no transcript" in found["agent:work:main"] and len(found) == 2
    assert migrate(theirs, ours, "--yes", code=1)["ok"] is False


def test_their_request_is_the_active_branch_from_the_last_compaction_on() -> None:
    def said(events: list[dict[str, Any]]) -> list[Any]:
        request = their_request(json.dumps(event).encode() for event in events)
        return [part[1] if part[0] == "summary" else part[2][0][1] for part in request]

    assert said(compacted("s")) == ["They counted.", "three", "four", "one"]
    assert said(conversation("s", "a", "b", version=4)) == ["a", "b"]
    assert said([*conversation("s", "a", "b", "c"), {"type": "leaf", "id": "l", "targetId": "e1"}]) == ["a", "b"]
