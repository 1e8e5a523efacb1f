"""``openclaw skills``: what the agent knows how to do, and what a skill lacks that is not offered."""

from __future__ import annotations

import sys

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json, nearest
from openclaw.cli.errors import UserError
from openclaw.cli.terminal import print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

_LACKS = (
    ("bins", "programs"),
    ("anyBins", "one of the programs"),
    ("env", "variables"),
    ("config", "settings"),
    ("os", "another system:"),
)
NAME_WIDTH = 24
DESCRIPTION_CHARS = 90


def _build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="ID", help="for this agent (default: the default agent)")
    add_json(parser)
    add_gateway_options(parser)


def _build_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--eligible", action="store_true", help="only skills that can be used")
    parser.add_argument("-v", "--verbose", action="store_true", help="with files and what is missing")
    _build(parser)


def list_skills(args: argparse.Namespace) -> int:
    report = _report(args)
    rows = [row for row in report["skills"] if row["eligible"] or not args.eligible]
    if args.json:
        print_json({**report, "skills": rows})
        return 0
    ready = sum(row["eligible"] for row in rows)
    _say(f"Skills: {ready} of {len(rows)} can be used")
    for row in rows:
        mark = "✓" if row["eligible"] else "✗"
        _say(f"{mark} {_titled(row):<{NAME_WIDTH}} {_short(row['description'])}")
        if args.verbose:
            _say(f"    {row['source']}  {row['filePath']}")
        if not row["eligible"]:
            _say(f"    {why_not(row)}")
    return 0


def _build_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the skill")
    _build(parser)


def info(args: argparse.Namespace) -> int:
    rows = {row["name"]: row for row in _report(args)["skills"]}
    row = rows.get(args.name)
    if row is None:
        guess = nearest(args.name, rows)
        hint = f"Did you mean {guess}?" if guess else "`openclaw skills list` names them all."
        raise UserError(f"No skill is called {args.name!r}. {hint}")
    if args.json:
        print_json(row)
        return 0
    _say(f"{_titled(row)}: {'can be used' if row['eligible'] else why_not(row)}")
    _say(row["description"])
    _say(f"File: {row['filePath']}")
    _say(f"From: {row['source']}")
    if row.get("homepage"):
        _say(f"Homepage: {row['homepage']}")
    if not row.get("modelInvocable", True):
        _say("The model is not told of it (disable-model-invocation).")
    for kind, words in _LACKS:
        if needed := row["requirements"][kind]:
            _say(f"Needs {words} {', '.join(needed)}")
    for step in row["install"]:
        _say(f"Its author suggests to install: {step.get('label')} (not done by OpenClaw)")
    return 0


def check(args: argparse.Namespace) -> int:
    report = _report(args)
    if args.json:
        print_json(report)
        return 0
    rows, problems = report["skills"], report.get("problems") or []
    _say(f"Can be used: {', '.join(row['name'] for row in rows if row['eligible']) or 'none'}")
    for row in rows:
        if not row["eligible"]:
            _say(f"✗ {_titled(row)}: {why_not(row)}")
    for problem in problems:
        _say(f"! {problem['path']}: {problem['reason']}")
    _say(f"Folders: {report['workspaceDir']}/skills, {report['managedSkillsDir']}")
    return 1 if problems else 0


def why_not(row: dict[str, Any]) -> str:
    """Why a skill is not offered, and so what to do about it."""
    if row["disabled"]:
        return f"switched off in skills.entries.{row['skillKey']}.enabled"
    if row["blockedByAllowlist"]:
        return "not on the list of allowed skills (skills.allowBundled, or the agent's skills)"
    lacks = [f"{words} {', '.join(row['missing'][kind])}" for kind, words in _LACKS if row["missing"][kind]]
    return f"needs {'; '.join(lacks)}"


def _report(args: argparse.Namespace) -> dict[str, Any]:
    return clients.from_args(args).call("skills.status", {"agentId": args.agent} if args.agent else {})


def _titled(row: dict[str, Any]) -> str:
    return f"{row['emoji']} {row['name']}" if row.get("emoji") else row["name"]


def _short(text: str) -> str:
    return text if len(text) <= DESCRIPTION_CHARS else f"{text[: DESCRIPTION_CHARS - 1]}…"


def _say(line: str) -> None:
    sys.stdout.write(printable(line).rstrip() + "\n")


ACTIONS = {
    "list": Action("List the skills of an agent", list_skills, _build_list, example="openclaw skills list --eligible"),
    "info": Action("Show one skill and what it needs", info, _build_info, example="openclaw skills info weather"),
    "check": Action("Find skills that cannot be used, and why", check, _build, example="openclaw skills check"),
}
DEFAULT = "list"
