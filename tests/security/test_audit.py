"""Every finding of the security audit has an example here: the settings or files that bring up it alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from openclaw.findings import Finding
from openclaw.security import file_checks
from openclaw.security.access_checks import allows_everything
from openclaw.security.audit import RULES, AuditReport, audit, subject_of
from openclaw.security.file_checks import Fixes, fix

TOKEN = "0123456789abcdef0123456789abcdef"
SAFE: dict[str, Any] = {
    "gateway": {"mode": "local", "auth": {"token": TOKEN}},
    "tools": {"exec": {"host": "gateway"}, "sessions": {"visibility": "tree"}},
}
"""A configuration about which the audit has nothing to say."""
PROBED = {rule for rule in RULES if rule.startswith("gateway.probe")}
"""These need a running Gateway: tests/flows/test_security_audit.py."""


def merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {key: merged(one.get(key), value) for key, value in other.items()}
    return other


def look(state: Path, change: dict[str, Any] | None = None, environ: dict[str, str] | None = None) -> AuditReport:
    path = state / "openclaw.json"
    if not path.exists():
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(merged(SAFE, change or {})))
        path.chmod(0o600)
    return audit(subject_of(str(path), str(state), environ or {}), 1)


def found(report: AuditReport) -> dict[str, Finding]:
    return {one.code: one for one in report.findings if one.code != "summary.attack_surface"}


def signal(**settings: Any) -> dict[str, Any]:
    return {"channels": {"signal": {"account": "+15550001", **settings}}, "session": {"dmScope": "per-peer"}}


def sandbox(**settings: Any) -> dict[str, Any]:
    return {"agents": {"defaults": {"sandbox": settings}}}


def gateway(**settings: Any) -> dict[str, Any]:
    return {"gateway": settings}


HOOKS = {"enabled": True, "token": "h" * 8 + TOKEN}
NO_TOOLS = {"tools": {"deny": ["group:runtime", "group:fs"]}}
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "gateway.bind_no_auth": (gateway(bind="lan", auth={"token": None}, tls={"enabled": True}), "critical"),
    "gateway.loopback_no_auth": (gateway(auth={"mode": "none"}), "critical"),
    "gateway.no_tls": (gateway(bind="custom", customBindHost="192.0.2.1"), "warn"),
    "gateway.token_too_short": (gateway(auth={"token": TOKEN[:23]}), "warn"),
    "gateway.password_too_short": (gateway(auth={"mode": "password", "password": "${SHORT}"}), "warn"),
    "gateway.secret_reused": ({"models": {"providers": {"x": {"baseUrl": "http://x", "apiKey": "${SAME}"}}}}, "warn"),
    "gateway.rate_limit_loose": (gateway(auth={"rateLimit": {"maxAttempts": 1000}}), "warn"),
    "gateway.trusted_proxies_missing": (gateway(controlUi={"allowedOrigins": ["https://claw.example"]}), "warn"),
    "gateway.trusted_proxies_wide": (gateway(trustedProxies=["10.0.0.0/8"]), "critical"),
    "gateway.tailscale_funnel": (gateway(tailscale={"mode": "funnel"}), "critical"),
    "gateway.tailscale_serve": (gateway(tailscale={"mode": "serve"}), "info"),
    "gateway.control_ui.insecure_auth": (gateway(controlUi={"allowInsecureAuth": True}), "critical"),
    "gateway.control_ui.device_auth_disabled": (
        gateway(controlUi={"dangerouslyDisableDeviceAuth": True}), "critical",
    ),
    "gateway.control_ui.origins_wide": (
        gateway(controlUi={"allowedOrigins": ["*"]}, trustedProxies=["127.0.0.1"]), "critical",
    ),
    "browser.private_network_open": (
        {"browser": {"ssrfPolicy": {"dangerouslyAllowPrivateNetwork": True}}},
        "critical",
    ),
    "browser.no_sandbox": ({"browser": {"noSandbox": True}}, "warn"),
    "browser.groups": ({"browser": {"allowInGroups": True}}, "warn"),
    "browser.own_network": ({"browser": {"profiles": {"mine": {"cdpUrl": "wss://browser.example"}}}}, "warn"),
    "browser.remote_cdp_http": ({"browser": {"cdpUrl": "http://browser.example:9222"}}, "warn"),
    "config.invalid": (gateway(port="many"), "critical"),
    "config.refused": (signal(groups={"g": {"tools": {"deny": ["exec"]}}}), "critical"),
    "sandbox.unavailable": (sandbox(mode="all", docker={"network": "bridge"}), "warn"),
    "sandbox.docker_config_mode_off": (sandbox(docker={"memory": "1g"}), "warn"),
    "sandbox.dangerous_network_mode": (sandbox(mode="all", docker={"network": "host"}), "warn"),
    "sandbox.dangerous_bind_mount": (sandbox(mode="all", docker={"binds": ["/opt:/data:rw"]}), "critical"),
    "config.secrets.gateway_password_in_config": (
        gateway(auth={"mode": "password", "password": "a long password"}), "warn",
    ),
    "config.secrets.hooks_token_in_config": ({"hooks": HOOKS}, "info"),
    "config.secrets.in_config": ({"models": {"providers": {"x": {"baseUrl": "http://x", "apiKey": "k1"}}}}, "info"),
    "hooks.token_too_short": ({"hooks": {**HOOKS, "token": "short"}}, "warn"),
    "hooks.token_reuse_gateway_token": ({"hooks": {**HOOKS, "token": TOKEN}}, "warn"),
    "hooks.path_root": ({"hooks": {**HOOKS, "path": "/"}}, "critical"),
    "logging.redact_off": ({"logging": {"redactSensitive": "off"}}, "warn"),
    "logging.redact_patterns": ({"logging": {"redactPatterns": ["mine"]}}, "warn"),
    "channels.signal.dm.open": (
        {**signal(dmPolicy="open", allowFrom=["*"], groupAllowFrom=[]), **NO_TOOLS}, "critical",
    ),
    "channels.signal.dm.open_invalid": (signal(dmPolicy="open", allowFrom=["+1"]), "warn"),
    "channels.signal.dm.disabled": (signal(dmPolicy="disabled"), "info"),
    "channels.signal.dm.scope_main_multiuser": (
        {**signal(allowFrom=["+1", "+2"]), "session": {"dmScope": "main"}}, "warn",
    ),
    "channels.signal.several_owners": (
        {**signal(allowFrom=["+1", "+2"]), "session": {"dmScope": "per-channel-peer"}}, "warn",
    ),
    "channels.signal.groups.open": ({**signal(groupPolicy="open"), **NO_TOOLS}, "warn"),
    "channels.signal.groups.allowFrom.wildcard": ({**signal(groupAllowFrom=["*"]), **NO_TOOLS}, "critical"),
    "commands.ownerAllowFrom.wildcard": ({"commands": {"ownerAllowFrom": ["signal:*"]}}, "warn"),
    "commands.allowFrom.wildcard": ({"commands": {"allowFrom": {"signal": ["*"]}}}, "critical"),
    "commands.use_access_groups_off": ({"commands": {"useAccessGroups": False}}, "critical"),
    "security.exposure.open_groups_with_elevated": (
        {**signal(groupPolicy="open"), "tools": {**NO_TOOLS["tools"], "elevated": {"allowFrom": {"signal": ["+1"]}}}},
        "critical",
    ),
    "security.exposure.open_doors_with_tools": (signal(groupPolicy="open"), "critical"),
    "tools.elevated.allowFrom.signal.wildcard": ({"tools": {"elevated": {"allowFrom": {"signal": ["*"]}}}}, "critical"),
    "tools.elevated.allowFrom.signal.large": (
        {"tools": {"elevated": {"allowFrom": {"signal": [f"+{n}" for n in range(26)]}}}}, "warn",
    ),
    "tools.exec.unrestricted": ({"tools": {"exec": {"host": "gateway", "security": "full", "ask": "off"}}}, "warn"),
    "tools.exec.safe_bins": ({"tools": {"exec": {"safeBins": ["python3"]}}}, "warn"),
    "tools.sessions.visibility_wide": (
        {**signal(allowFrom=["+1"], groupAllowFrom=["+2"]), "tools": {"sessions": {"visibility": "all"}}}, "warn",
    ),
    "tools.fs.workspace_only_off": ({"tools": {"fs": {"workspaceOnly": False}}}, "warn"),
    "plugins.extensions_no_allowlist": ({"plugins": {"load": {"paths": ["/nowhere/at-all.py"]}}}, "warn"),
    "mcp.open_to_all": ({"mcp": {"servers": {"docs": {"command": "docs", "sessions": "all"}}}}, "warn"),
    "models.legacy": ({"agents": {"defaults": {"model": "openai/gpt-3.5-turbo"}}}, "warn"),
    "models.weak_tier": ({"agents": {"defaults": {"model": "anthropic/claude-haiku-4-5"}}}, "warn"),
    "models.small_params": ({"agents": {"defaults": {"model": "ollama/llama3.1:8b"}}}, "info"),
}  # fmt: skip
"""Check id → the change to ``SAFE`` that brings it up, and its severity."""
COMPANIONS = {
    "browser.remote_cdp_http": {"browser.own_network"},
    # A dangerous combination is told beside its parts, and what the validator says beside what the audit says.
    "gateway.loopback_no_auth": {"config.refused"},
    "gateway.tailscale_funnel": {"config.invalid"},
    "hooks.token_too_short": {"config.secrets.hooks_token_in_config"},
    "hooks.token_reuse_gateway_token": {"config.secrets.hooks_token_in_config"},
    "hooks.path_root": {"config.secrets.hooks_token_in_config", "config.invalid"},
    "security.exposure.open_groups_with_elevated": {"channels.signal.groups.open"},
    "security.exposure.open_doors_with_tools": {"channels.signal.groups.open"},
    "channels.signal.dm.open_invalid": {"config.invalid"},
    "channels.signal.dm.scope_main_multiuser": {"channels.signal.several_owners"},
}


@pytest.mark.parametrize("check_id", SETTINGS)
def test_a_setting_brings_its_finding_up_with_a_way_out_and_nothing_else(check_id: str, tmp_path: Path) -> None:
    change, severity = SETTINGS[check_id]
    told = found(look(tmp_path / "state", change, {"SHORT": "x", "SAME": TOKEN}))
    assert set(told) - COMPANIONS.get(check_id, set()) == {check_id}
    assert told[check_id].severity == severity
    assert told[check_id].fix or severity == "info"


def chmod(mode: int, *parts: str) -> Callable[[Path], None]:
    """Makes a file (or a folder, for a path that ends with "/") below the state folder with this mode."""

    def act(state: Path) -> None:
        path = state.joinpath(*parts)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in path.relative_to(state).parents:
            (state / folder).chmod(0o700)
        if parts and not path.exists():
            path.write_text("{}")
        path.chmod(mode)

    return act


def link(target: str, *parts: str) -> Callable[[Path], None]:
    def act(state: Path) -> None:
        path = state.joinpath(*parts)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.symlink_to(target)

    return act


def included(mode: int) -> Callable[[Path], None]:
    def act(state: Path) -> None:
        (state / "more.json5").write_text("{}")
        (state / "more.json5").chmod(mode)
        (state / "openclaw.json").write_text(json.dumps({**SAFE, "$include": "more.json5"}))

    return act


def named(mode: int, change: Callable[[str], dict[str, Any]]) -> Callable[[Path], None]:
    """A file beside the state folder that the configuration names."""

    def act(state: Path) -> None:
        file = state.parent / "named.py"
        file.write_text("")
        file.chmod(mode)
        (state / "openclaw.json").write_text(json.dumps(merged(SAFE, change(str(file)))))

    return act


def rules(**defaults: Any) -> Callable[[Path], None]:
    def act(state: Path) -> None:
        chmod(0o600, "exec-approvals.json")(state)
        (state / "exec-approvals.json").write_text(json.dumps({"version": 1, "defaults": defaults, "agents": {}}))

    return act


def damaged_rules(state: Path) -> None:
    chmod(0o600, "exec-approvals.json")(state)
    (state / "exec-approvals.json").write_text("no json")


def provider(file: str) -> dict[str, Any]:
    return {"models": {"providers": {"x": {"baseUrl": "http://x", "apiKey": {"file": file}}}}}


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "fs.parent_dir.perms_writable": (chmod(0o777, ".."), "critical"),
    "fs.state_dir.perms_world_writable": (chmod(0o703), "critical"),
    "fs.state_dir.perms_group_writable": (chmod(0o770), "warn"),
    "fs.state_dir.perms_readable": (chmod(0o755), "warn"),
    "fs.config.perms_writable": (chmod(0o620, "openclaw.json"), "critical"),
    "fs.config.perms_world_readable": (chmod(0o604, "openclaw.json"), "critical"),
    "fs.config.perms_group_readable": (chmod(0o640, "openclaw.json"), "warn"),
    "fs.config_include.perms_writable": (included(0o602), "critical"),
    "fs.config_include.perms_world_readable": (included(0o604), "critical"),
    "fs.config_include.perms_group_readable": (included(0o640), "warn"),
    "fs.credentials_dir.perms_writable": (chmod(0o660, "credentials", "signal-allowFrom.json"), "critical"),
    "fs.credentials_dir.perms_readable": (chmod(0o604, "credentials", "signal-pairing.json"), "warn"),
    "fs.auth_profiles.perms_writable": (chmod(0o620, "agents", "main", "agent", "auth-profiles.json"), "critical"),
    "fs.auth_profiles.perms_readable": (chmod(0o640, "agents", "main", "agent", "auth-profiles.json"), "warn"),
    "fs.devices.perms_writable": (chmod(0o606, "devices", "paired.json"), "critical"),
    "fs.devices.perms_readable": (chmod(0o644, "devices", "paired.json"), "critical"),
    "fs.exec_approvals.perms_writable": (chmod(0o620, "exec-approvals.json"), "critical"),
    "fs.sessions_store.perms_readable": (chmod(0o644, "agents", "main", "sessions", "sessions.json"), "warn"),
    "fs.transcripts.perms_readable": (chmod(0o644, "agents", "main", "sessions", "s.jsonl"), "warn"),
    "fs.log_file.perms_readable": (chmod(0o644, "logs", "openclaw-2026-01-01.log"), "warn"),
    "fs.state_file.perms_writable": (chmod(0o666, "ledger.db"), "critical"),
    "fs.state_file.perms_readable": (chmod(0o644, "ledger.db"), "warn"),
    "fs.state_file.symlink": (link("/etc/hostname", "blobs", "x"), "warn"),
    "fs.secret_file.perms_readable": (named(0o644, provider), "critical"),
    "fs.tls_key.perms_readable": (
        named(0o640, lambda file: gateway(tls={"enabled": True, "keyPath": file, "certPath": file})), "critical",
    ),
    "fs.workspace.perms_writable": (chmod(0o666, "workspace", "SOUL.md"), "critical"),
    "fs.workspace.symlink": (link("/etc/hostname", "workspace", "SOUL.md"), "warn"),
    "plugins.code_perms": (
        named(0o666, lambda file: {"plugins": {"load": {"paths": [file]}, "allow": ["named"]}}), "critical",
    ),
    "tools.exec.allowlist_wide": (rules(allowlist=[{"pattern": "/usr/bin/env"}]), "critical"),
    "tools.exec.fallback_open": (rules(askFallback="full"), "warn"),
    "tools.exec.rules_unreadable": (damaged_rules, "warn"),
}  # fmt: skip
"""Check id → what makes the state folder bring it up, and its severity."""


@pytest.mark.parametrize("check_id", FILES)
def test_a_file_brings_its_finding_up_with_a_way_out_and_nothing_else(check_id: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert found(look(state)) == {}
    act, severity = FILES[check_id]
    act(state)
    told = found(look(state))
    assert set(told) == {check_id}
    assert (told[check_id].severity, bool(told[check_id].fix)) == (severity, True)


def test_a_state_folder_that_is_a_link_or_in_a_cloud_is_told(tmp_path: Path) -> None:
    real = tmp_path / "Dropbox" / "state"
    look(real)
    (tmp_path / "state").symlink_to(real)
    told = found(look(tmp_path / "state"))
    assert set(told) == {"fs.state_dir.symlink", "fs.synced_dir"}


def test_a_configuration_that_is_a_link_is_judged_by_its_target(tmp_path: Path) -> None:
    state = tmp_path / "state"
    look(state)
    (state / "openclaw.json").rename(tmp_path / "elsewhere.json")
    (tmp_path / "elsewhere.json").chmod(0o666)
    (state / "openclaw.json").symlink_to(tmp_path / "elsewhere.json")
    assert set(found(look(state))) == {"fs.config.symlink", "fs.config.perms_writable"}


def test_a_readable_workspace_outside_the_state_folder_is_told(tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir()
    workspace.chmod(0o755)
    told = found(look(tmp_path / "state", {"agents": {"defaults": {"workspace": str(workspace)}}}))
    assert set(told) == {"fs.workspace.perms_readable"}


def test_files_of_another_user_are_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    look(state)
    chmod(0o600, "ledger.db")(state)
    with patch.object(file_checks.StateFile, "is_foreign", property(lambda entry: True)):
        told = found(look(state))
    owners = {"fs.state_dir.foreign_owner", "fs.config.foreign_owner", "fs.state_file.foreign_owner"}
    assert set(told) == owners


SPECIAL = {
    *("summary.attack_surface", "fs.state_dir.symlink", "fs.synced_dir", "fs.config.symlink"),
    *("fs.workspace.perms_readable", "fs.state_dir.foreign_owner", "fs.config.foreign_owner"),
    *("fs.state_file.foreign_owner", "storage.unreachable"),
}


def test_what_a_database_holds_that_cannot_be_asked_is_told_as_not_looked_at(tmp_path: Path) -> None:
    state = tmp_path / "state"
    storage = {"storage": {"url": f"postgresql://me:{TOKEN}@/db?host={tmp_path}/nowhere"}}
    told = found(look(state, {**signal(allowFrom=["+1"]), **storage}))
    assert set(told) - {"config.secrets.in_config"} == {"storage.unreachable"}
    assert "rules for commands" in told["storage.unreachable"].text and TOKEN not in json.dumps(look(state).view())


def test_every_finding_has_an_example() -> None:
    shown = {check_id.replace(".signal.", ".<channel>.") for check_id in (*SETTINGS, *FILES, *SPECIAL, *PROBED)}
    assert shown == set(RULES)


@pytest.mark.parametrize(
    ("pattern", "wide"),
    [("/usr/bin/*", True), ("*", True), ("/**", True), ("/bin/sh", True), ("/usr/bin/python3.11", True),
     ("/usr/bin/busybox", True), ("/usr/bin/git", True), ("/opt/tools/*", True), ("/usr/bin/gi?", False),
     ("/usr/bin/cp", True), ("=git status", False), ("/usr/bin/ls", False),
     ("/usr/bin/uptime", False), ("/opt/tools/build-*", False)],
)  # fmt: skip
def test_patterns_that_allow_everything_are_known(pattern: str, wide: bool) -> None:
    assert allows_everything(pattern) is wide


def test_guests_who_were_paired_count_among_the_people_who_share_a_conversation(tmp_path: Path) -> None:
    state = tmp_path / "state"
    look(state, {**signal(allowFrom=["+1"]), "session": {"dmScope": "main"}})
    assert found(look(state)) == {}
    chmod(0o600, "credentials", "signal-allowFrom.json")(state)
    (state / "credentials" / "signal-allowFrom.json").write_text('{"version": 1, "allowFrom": ["+2"]}')
    assert "channels.signal.dm.scope_main_multiuser" in found(look(state))


def test_a_small_model_with_tools_behind_an_open_door_is_critical(tmp_path: Path) -> None:
    change = {**signal(groupPolicy="open"), "agents": {"defaults": {"model": "ollama/llama3.1:8b"}}}
    assert found(look(tmp_path / "state", change))["models.small_params"].severity == "critical"


def test_no_finding_shows_a_secret(tmp_path: Path) -> None:
    """All examples at once: no title, detail or remediation holds a value that is a secret."""
    for number, (change, _) in enumerate(SETTINGS.values()):
        report = json.dumps(look(tmp_path / str(number), change, {"SHORT": "x", "SAME": TOKEN}).view())
        assert TOKEN not in report and TOKEN[:23] not in report and "user:pass" not in report


def repair(state: Path) -> Fixes:
    return fix(subject_of(str(state / "openclaw.json"), str(state), {}))


def test_fix_closes_files_groups_and_redaction_and_says_so(tmp_path: Path) -> None:
    state = tmp_path / "state"
    look(state, {**signal(groupPolicy="open"), "logging": {"redactSensitive": "off"}})
    chmod(0o644, "agents", "main", "sessions", "s.jsonl")(state)
    chmod(0o755, "run.sh")(state)
    (state / "agents").chmod(0o777)
    (state / "openclaw.json").chmod(0o644)
    link("/etc/hostname", "blobs", "x")(state)
    state.chmod(0o755)
    done = repair(state)
    assert done.ok and done.config_written
    assert done.changes == ["logging.redactSensitive=off -> tools", "channels.signal.groupPolicy=open -> allowlist"]
    modes = {Path(action.path).name: action.mode for action in done.actions if action.ok}
    # A program stays one.
    assert modes == {"state": 0o700, "openclaw.json": 0o600, "agents": 0o700, "s.jsonl": 0o600, "run.sh": 0o700}
    told = found(look(state))
    assert set(told) == {"fs.state_file.symlink"}
    again = repair(state)
    assert again.changes == [] and not any(action.ok for action in again.actions)


def test_fix_never_follows_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text(json.dumps(SAFE))
    outside.chmod(0o644)
    state = tmp_path / "state"
    look(state)
    (state / "credentials").symlink_to(tmp_path)
    (state / "x.jsonl").symlink_to(outside)
    (state / "openclaw.json").unlink()
    (state / "openclaw.json").symlink_to(outside)
    done = repair(state)
    assert outside.stat().st_mode & 0o777 == 0o644
    assert [(action.path, action.skipped) for action in done.actions] == [(str(state / "openclaw.json"), "symlink")]


def test_fix_says_what_it_could_not_change(tmp_path: Path) -> None:
    state = tmp_path / "state"
    look(state)
    (state / "ledger.db").write_text("")
    (state / "ledger.db").chmod(0o644)
    with patch.object(os, "fchmod", side_effect=PermissionError(1, "Operation not permitted")):
        done = repair(state)
    assert not done.ok and done.errors == [f"{state / 'ledger.db'}: Operation not permitted"]


def test_the_page_lists_every_finding() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| `([\w.<>]+)` \| (critical|warn|info)\b.*? \|", page, re.MULTILINE)
    assert dict(rows) == {name: rule.severity for name, rule in RULES.items()}
