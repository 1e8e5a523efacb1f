"""``openclaw security audit``: looks at the configuration, the files and the running Gateway, and says what to do."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from openclaw import paths
from openclaw.cli import target as targets
from openclaw.cli.command import EXIT_FAILURE, JSON, Action, Flag, Group
from openclaw.cli.terminal import paint, print_json, printable
from openclaw.security.audit import (
    SEVERITIES,
    AuditReport,
    Severity,
    Subject,
    audit,
    by_severity,
    finding,
    subject_of,
)

if TYPE_CHECKING:
    import argparse

    from openclaw.security.fix import Fixes

_COLOURS: dict[Severity, str] = {"critical": "red", "warn": "yellow", "info": "dim"}


def looked_at() -> Subject:
    return subject_of(paths.config_path(), paths.state_dir(), os.environ)


def run_audit(args: argparse.Namespace) -> int:
    fixes: Fixes | None = None
    if args.fix:
        from openclaw.security.fix import fix

        fixes = fix(looked_at())
    subject = looked_at()
    report = audit(subject, int(time.time() * 1000))
    if args.deep:
        report = _with_probe(subject, report)
    if args.json:
        shown = report.view()
        print_json({"fix": msgspec.to_builtins(fixes), "report": shown} if fixes else shown)
    else:
        _print(report, fixes, deep=args.deep)
    failed = report.summary()["critical"] or (fixes and not fixes.ok)
    return EXIT_FAILURE if failed else 0


def _with_probe(subject: Subject, report: AuditReport) -> AuditReport:
    import asyncio

    from openclaw.security.gateway_checks import Probe, ProbedGateway

    target = targets.resolve()
    if target.local and targets.running_gateway() is None:
        # Whatever listens on its port in its place must not be given the secret.
        missing = finding("gateway.probe_failed", "no Gateway of this state folder runs", "openclaw gateway start")
        seen = {"gateway": {"attempted": False, "url": target.url, "ok": False, "error": missing.detail}}
        return msgspec.structs.replace(report, findings=by_severity([*report.findings, missing]), deep=seen)
    place = ProbedGateway(host=target.host, port=target.port, tls=target.tls, local=target.local, secret=target.secret)
    probe = Probe(subject, place)
    asyncio.run(probe.run())
    found = by_severity([*report.findings, *probe.findings])
    return msgspec.structs.replace(report, findings=found, deep=probe.view())


def summary_line(report: AuditReport) -> str:
    return " · ".join(f"{count} {severity}" for severity, count in report.summary().items())


def _print(report: AuditReport, fixes: Fixes | None, *, deep: bool) -> None:
    lines = [paint("OpenClaw security audit", "bold"), f"Summary: {summary_line(report)}"]
    if not deep:
        lines.append("The running Gateway was not tried: openclaw security audit --deep")
    if fixes is None:
        lines.append("Repair what is safe to repair: openclaw security audit --fix")
    else:
        lines += _fix_lines(fixes)
    for severity in SEVERITIES:
        found = [one for one in report.findings if one.severity == severity]
        if found:
            lines += ["", paint(severity.upper(), _COLOURS[severity])]
        for one in found:
            lines.append(f"{paint(printable(one.check_id), 'bold')} {printable(one.title)}")
            lines += [f"  {printable(line)}" for line in one.detail.splitlines()]
            lines += [f"  → {printable(one.remediation)}"] if one.remediation else []
    for check in (report.deep or {}).get("gateway", {}).get("checks", ()):
        state = {True: "held", False: "FAILED", None: "unknown"}[check["ok"]]
        lines.append(f"probe {check['check']}: {state} ({printable(check['detail'])})")
    sys.stdout.write("\n".join(lines) + "\n")


def _fix_lines(fixes: Fixes) -> list[str]:
    closed = [action for action in fixes.actions if action["ok"]]
    lines = [f"changed: {printable(change)}" for change in fixes.changes]
    lines += [f"changed: {action['mode']:03o} {printable(action['path'])}" for action in closed[:20]]
    if len(closed) > 20 or fixes.more_actions:
        lines.append(f"changed: the modes of {len(closed) - 20 + fixes.more_actions} more files")
    lines += [f"not changed: {printable(error)}" for error in fixes.errors]
    return lines or ["Nothing needed to be changed."]


COMMANDS = {
    "security": Group(
        {
            "audit": Action(
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
                example="openclaw security audit\n  openclaw security audit --deep --json\n"
                "  openclaw security audit --fix",
            )
        }
    )
}
