"""Findings as lines for people. ``openclaw doctor`` and ``openclaw security audit`` print them."""

from __future__ import annotations

from openclaw.cli.terminal import paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from openclaw.findings import Finding, Severity

_COLOURS: dict[Severity, str] = {"critical": "red", "warn": "yellow", "info": "dim", "ok": "green"}


def finding_lines(findings: Iterable[Finding], severities: Mapping[Severity, str]) -> Iterator[str]:
    """Yield each finding and its fix. Findings of a table of rules get a heading for each severity."""
    heading = ""
    for finding in findings:
        severity, colour = severities[finding.severity], _COLOURS[finding.severity]
        indent = " " * 8
        if not finding.title:
            yield f"{paint(f'{severity:<8}', colour)}{finding.text}"
        else:
            indent = "  "
            if severity != heading:
                heading = severity
                yield ""
                yield paint(severity.upper(), colour)
            yield f"{paint(finding.code, 'bold')} {finding.title}"
            yield from (f"{indent}{line}" for line in finding.text.splitlines())
        if finding.fix:
            yield f"{indent}→ {finding.fix}"
