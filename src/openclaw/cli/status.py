"""``openclaw status``: one page about the Gateway, the model, the channels and the last sessions."""

from __future__ import annotations

import os
import sys
import time

from openclaw import __version__, paths
from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.client import Client
from openclaw.cli.errors import EXIT_FAILURE, UserError
from openclaw.cli.health import channel_lines
from openclaw.cli.sessions import table
from openclaw.cli.target import running_gateway
from openclaw.cli.terminal import age, paint, print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="have the Gateway probe its channels afresh")
    parser.add_argument("--usage", action="store_true", help="add what the model providers say about quotas")
    add_json(parser)
    add_gateway_options(parser)


def run(args: argparse.Namespace) -> int:
    client = clients.from_args(args)
    began = time.monotonic()
    try:
        status = client.call("status")
        latency = round((time.monotonic() - began) * 1000)
        health = client.call("health", {"probe": True} if args.deep else {})
        usage = client.call("usage.status") if args.usage else None
    except UserError as error:
        return _unreachable(client, error, as_json=args.json)
    if args.json:
        report = {**status, **_surroundings(client, status, latency, None), "agents": _agents(health)}
        report |= {"health": health} if args.deep else {}
        print_json(report | ({"usage": usage} if usage is not None else {}))
    else:
        sys.stdout.write(_page(client, status, health, latency))
        if usage is not None:
            sys.stdout.write(_usage_text(usage))
    return 0


def _unreachable(client: Client, error: UserError, *, as_json: bool) -> int:
    if not as_json:
        raise error
    print_json(_surroundings(client, {}, None, str(error).splitlines()[0]))
    return EXIT_FAILURE


def _surroundings(client: Client, status: dict[str, Any], latency: int | None, error: str | None) -> dict[str, Any]:
    system = os.uname()
    running = running_gateway() if client.target.local else None
    gateway = {
        "mode": "local" if client.target.local else "remote",
        "url": client.target.url,
        "urlSource": client.target.source,
        "misconfigured": client.target.misconfigured,
        "reachable": error is None,
        "connectLatencyMs": latency,
        "self": {"host": system.nodename, "version": status.get("runtimeVersion"), "platform": system.sysname.lower()}
        if error is None and client.target.local
        else None,
        "pid": running.get("pid") if running else None,
        "error": error,
    }
    label = f"{system.sysname.lower()} {system.release} ({system.machine})"
    return {
        "cli": {"version": __version__},
        "os": {
            "platform": system.sysname.lower(),
            "arch": system.machine,
            "release": system.release,
            "label": label,
        },
        "stateDir": paths.state_dir(),
        "configPath": client.target.config_path,
        "gateway": gateway,
        "gatewayService": _service(),
    }


def _service() -> dict[str, Any]:
    from openclaw.cli.systemd import unit_name, unit_path

    installed = os.path.exists(unit_path())
    loaded = "installed" if installed else "not installed"
    return {"label": unit_name(), "installed": installed, "loadedText": loaded}


def _agents(health: dict[str, Any]) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for agent in health.get("agents") or []:
        sessions = agent.get("sessions") or {}
        newest = (sessions.get("recent") or [{}])[0]
        rows.append(
            {
                "id": agent.get("agentId"),
                "name": agent.get("name"),
                "sessionsPath": sessions.get("path"),
                "sessionsCount": sessions.get("count", 0),
                "lastUpdatedAt": newest.get("updatedAt"),
                "lastActiveAgeMs": newest.get("age"),
            }
        )
    total = sum(row["sessionsCount"] for row in rows)
    return {"defaultId": health.get("defaultAgentId"), "agents": rows, "totalSessions": total}


def _page(client: Client, status: dict[str, Any], health: dict[str, Any], latency: int) -> str:
    sessions = status.get("sessions") or {}
    defaults = sessions.get("defaults") or {}
    agents = _agents(health)
    newest = next((row.get("age") for row in sessions.get("recent") or []), None)
    running = running_gateway() if client.target.local else None
    process = f", process {running['pid']}" if running else ""
    heartbeat = [
        f"{agent.get('agentId')} {agent.get('every') if agent.get('enabled') else 'off'}"
        for agent in (status.get("heartbeat") or {}).get("agents") or []
    ]
    facts = [
        ("Gateway", f"{client.target.url} (reachable in {latency} ms{process})"),
        ("Dashboard", f"{client.target.http_url}/"),
        ("Model", f"{defaults.get('model') or 'none'} (window {defaults.get('contextTokens') or 'unknown'} tokens)"),
        ("Agents", ", ".join(f"{agent['id']} ({agent['sessionsCount']})" for agent in agents["agents"]) or "none"),
        ("Heartbeat", ", ".join(heartbeat) or "off"),
        ("Sessions", f"{sessions.get('count', 0)}, last used {age(newest) if newest is not None else 'never'}"),
        *(("Session store", str(path)) for path in sessions.get("paths") or []),
        ("Config", client.target.config_path),
    ]
    if queued := status.get("queuedSystemEvents"):
        facts.append(("Events", f"{len(queued)} queued"))
    lines = ["OpenClaw status", "", paint("Overview", "bold")]
    lines += [f"  {name:<14}{printable(value)}" for name, value in facts]
    lines += ["", paint("Channels", "bold")]
    channels = channel_lines(health) or [printable(str(line)) for line in status.get("channelSummary") or []]
    lines += [f"  {line}" for line in channels or ["none configured"]]
    lines += ["", paint("Sessions", "bold")]
    lines += [f"  {line}" for line in table((sessions.get("recent") or [])[:10]).splitlines()]
    lines += [
        "",
        "Next: `openclaw chat` to talk, `openclaw logs -f` to watch, `openclaw dashboard` for the Control UI.",
    ]
    return "\n".join(lines) + "\n"


def _usage_text(usage: dict[str, Any]) -> str:
    lines = ["", paint("Usage", "bold")]
    for provider in usage.get("providers") or []:
        windows = [f"{w.get('label')} {w.get('usedPercent')}% used" for w in provider.get("windows") or []]
        shown = provider.get("error") or ", ".join(windows) or "no data"
        lines.append(f"  {provider.get('displayName')}: {printable(str(shown))}")
    if len(lines) == 2:
        lines.append("  no provider reports quotas")
    return "\n".join(lines) + "\n"


ACTION = Action("Show the Gateway, its model, channels and sessions", run, build, example="openclaw status --json")
