"""``openclaw security audit``: looks at the configuration, the files and the running Gateway, and says what to do."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from openclaw import paths
from openclaw.cli import gateway_target
from openclaw.cli.command import JSON, Flag, Group, report
from openclaw.cli.findings import finding_lines
from openclaw.cli.terminal import paint
from openclaw.security.audit import SHAPE, AuditReport, ProbeResult, Subject, audit, finding, subject_of
from openclaw.security.file_checks import Fixes, fix
from openclaw.security.gateway_checks import Probe, ProbedGateway

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


class Audit(NamedTuple):
    report: AuditReport
    fixes: Fixes | None
    """What ``--fix`` changed. None without it."""

    @property
    def failed(self) -> bool:
        return bool(self.report.summary()["critical"]) or (self.fixes is not None and not self.fixes.ok)

    def view(self) -> dict[str, object]:
        report = self.report.view()
        return {"fix": msgspec.to_builtins(self.fixes), "report": report} if self.fixes is not None else report


def run_audit(args: argparse.Namespace) -> Audit:
    def subject() -> Subject:
        return subject_of(paths.config_path(), paths.state_dir(), os.environ)

    fixes = fix(subject()) if args.fix else None
    repaired = subject()
    report = audit(repaired, int(time.time() * 1000))
    return Audit(_with_probe(repaired, report) if args.deep else report, fixes)


def _with_probe(subject: Subject, report: AuditReport) -> AuditReport:
    target = gateway_target.resolve()
    if target.local and gateway_target.running_gateway() is None:
        # Another program may listen on the port. It must not get the secret.
        missing = finding("gateway.probe_failed", "no Gateway of this state folder runs", "openclaw gateway start")
        return report.with_probe(ProbeResult(target.url, attempted=False, ok=False, error=missing.text), [missing])
    gateway = ProbedGateway(
        host=target.host, port=target.port, tls=target.tls, local=target.local, secret=target.secret
    )
    probe = Probe(subject, gateway)
    asyncio.run(probe.run())
    return report.with_probe(probe.result(), probe.findings)


def _show(audited: Audit, args: argparse.Namespace) -> Iterator[str]:
    report = audited.report
    yield paint("OpenClaw security audit", "bold")
    yield f"Summary: {' · '.join(f'{count} {severity}' for severity, count in report.summary().items())}"
    if not args.deep:
        yield "The running Gateway was not tried: openclaw security audit --deep"
    if audited.fixes is not None:
        yield from _fix_lines(audited.fixes)
    else:
        yield "Repair what is safe to repair: openclaw security audit --fix"
    yield from finding_lines(report.findings, SHAPE.severities)
    for check in report.probe.checks if report.probe is not None else ():
        state = {True: "held", False: "FAILED", None: "unknown"}[check.ok]
        yield f"probe {check.check}: {state} ({check.detail})"


def _fix_lines(fixes: Fixes) -> list[str]:
    closed = [action for action in fixes.actions if action.ok]
    lines = [f"changed: {change}" for change in fixes.changes]
    lines += [f"changed: {action.mode:03o} {action.path}" for action in closed[:20]]
    if len(closed) > 20 or fixes.more_actions:
        lines.append(f"changed: the modes of {len(closed) - 20 + fixes.more_actions} more files")
    lines += [f"not changed: {error}" for error in fixes.errors]
    return lines or ["Nothing needed to be changed."]


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
                view=Audit.view,
                failed=lambda audited, args: audited.failed,
                example="openclaw security audit\n  openclaw security audit --deep --json\n"
                "  openclaw security audit --fix",
            )
        }
    )
}
