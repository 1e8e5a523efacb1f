"""The security audit: what is looked at, what is found, and the table of all findings.

Names, severities and the JSON shape are those of ``openclaw security audit`` of the original. A check is a function
that yields findings about a ``Subject``; it only reads. ``RULES`` lists every finding that there can be, and a test
shows an example of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from openclaw.config.load import Snapshot, read_config
from openclaw.findings import SEVERITIES, Finding, JsonShape, Severity, count_severities, run_checks, worst_first

PAIRINGS, ALLOWED = "credentials/", "-allowFrom.json"
"""How the names of the lists of paired people begin and end, around that of the channel."""
MOST_LISTS = 200
"""How many lists of paired people are read at most; there is one for each channel."""


class AuditRule(NamedTuple):
    severity: Severity
    title: str


RULES: dict[str, AuditRule] = {
    "summary.attack_surface": AuditRule("info", "Attack surface"),
    # Files
    "fs.parent_dir.perms_writable": AuditRule("critical", "Other users can replace the state folder"),
    "fs.state_dir.foreign_owner": AuditRule("critical", "The state folder belongs to another user"),
    "fs.state_dir.symlink": AuditRule("warn", "The state folder is a link"),
    "fs.state_dir.perms_world_writable": AuditRule("critical", "Everybody can write to the state folder"),
    "fs.state_dir.perms_group_writable": AuditRule("warn", "The group can write to the state folder"),
    "fs.state_dir.perms_readable": AuditRule("warn", "Other users can read the state folder"),
    "fs.synced_dir": AuditRule("warn", "The state folder is copied to a cloud"),
    "fs.config.symlink": AuditRule("warn", "The configuration file is a link"),
    "fs.config.foreign_owner": AuditRule("critical", "The configuration file belongs to another user"),
    "fs.config.perms_writable": AuditRule("critical", "Other users can change the configuration"),
    "fs.config.perms_world_readable": AuditRule("critical", "Everybody can read the configuration"),
    "fs.config.perms_group_readable": AuditRule("warn", "The group can read the configuration"),
    "fs.config_include.perms_writable": AuditRule("critical", "Other users can change an included file"),
    "fs.config_include.perms_world_readable": AuditRule("critical", "Everybody can read an included file"),
    "fs.config_include.perms_group_readable": AuditRule("warn", "The group can read an included file"),
    "fs.credentials_dir.perms_writable": AuditRule("critical", "Other users can let people in"),
    "fs.credentials_dir.perms_readable": AuditRule("warn", "Other users can read who was let in"),
    "fs.auth_profiles.perms_writable": AuditRule("critical", "Other users can change stored credentials"),
    "fs.auth_profiles.perms_readable": AuditRule("warn", "Other users can read stored credentials"),
    "fs.devices.perms_writable": AuditRule("critical", "Other users can pair a device"),
    "fs.devices.perms_readable": AuditRule("critical", "Other users can read the tokens of devices"),
    "fs.exec_approvals.perms_writable": AuditRule("critical", "Other users can allow commands"),
    "fs.sessions_store.perms_readable": AuditRule("warn", "Other users can read the list of sessions"),
    "fs.transcripts.perms_readable": AuditRule("warn", "Other users can read conversations"),
    "fs.log_file.perms_readable": AuditRule("warn", "Other users can read the log"),
    "fs.state_file.perms_writable": AuditRule("critical", "Other users can change the Gateway's files"),
    "fs.state_file.perms_readable": AuditRule("warn", "Other users can read the Gateway's files"),
    "fs.state_file.symlink": AuditRule("warn", "A link leads out of the state folder"),
    "fs.state_file.foreign_owner": AuditRule("critical", "A file in the state folder belongs to another user"),
    "fs.secret_file.perms_readable": AuditRule("critical", "Other users can read the file of a secret"),
    "fs.tls_key.perms_readable": AuditRule("critical", "Other users can read the TLS key"),
    "fs.workspace.perms_writable": AuditRule("critical", "Other users can write what the agent reads as instructions"),
    "fs.workspace.perms_readable": AuditRule("warn", "Other users can read the agent's workspace"),
    "fs.workspace.symlink": AuditRule("warn", "A file of the prompt is a link out of the workspace"),
    # The Gateway's doors
    "gateway.bind_no_auth": AuditRule("critical", "The Gateway listens on the network without a secret"),
    "gateway.loopback_no_auth": AuditRule("critical", "The Gateway has no secret"),
    "gateway.no_tls": AuditRule("warn", "The Gateway listens on the network without encryption"),
    "gateway.token_too_short": AuditRule("warn", "The Gateway's token is short"),
    "gateway.password_too_short": AuditRule("warn", "The Gateway's password is short"),
    "gateway.secret_reused": AuditRule("warn", "The Gateway's secret is used elsewhere too"),
    "gateway.rate_limit_loose": AuditRule("warn", "Many wrong secrets are allowed"),
    "gateway.trusted_proxies_missing": AuditRule("warn", "No proxy is named"),
    "gateway.trusted_proxies_wide": AuditRule("critical", "Whole networks count as proxies"),
    "gateway.tailscale_funnel": AuditRule("critical", "Tailscale Funnel is set"),
    "gateway.tailscale_serve": AuditRule("info", "Tailscale Serve is set"),
    "gateway.control_ui.insecure_auth": AuditRule("critical", "The Control UI is let in without a device identity"),
    "gateway.control_ui.device_auth_disabled": AuditRule(
        "critical", "Device identities of the Control UI are not checked"
    ),
    "gateway.control_ui.origins_wide": AuditRule("critical", "Web pages of any origin may connect"),
    "gateway.probe_failed": AuditRule("warn", "The running Gateway could not be examined"),
    "gateway.probe.open": AuditRule("critical", "The running Gateway answers without a secret"),
    "gateway.probe.foreign_origin": AuditRule("critical", "The running Gateway lets a foreign web page in"),
    "gateway.probe.not_throttled": AuditRule("warn", "The running Gateway does not slow down guessing"),
    "gateway.probe.exposed": AuditRule("critical", "The running Gateway is reachable from the network"),
    "browser.remote_cdp_http": AuditRule("warn", "The browser is controlled without encryption"),
    "browser.own_network": AuditRule("warn", "A browser that already runs is guarded in part"),
    "browser.private_network_open": AuditRule("critical", "Pages in the agent's browser reach the private network"),
    "browser.no_sandbox": AuditRule("warn", "The agent's browser runs without its own sandbox"),
    "browser.groups": AuditRule("warn", "Groups can use the agent's browser"),
    # Configuration and secrets
    "config.invalid": AuditRule("critical", "The configuration is not valid"),
    "config.refused": AuditRule("critical", "A setting promises safety that there is not"),
    "config.secrets.gateway_password_in_config": AuditRule("warn", "The Gateway's password is in the configuration"),
    "config.secrets.hooks_token_in_config": AuditRule("info", "The token for webhooks is in the configuration"),
    "config.secrets.in_config": AuditRule("info", "Secrets are written in the configuration"),
    "storage.unreachable": AuditRule("warn", "What the database holds was not looked at"),
    "hooks.token_too_short": AuditRule("warn", "The token for webhooks is short"),
    "hooks.token_reuse_gateway_token": AuditRule("warn", "Webhooks use the Gateway's token"),
    "hooks.path_root": AuditRule("critical", "Webhooks are at the root path"),
    "logging.redact_off": AuditRule("warn", "Secrets are not masked in logs"),
    "logging.redact_patterns": AuditRule("warn", "The usual secrets are not masked in logs"),
    # Who may do what
    "channels.<channel>.dm.open": AuditRule("critical", "Everybody can write to the agent"),
    "channels.<channel>.dm.open_invalid": AuditRule("warn", "The policy for direct messages contradicts the list"),
    "channels.<channel>.dm.disabled": AuditRule("info", "Direct messages are off"),
    "channels.<channel>.dm.scope_main_multiuser": AuditRule("warn", "Several people share one conversation"),
    "channels.<channel>.several_owners": AuditRule("warn", "Several people are owners"),
    "channels.<channel>.groups.open": AuditRule("warn", "Every member of a group can write to the agent"),
    "channels.<channel>.groups.allowFrom.wildcard": AuditRule("critical", "The list for groups admits everybody"),
    "commands.ownerAllowFrom.wildcard": AuditRule("warn", "The list of owners names nobody"),
    "commands.allowFrom.wildcard": AuditRule("critical", "Everybody may use commands"),
    "commands.use_access_groups_off": AuditRule("critical", "Commands do not obey the lists"),
    "security.exposure.open_groups_with_elevated": AuditRule("critical", "Elevated commands meet open groups"),
    "security.exposure.open_doors_with_tools": AuditRule("critical", "Strangers reach an agent that can run commands"),
    "tools.elevated.allowFrom.<channel>.wildcard": AuditRule("critical", "Everybody may use elevated commands"),
    "tools.elevated.allowFrom.<channel>.large": AuditRule("warn", "Many people may use elevated commands"),
    "tools.exec.unrestricted": AuditRule("warn", "The agent runs any command without asking"),
    "tools.exec.safe_bins": AuditRule("warn", "Programs that are no filters count as safe"),
    "tools.exec.allowlist_wide": AuditRule("critical", "The list of allowed programs allows almost everything"),
    "tools.exec.fallback_open": AuditRule("warn", "Commands run when nobody answers"),
    "tools.exec.rules_unreadable": AuditRule("warn", "The rules for commands cannot be read"),
    "tools.sessions.visibility_wide": AuditRule("warn", "Other people's conversations reach yours"),
    "tools.fs.workspace_only_off": AuditRule("warn", "File tools leave the workspace"),
    "sandbox.unavailable": AuditRule("warn", "Runs are refused, since their sandbox cannot be had"),
    "sandbox.docker_config_mode_off": AuditRule("warn", "A sandbox is described and not used"),
    "sandbox.dangerous_network_mode": AuditRule("warn", "The sandbox has this machine's network"),
    "sandbox.dangerous_bind_mount": AuditRule("critical", "The sandbox sees folders of value"),
    "plugins.extensions_no_allowlist": AuditRule("warn", "Extensions are loaded without a list"),
    "mcp.open_to_all": AuditRule("warn", "Everybody can use the tools of an MCP server"),
    "plugins.code_perms": AuditRule("critical", "Other users can change code that the Gateway loads"),
    "models.legacy": AuditRule("warn", "An old model is used"),
    "models.weak_tier": AuditRule("warn", "A weak model is used"),
    "models.small_params": AuditRule("info", "A small model is used"),
}
"""Check id → severity and title. ``<channel>`` stands for the id of a channel."""


class SharedFiles(msgspec.Struct, frozen=True):
    """What the audit reads of the documents that all Gateways of an installation share."""

    place: str = ""
    """Where they are, for people."""
    found: dict[str, bytes] = {}
    unreadable: dict[str, str] = {}
    """Why a document could not be read, by its name."""
    unreachable: str = ""
    """Why the database could not be asked. Then nothing is known of them."""


class Subject(msgspec.Struct, frozen=True):
    """The installation to audit."""

    snapshot: Snapshot
    state: Path
    environ: Mapping[str, str]
    shared: SharedFiles = SharedFiles()
    """It is read by ``audit``."""


class ProbeCheck(msgspec.Struct, frozen=True):
    check: str
    ok: bool | None
    """None if it could not be tried."""
    detail: str


class ProbeResult(msgspec.Struct, frozen=True):
    """What the probe of the running Gateway saw."""

    url: str
    attempted: bool
    ok: bool
    error: str = ""
    checks: list[ProbeCheck] = []

    def view(self) -> dict[str, object]:
        view: dict[str, object] = {"attempted": self.attempted, "url": self.url, "ok": self.ok}
        view |= {"error": self.error} if self.error else {}
        return view | ({"checks": msgspec.to_builtins(self.checks)} if self.attempted else {})


SHAPE = JsonShape(
    {"code": "checkId", "severity": "severity", "title": "title", "text": "detail", "fix": "remediation"},
    {severity: severity for severity in SEVERITIES},
)
"""The shape of findings in the original's audit."""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    ts: int
    findings: list[Finding]
    probe: ProbeResult | None = None

    def view(self) -> dict[str, object]:
        """Return the report as ``--json`` prints it."""
        view: dict[str, object] = {"ts": self.ts, "summary": self.summary(), "findings": SHAPE.encode(self.findings)}
        return {**view, "deep": {"gateway": self.probe.view()}} if self.probe is not None else view

    def summary(self) -> dict[Severity, int]:
        counts = count_severities(self.findings)
        del counts["ok"]  # The audit reports problems only.
        return counts

    def with_probe(self, probe: ProbeResult, findings: list[Finding]) -> AuditReport:
        return msgspec.structs.replace(self, findings=worst_first([*self.findings, *findings]), probe=probe)


def finding(rule: str, detail: str, fix: str = "", *, channel: str = "", severity: Severity | None = None) -> Finding:
    """Return a finding of the table. ``severity`` overrides the rule's own where the circumstances change it."""
    usual, title = RULES[rule]
    return Finding(rule.replace("<channel>", channel), severity or usual, detail, fix, title)


def subject_of(config_path: str, state: str, environ: Mapping[str, str]) -> Subject:
    return Subject(read_config(config_path, environ), Path(state), environ)


def audit(subject: Subject, now_ms: int) -> AuditReport:
    """Run every check that needs no running Gateway. Blocking."""
    from openclaw.security import access_checks, file_checks, gateway_checks

    subject = msgspec.structs.replace(subject, shared=asyncio.run(_shared_files(subject)))
    modules = (gateway_checks, access_checks, file_checks)
    checks = [check for module in modules for check in module.CHECKS]
    return AuditReport(ts=now_ms, findings=worst_first(run_checks(checks, subject)))


async def _shared_files(subject: Subject) -> SharedFiles:
    """Reads who was let in and the rules for commands from where the Gateway keeps them."""
    from openclaw.storage.errors import StorageRefused
    from openclaw.storage.inspection import open_for_inspection
    from openclaw.tools.exec.approvals import RULES_FILE

    found, unreadable = dict[str, bytes](), dict[str, str]()
    try:
        async with open_for_inspection(str(subject.state), subject.snapshot.config, subject.environ) as opened:
            documents = opened.documents
            lists = [name for name in await documents.list(PAIRINGS) if name.endswith(ALLOWED)]
            for name in [RULES_FILE, *lists[:MOST_LISTS]]:
                try:
                    document = await documents.get(name)
                except OSError as error:
                    if opened.database is not None:
                        raise
                    unreadable[name] = error.strerror or str(error)
                    continue
                if document is not None:
                    found[name] = document.data
            return SharedFiles(documents.place(""), found, unreadable)
    except (OSError, StorageRefused) as error:
        return SharedFiles(unreachable=getattr(error, "strerror", None) or str(error))
