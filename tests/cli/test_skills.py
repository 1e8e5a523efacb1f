"""``openclaw skills``."""

from __future__ import annotations

import json
from typing import Any

from .conftest import Cli
from .fake_gateway import FakeGateway

NOTHING: dict[str, list[str]] = {"bins": [], "anyBins": [], "env": [], "config": [], "os": []}


def row(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "description": f"About {name}", "source": "openclaw-bundled", "filePath": f"/b/{name}/SKILL.md",
        "skillKey": name, "disabled": False, "blockedByAllowlist": False, "eligible": True, "modelInvocable": True,
        "requirements": NOTHING, "missing": NOTHING, "install": [], **more,
    }  # fmt: skip


LACKING = row(
    "weather",
    emoji="⛅",
    eligible=False,
    requirements={**NOTHING, "bins": ["curl"], "env": ["CITY"]},
    missing={**NOTHING, "bins": ["curl"], "env": ["CITY"]},
    install=[{"id": "brew-0", "kind": "brew", "label": "curl (brew)", "bins": ["curl"]}],
)
STATUS = {"workspaceDir": "/w", "managedSkillsDir": "/s/skills", "skills": [row("notes"), LACKING], "problems": []}


def test_list_shows_what_can_be_used_and_what_is_missing(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["skills.status"] = STATUS
    lines = cli("skills").stdout.splitlines()
    assert lines[0] == "Skills: 1 of 2 can be used"
    assert " ".join(lines[1].split()) == "✓ notes About notes"
    assert lines[3].strip() == "needs programs curl; variables CITY"


def test_eligible_leaves_out_the_others(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["skills.status"] = STATUS
    report = json.loads(cli("skills", "list", "--eligible", "--json").stdout)
    assert [skill["name"] for skill in report["skills"]] == ["notes"]


def test_info_tells_of_one_skill_and_what_its_author_would_install(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["skills.status"] = STATUS
    shown = cli("skills", "info", "weather", "--agent", "work").stdout
    assert "Needs programs curl\n" in shown
    assert "curl (brew) (not done by OpenClaw)" in shown
    assert gateway.params_of("skills.status")[0] == {"agentId": "work"}


def test_an_unknown_skill_is_answered_with_the_nearest(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["skills.status"] = STATUS
    done = cli("skills", "info", "wether")
    assert (done.returncode, done.stderr) == (1, "No skill is called 'wether'. Did you mean weather?\n")


def test_check_fails_when_a_skill_cannot_be_read(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["skills.status"] = STATUS
    assert cli("skills", "check").returncode == 0
    gateway.replies["skills.status"] = {**STATUS, "problems": [{"path": "/w/skills/x/SKILL.md", "reason": "no header"}]}
    done = cli("skills", "check")
    assert done.returncode == 1
    assert "! /w/skills/x/SKILL.md: no header" in done.stdout
