"""Findings: what checks report about an installation, and how checks are run and their findings ordered and encoded.

``openclaw doctor``, ``openclaw security audit``, the checks of the stores and the Gateway's health use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

Severity: TypeAlias = Literal["critical", "warn", "info", "ok"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warn", "info", "ok")


class Finding(msgspec.Struct, frozen=True):
    code: str
    """The check, such as ``disk`` or ``fs.config.symlink``. Programs branch on it."""
    severity: Severity
    text: str
    """The observation, and where it was made."""
    fix: str = ""
    """What a person can do about it. Empty if nothing needs to be done."""
    title: str = ""
    """The rule that was broken, if the check has a table of rules."""
    repairable: bool = False
    """Whether ``openclaw doctor --fix`` repairs it."""


Facts = TypeVar("Facts")
Check: TypeAlias = Callable[[Facts], Iterable[Finding]]
"""A check only reads. It gets the facts that it needs and yields findings."""


def run_checks(
    checks: Iterable[Check[Facts]],
    facts: Facts,
    explain: Callable[[Check[Facts], Exception], Finding | None] = lambda check, error: None,
) -> list[Finding]:
    """Run checks in their order. An error that ``explain`` turns into a finding ends only the check that raised it."""
    findings: list[Finding] = []
    for check in checks:
        try:
            for finding in check(facts):
                findings.append(finding)
        except Exception as error:
            if (unchecked := explain(check, error)) is None:
                raise
            findings.append(unchecked)
    return findings


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by severity. Findings of one severity keep their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def count_severities(findings: Iterable[Finding]) -> dict[Severity, int]:
    counts = Counter(finding.severity for finding in findings)
    return {severity: counts[severity] for severity in SEVERITIES}


class JsonShape(NamedTuple):
    """The names that scripts know from the ``--json`` of one command."""

    keys: Mapping[str, str]
    """Field of ``Finding`` → key, in the order in which they are printed."""
    severities: Mapping[Severity, str]

    def encode(self, findings: Iterable[Finding]) -> list[dict[str, object]]:
        """Return the findings as JSON objects. Empty fields are left out."""
        return [
            {
                key: self.severities[finding.severity] if field == "severity" else value
                for field, key in self.keys.items()
                if (value := getattr(finding, field))
            }
            for finding in findings
        ]
