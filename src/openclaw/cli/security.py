"""``openclaw security audit``: looks at the configuration, the files and the running Gateway, and says what to do."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import msgspec

from openclaw import paths
from openclaw.cli import gateway_target
from openclaw.cli.command import JSON, Flag, Group, report
from openclaw.cli.terminal import paint
from openclaw.security.audit import SEVERITIES, AuditReport, Severity, Subject, audit, by_severity, finding, subject_of
from openclaw.security.file_checks import fix
from openclaw.security.gateway_checks import Probe, ProbedGateway

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

_COLOURS: dict[Severity, str] = {"critical": "red", "warn": "yellow", "info": "dim"}


def run_audit(args: argparse.Namespace) -> dict[str, Any]:
    """The report. With ``--fix`` it is beside what was repaired."""

    def subject() -> Subject:
        return subject_of(paths.config_path(), paths.state_dir(), os.environ)

    fixes = fix(subject()) if args.fix else None
    looked_at = subject()
    found = audit(looked_at, int(time.time() * 1000))
    shown = (_with_probe(looked_at, found) if args.deep else found).view()
    return {"fix": msgspec.to_builtins(fixes), "report": shown} if fixes else shown


def _with_probe(subject: Subject, report: AuditReport) -> AuditReport:
    target = gateway_target.resolve()
    if target.local and gateway_target.running_gateway() is None:
        # Whatever listens on its port in its place must not be given the secret.
        missing = finding("gateway.probe_failed", "no Gateway of this state folder runs", "openclaw gateway start")
        seen = {"gateway": {"attempted": False, "url": target.url, "ok": False, "error": missing.detail}}
        return msgspec.structs.replace(report, findings=by_severity([*report.findings, missing]), deep=seen)
    place = ProbedGateway(host=target.host, port=target.port, tls=target.tls, local=target.local, secret=target.secret)
    probe = Probe(subject, place)
    asyncio.run(probe.run())
    found = by_severity([*report.findings, *probe.findings])
    return msgspec.structs.replace(report, findings=found, deep=probe.view())


def _show(shown: dict[str, Any], args: argparse.Namespace) -> Iterator[str]:
    report = shown.get("report", shown)
    yield paint("OpenClaw security audit", "bold")
    yield f"Summary: {' · '.join(f'{count} {severity}' for severity, count in report['summary'].items())}"
    if not args.deep:
        yield "The running Gateway was not tried: openclaw security audit --deep"
    if args.fix:
        yield from _fix_lines(shown["fix"])
    else:
        yield "Repair what is safe to repair: openclaw security audit --fix"
    for severity in SEVERITIES:
        found = [one for one in report["findings"] if one["severity"] == severity]
        if found:
            yield ""
            yield paint(severity.upper(), _COLOURS[severity])
        for one in found:
            yield f"{paint(one['checkId'], 'bold')} {one['title']}"
            yield from (f"  {line}" for line in one["detail"].splitlines())
            if one.get("remediation"):
                yield f"  → {one['remediation']}"
    for check in (report.get("deep") or {}).get("gateway", {}).get("checks", ()):
        state = {True: "held", False: "FAILED", None: "unknown"}[check["ok"]]
        yield f"probe {check['check']}: {state} ({check['detail']})"


def _fix_lines(fixes: dict[str, Any]) -> list[str]:
    closed = [action for action in fixes["actions"] if action["ok"]]
    lines = [f"changed: {change}" for change in fixes["changes"]]
    lines += [f"changed: {action['mode']:03o} {action['path']}" for action in closed[:20]]
    if len(closed) > 20 or fixes["moreActions"]:
        lines.append(f"changed: the modes of {len(closed) - 20 + fixes['moreActions']} more files")
    lines += [f"not changed: {error}" for error in fixes["errors"]]
    return lines or ["Nothing needed to be changed."]


def _failed(shown: dict[str, Any], args: argparse.Namespace) -> bool:
    return bool(shown.get("report", shown)["summary"]["critical"]) or not shown.get("fix", {"ok": True})["ok"]


COMMANDS = {
    "security": Group(
        {
            "audit": report(
                "Look for settings, files and doors that let others in, and say what to do.\n\n"
                "Exit code: 0 nothing critical, 1 something critical or a repair failed, 2 wrong usage.",
                run_audit,
                (
                    Flag("--deep", "try the doors of the running Gateway too"),
                    Flag("--fix", "close files to other users, open groups to the list, and mask secrets in logs"),
                    JSON,
                ),
                about=(
                    "It needs no Gateway. --deep tries the doors of the running one: without the secret, as a "
                    "foreign web page, with wrong secrets. --fix closes files to other users, sets open groups to "
                    "the allow list and masks secrets in logs again. It exits with 1 when something is critical "
                    "or a repair failed."
                ),
                show=_show,
                failed=_failed,
                example="openclaw security audit\n  openclaw security audit --deep --json\n"
                "  openclaw security audit --fix",
            )
        }
    )
}
