"""``openclaw mcp``: the MCP servers whose tools the agents use, and this Gateway as a server for other agents."""

from __future__ import annotations

from openclaw.cli.command import GATEWAY, Action, Flag, Group, query

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

_STATES = {
    "ready": "ready",
    "idle": "not started yet; the first run that may use it starts it",
    "starting": "starting",
    "waiting": "not there; it is tried again soon",
    "failed": "not there; it is tried again when a run needs it",
    "disabled": "switched off",
}


def _show_list(report: dict[str, Any], args: argparse.Namespace) -> Iterator[str]:
    rows = report["servers"]
    if not rows:
        yield "No MCP servers. Add one under mcp.servers in the configuration; docs/mcp.md has examples."
    for row in rows:
        yield from _show_one(row, args, brief=True)


def _show_one(row: dict[str, Any], _args: argparse.Namespace, *, brief: bool = False) -> Iterator[str]:
    version = f" ({row['version']})" if row.get("version") else ""
    yield f"{row['name']}{version}: {_STATES.get(row['state'], row['state'])}"
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


_STATUS = query(
    "Show the configured MCP servers, how they are and their tools",
    "mcp.status",
    show=_show_list,
    example="openclaw mcp list",
)
COMMANDS: dict[str, Group] = {
    "mcp": Group(
        {
            "list": _STATUS,
            "status": _STATUS,
            "test": query(
                "Start one server and say whether it can be used",
                "mcp.test",
                (Flag("name NAME", "its name under mcp.servers", param="name"),),
                show=_show_one,
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
        },
        default="list",
    )
}
