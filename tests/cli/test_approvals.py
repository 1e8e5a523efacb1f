"""``openclaw approvals``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Cli
from .fake_gateway import FakeGateway

EMPTY: dict[str, Any] = {
    "path": "/s/exec-approvals.json",
    "exists": False,
    "hash": "h0",
    "file": {"version": 1, "defaults": {}, "agents": {}},
}


def rules(**agents: Any) -> dict[str, Any]:
    return {
        **EMPTY,
        "exists": True,
        "hash": "h1",
        "file": {"version": 1, "defaults": {"ask": "always"}, "agents": agents},
    }


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "weigh"
    path.write_bytes(b"")
    path.chmod(0o700)
    return path


def test_the_rules_are_shown(cli: Cli, gateway: FakeGateway) -> None:
    gateway.replies["exec.approvals.get"] = rules(main={"security": "allowlist", "allowlist": [{"pattern": "/bin/ls"}]})
    shown = cli("approvals").stdout
    assert shown == ("Rules: /s/exec-approvals.json\nDefaults: ask=always\nAgent main: security=allowlist\n  /bin/ls\n")
    gateway.replies["exec.approvals.get"] = EMPTY
    assert "not made yet" in cli("approvals", "get").stdout
    assert json.loads(cli("approvals", "get", "--json").stdout) == EMPTY


def test_a_program_is_added_and_removed_on_top_of_what_was_read(cli: Cli, gateway: FakeGateway, program: Path) -> None:
    gateway.replies["exec.approvals.get"] = rules(main={"allowlist": [{"pattern": "/bin/ls"}]})
    gateway.replies["exec.approvals.set"] = rules()
    assert cli("approvals", "allowlist", "add", str(program), "--agent", "main").returncode == 0
    assert cli("approvals", "allowlist", "remove", "/bin/ls", "--agent", "main").returncode == 0
    added, removed = gateway.params_of("exec.approvals.set")
    assert added["baseHash"] == "h1"
    assert added["file"]["agents"]["main"]["allowlist"] == [{"pattern": "/bin/ls"}, {"pattern": str(program)}]
    assert removed["file"]["agents"]["main"]["allowlist"] == []


def test_a_rule_that_could_never_count_is_not_made(cli: Cli, gateway: FakeGateway, program: Path) -> None:
    gateway.replies["exec.approvals.get"] = rules()
    gateway.replies["exec.approvals.set"] = rules()
    shell = cli("approvals", "allowlist", "add", "/bin/sh")
    assert shell.returncode == 1 and "are always asked about" in shell.stderr
    link = program.with_name("link")
    link.symlink_to(program)
    for pattern in (link, "/opt/tools/*", program.with_name("later")):
        assert cli("approvals", "allowlist", "add", str(pattern)).returncode == 0
    made = [
        params["file"]["agents"]["*"]["allowlist"][0]["pattern"] for params in gateway.params_of("exec.approvals.set")
    ]
    assert made == [str(program), "/opt/tools/*", str(program.with_name("later"))]


def test_mistakes_are_named(cli: Cli, gateway: FakeGateway, tmp_path: Path) -> None:
    gateway.replies["exec.approvals.get"] = rules(main={"allowlist": [{"pattern": "/bin/ls"}]})
    missing = cli("approvals", "allowlist", "remove", "/bin/cat", "--agent", "main")
    assert missing.returncode != 0
    assert "/bin/ls" in missing.stderr
    assert "is not a full path" in cli("approvals", "allowlist", "add", "git").stderr
    bad = tmp_path / "rules.json"
    bad.write_text("[")
    assert "is not valid JSON" in cli("approvals", "set", "--file", str(bad)).stderr
    assert gateway.params_of("exec.approvals.set") == []
