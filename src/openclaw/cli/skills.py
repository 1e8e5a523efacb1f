"""``openclaw skills``: what the agent knows how to do, and what keeps a skill from being offered to the model."""

from __future__ import annotations

from openclaw.cli.command import Flag, Group, UserError, nearest, query
from openclaw.text import clipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

_LACKS = (
    ("bins", "programs"),
    ("anyBins", "one of the programs"),
    ("env", "variables"),
    ("config", "settings"),
    ("os", "another system:"),
)
NAME_WIDTH = 24
DESCRIPTION_CHARS = 52
"""So that a row fits 80 columns; ``skills info`` has the whole."""


def _wanted(report: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    return {**report, "skills": [row for row in report["skills"] if row["eligible"] or not args.eligible]}


def _show_list(report: dict[str, Any], args: argparse.Namespace) -> Iterator[str]:
    rows = report["skills"]
    yield f"Skills: {sum(row['eligible'] for row in rows)} of {len(rows)} can be used"
    for row in rows:
        short = clipped(row["description"], DESCRIPTION_CHARS)
        yield f"{'✓' if row['eligible'] else '✗'} {_titled(row):<{NAME_WIDTH}} {short}".rstrip()
        if args.verbose:
            yield f"    {row['source']}  {row['filePath']}"
        if not row["eligible"]:
            yield f"    {why_not(row)}"


def _named(report: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    rows = {row["name"]: row for row in report["skills"]}
    if args.name in rows:
        return rows[args.name]
    guess = nearest(args.name, rows)
    hint = f"Did you mean {guess}?" if guess else "`openclaw skills list` names them all."
    raise UserError(f"No skill is called {args.name!r}. {hint}")


def _show_one(row: dict[str, Any], args: argparse.Namespace) -> Iterator[str]:
    yield f"{_titled(row)}: {'can be used' if row['eligible'] else why_not(row)}"
    yield row["description"].rstrip()
    yield f"File: {row['filePath']}"
    yield f"From: {row['source']}"
    if row.get("homepage"):
        yield f"Homepage: {row['homepage']}"
    if not row.get("modelInvocable", True):
        yield "The model is not told of it (disable-model-invocation)."
    for kind, words in _LACKS:
        if needed := row["requirements"][kind]:
            yield f"Needs {words} {', '.join(needed)}"
    for step in row["install"]:
        yield f"Its author suggests to install: {step.get('label')} (not done by OpenClaw)"


def _show_check(report: dict[str, Any], args: argparse.Namespace) -> Iterator[str]:
    rows = report["skills"]
    yield f"Can be used: {', '.join(row['name'] for row in rows if row['eligible']) or 'none'}"
    yield from (f"✗ {_titled(row)}: {why_not(row)}" for row in rows if not row["eligible"])
    yield from (f"! {problem['path']}: {problem['reason']}" for problem in report.get("problems") or [])
    yield f"Folders: {report['workspaceDir']}/skills, {report['managedSkillsDir']}"


def why_not(row: dict[str, Any]) -> str:
    """Why a skill is not offered to the model, in words that tell what to do about it."""
    if row["disabled"]:
        return f"switched off in skills.entries.{row['skillKey']}.enabled"
    if row["blockedByAllowlist"]:
        return "not on the list of allowed skills (skills.allowBundled, or the agent's skills)"
    lacks = [f"{words} {', '.join(row['missing'][kind])}" for kind, words in _LACKS if row["missing"][kind]]
    return f"needs {'; '.join(lacks)}"


def _titled(row: dict[str, Any]) -> str:
    return f"{row['emoji']} {row['name']}" if row.get("emoji") else row["name"]


_AGENT = Flag("--agent ID", "for this agent (default: the default agent)", param="agentId")

_ACTIONS = {
    "list": query(
        "List the skills of an agent",
        "skills.status",
        (
            Flag("--eligible", "only skills that can be used"),
            Flag("-v --verbose", "with files and what is missing"),
            _AGENT,
        ),
        shape=_wanted,
        show=_show_list,
        example="openclaw skills list --eligible",
    ),
    "info": query(
        "Show one skill and what it needs",
        "skills.status",
        (Flag("name NAME", "name of the skill"), _AGENT),
        shape=_named,
        show=_show_one,
        example="openclaw skills info weather",
    ),
    "check": query(
        "Find skills that cannot be used, and why",
        "skills.status",
        (_AGENT,),
        show=_show_check,
        failed=lambda report, args: bool(report.get("problems")) and not args.json,
        example="openclaw skills check",
    ),
}
COMMANDS = {"skills": Group(_ACTIONS, default="list")}
