"""``openclaw skills``, ``mcp`` and ``plugins``: what agents have beyond the built-in tools, and what keeps it away."""

from __future__ import annotations

from openclaw.cli.command import GATEWAY, JSON, Action, Flag, Group, UserError, nearest, query
from openclaw.text import clipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    from openclaw.cli.answers import (
        McpServerAnswer,
        McpServersAnswer,
        PluginRow,
        PluginsAnswer,
        SkillRow,
        SkillsStatusAnswer,
    )


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
_SERVER_STATES = {
    "ready": "ready",
    "idle": "not started yet; the first run that may use it starts it",
    "starting": "starting",
    "waiting": "not there; it is tried again soon",
    "failed": "not there; it is tried again when a run needs it",
    "disabled": "switched off",
}
_PLUGIN_SIGNS = {"loaded": "✓", "failed": "✗", "off": "-"}


def _one_of(listed: str, name: str, what: str) -> Callable[[Any, argparse.Namespace], Any]:
    """Picks the row that the argument called ``name`` names out of the list that the Gateway answers."""

    def pick(payload: dict[str, list[Any]], args: argparse.Namespace) -> Any:
        wanted, rows = getattr(args, name), {row[name]: row for row in payload[listed]}
        if wanted in rows:
            return rows[wanted]
        guess = nearest(wanted, rows)
        hint = f"Did you mean {guess}?" if guess else f"`openclaw {listed} list` names them all."
        raise UserError(f"No {what} is called {wanted!r}. {hint}")

    return pick


def _show_skills(report: SkillsStatusAnswer, args: argparse.Namespace) -> Iterator[str]:
    rows = report["skills"]
    yield f"Skills: {sum(row['eligible'] for row in rows)} of {len(rows)} can be used"
    for row in rows:
        short = clipped(row["description"], DESCRIPTION_CHARS)
        yield f"{'✓' if row['eligible'] else '✗'} {_titled(row):<{NAME_WIDTH}} {short}".rstrip()
        if args.verbose:
            yield f"    {row['source']}  {row['filePath']}"
        if not row["eligible"]:
            yield f"    {_why_not(row)}"


def _show_skill(row: SkillRow, args: argparse.Namespace) -> Iterator[str]:
    yield f"{_titled(row)}: {'can be used' if row['eligible'] else _why_not(row)}"
    yield from row["description"].rstrip().splitlines()
    yield f"File: {row['filePath']}"
    yield f"From: {row['source']}"
    if homepage := row.get("homepage"):
        yield f"Homepage: {homepage}"
    if not row.get("modelInvocable", True):
        yield "The model is not told of it (disable-model-invocation)."
    for kind, words in _LACKS:
        if needed := row["requirements"][kind]:
            yield f"Needs {words} {', '.join(needed)}"
    for step in row["install"]:
        yield f"Its author suggests to install: {step.get('label')} (not done by OpenClaw)"


def _show_check(report: SkillsStatusAnswer, args: argparse.Namespace) -> Iterator[str]:
    rows = report["skills"]
    yield f"Can be used: {', '.join(row['name'] for row in rows if row['eligible']) or 'none'}"
    yield from (f"✗ {_titled(row)}: {_why_not(row)}" for row in rows if not row["eligible"])
    yield from (f"! {problem['path']}: {problem['reason']}" for problem in report.get("problems") or [])
    yield f"Folders: {report['workspaceDir']}/skills, {report['managedSkillsDir']}"


def _why_not(row: SkillRow) -> str:
    """Why a skill is not offered to the model, in words that tell what to do about it."""
    if row["disabled"]:
        return f"switched off in skills.entries.{row['skillKey']}.enabled"
    if row["blockedByAllowlist"]:
        return "not on the list of allowed skills (skills.allowBundled, or the agent's skills)"
    lacks = [f"{words} {', '.join(row['missing'][kind])}" for kind, words in _LACKS if row["missing"][kind]]
    return f"needs {'; '.join(lacks)}"


def _titled(row: SkillRow) -> str:
    return f"{emoji} {row['name']}" if (emoji := row.get("emoji")) else row["name"]


def _show_servers(report: McpServersAnswer, args: argparse.Namespace) -> Iterator[str]:
    rows = report["servers"]
    if not rows:
        yield "No MCP servers. Add one under mcp.servers in the configuration; docs/mcp.md has examples."
    for row in rows:
        yield from _show_server(row, args, brief=True)


def _show_server(row: McpServerAnswer, _args: argparse.Namespace, *, brief: bool = False) -> Iterator[str]:
    version = f" ({version})" if (version := row.get("version")) else ""
    yield f"{row['name']}{version}: {_SERVER_STATES.get(row['state'], row['state'])}"
    who = "all sessions" if row["sessions"] == "all" else "the owner's sessions"
    yield f"    {row['transport']}, {who}{', asks before each call' if row['ask'] == 'always' else ''}"
    if row["problem"]:
        yield f"    problem: {row['problem']}"
    tools = [tool["name"] for tool in row["tools"]]
    if brief and len(tools) > 8:
        tools = [*tools[:8], f"and {len(tools) - 8} more"]
    if tools:
        yield f"    tools: {', '.join(tools)}"
    for line in row.get("leftOut", []):
        yield f"    left out: {line}"


def _serve(args: argparse.Namespace) -> int:
    from openclaw.cli.client import from_args
    from openclaw.mcp.serve import serve

    return serve(from_args(args))


def _show_plugins(report: PluginsAnswer, _args: argparse.Namespace) -> Iterator[str]:
    rows = report["plugins"]
    if not rows:
        yield "No extensions are installed. docs/extensions.md says how to write or install one."
    for row in rows:
        yield _head(row)
        if row["problem"]:
            yield f"    {row['problem']}"


def _head(row: PluginRow) -> str:
    failures = f", failed {row['failures']} times" if row["failures"] else ""
    return f"{_PLUGIN_SIGNS.get(row['state'], '?')} {row['id']}: {row['state']}{failures} ({row['source']})"


def _show_plugin(row: PluginRow, _args: argparse.Namespace) -> Iterator[str]:
    yield _head(row)
    if row["problem"]:
        yield f"Problem: {row['problem']}"
    if row["lastFailure"]:
        yield f"Last failure: {row['lastFailure']}"
    if row["adds"]:
        yield "Adds:"
        yield from (f"  {one}" for one in row["adds"])


def _skills() -> ModuleType:
    """The module that adds skills. Only its commands need it."""
    from openclaw.cli import skills

    return skills


_AGENT = Flag("--agent ID", "for this agent (default: the default agent)", param="agentId")
_BUNDLED = "openclaw-bundled"
_YES = Flag("--yes", "agree without a question")
_SKILLS = {
    "list": query(
        "List the skills of an agent",
        "skills.status",
        (
            Flag("--eligible", "only skills that can be used"),
            Flag("--available", "only skills that come with OpenClaw"),
            Flag("-v --verbose", "with files and what is missing"),
            _AGENT,
        ),
        shape=lambda report, args: {
            **report,
            "skills": [
                row
                for row in report["skills"]
                if (row["eligible"] or not args.eligible) and (row["source"] == _BUNDLED or not args.available)
            ],
        },
        show=_show_skills,
        example="openclaw skills list --eligible",
    ),
    "info": query(
        "Show one skill and what it needs",
        "skills.status",
        (Flag("name NAME", "name of the skill"), _AGENT),
        shape=_one_of("skills", "name", "skill"),
        show=_show_skill,
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
    "add": Action(
        "Add a skill from a folder, a zip file or a git repository",
        lambda args: _skills().add(args),
        (
            Flag("source SOURCE", "folder, zip file, or address of a repository; #NAME behind it is a branch or tag"),
            Flag("--sha256 HASH", "only if the skill has this hash"),
            _YES,
            JSON,
        ),
        about=(
            "Shows what the skill is, its hash and the programs in it, and asks. Nothing of it is run. It is for all "
            "agents of this installation."
        ),
        example="openclaw skills add https://example.com/skills/invoices.git#v2",
    ),
    "update": Action(
        "Fetch added skills again, and show what changed",
        lambda args: _skills().update(args),
        (
            Flag("name", "which one (default: all)", nargs="?"),
            Flag("--force", "also one that was changed on this machine"),
            _YES,
            JSON,
        ),
        example="openclaw skills update invoices",
    ),
    "remove": Action(
        "Remove a skill that was added",
        lambda args: _skills().remove(args),
        (Flag("name NAME", "its name"), _YES, JSON),
        example="openclaw skills remove invoices",
    ),
}
_SERVERS = query(
    "Show the configured MCP servers, how they are and their tools",
    "mcp.status",
    show=_show_servers,
    example="openclaw mcp list",
)
_MCP = {
    "list": _SERVERS,
    "status": _SERVERS,
    "test": query(
        "Start one server and say whether it can be used",
        "mcp.test",
        (Flag("name NAME", "its name under mcp.servers", param="name"),),
        show=_show_server,
        failed=lambda row, _: row["state"] != "ready",
        timeout_ms=90_000,
        example="openclaw mcp test docs",
    ),
    "serve": Action(
        "Offer the sessions of the Gateway to other agents, over standard input and output",
        _serve,
        GATEWAY,
        example="openclaw mcp serve",
    ),
}
_PLUGINS = {
    "list": query(
        "List the extensions that are installed or named",
        "plugins.list",
        show=_show_plugins,
        example="openclaw plugins list",
    ),
    "info": query(
        "Show what one extension adds, and what failed",
        "plugins.list",
        (Flag("id ID", "its name, as the list shows it"),),
        shape=_one_of("plugins", "id", "extension"),
        show=_show_plugin,
        failed=lambda row, _: row["state"] == "failed",
        example="openclaw plugins info dice",
    ),
}
COMMANDS = {
    "skills": Group(_SKILLS, default="list"),
    "mcp": Group(_MCP, default="list"),
    "plugins": Group(_PLUGINS, default="list"),
}
