"""``openclaw status``, ``health`` and ``dashboard``: how the Gateway is, and where web clients reach it."""

from __future__ import annotations

import os
import sys
import time

from openclaw import __version__, paths
from openclaw.cli.client import GatewayClient, from_args
from openclaw.cli.command import CLIENT, EXIT_FAILURE, JSON, Action, Flag, UserError, failure, query
from openclaw.cli.gateway_target import gateway_section, resolve, running_gateway, start_command
from openclaw.cli.service import ensure_running, unit_name, unit_path
from openclaw.cli.terminal import fitted, note, paint, print_json
from openclaw.text import age

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from openclaw.cli.answers import (
        AgentSessions,
        AgentsSummary,
        DashboardReport,
        HealthAnswer,
        StatusAnswer,
        UsageStatusAnswer,
    )


def health_query(example: str) -> Action:
    """``openclaw health``, which is ``openclaw gateway health`` too."""
    return query(
        "Ask the Gateway whether it is well",
        "health",
        (Flag("--probe", "check everything afresh instead of using the last result", param="probe"),),
        show=_show_health,
        failed=lambda health, args: not health.get("ok"),
        live=True,
        example=example,
    )


def _show_health(health: HealthAnswer, args: argparse.Namespace) -> Iterator[str]:
    agents = [str(agent.get("agentId")) for agent in health.get("agents") or []]
    sessions = health.get("sessions") or {}
    yield f"Gateway: {'ok' if health.get('ok') else 'not ok'}"
    if problem := health.get("problem"):
        yield f"Problem: {problem}"
    if waits := health.get("waitsForStorage"):
        yield f"Messages wait for their storage: {'; '.join(waits)}"
    yield from _channel_lines(health)
    yield f"Agents: {', '.join(agents) or 'none'} (default {health.get('defaultAgentId', 'main')})"
    yield f"Session store: {sessions.get('path')} ({sessions.get('count', 0)} sessions)"
    yield from (f"- {row.get('key')} ({age(row.get('age'))})" for row in sessions.get("recent") or [])


def _channel_lines(health: HealthAnswer) -> list[str]:
    channels, labels = health.get("channels") or {}, health.get("channelLabels") or {}
    lines: list[str] = []
    for name in health.get("channelOrder") or list(channels):
        channel = channels.get(name) or {}
        state = "not configured"
        if channel.get("configured"):
            state = "connected" if channel.get("connected") else "not connected"
        if error := channel.get("lastError"):
            state += f" ({error})"
        lines.append(f"{labels.get(name, name)}: {state}")
    return lines


def dashboard(args: argparse.Namespace) -> int:
    """Opens the page in a browser, signed in by a ticket that is good once. The secret itself is in no address."""
    client = GatewayClient(resolve())
    target, page = client.target, gateway_section(paths.config_path()).get("controlUi") or {}
    if page.get("enabled") is False:
        raise UserError(
            "The Gateway serves no page: gateway.controlUi.enabled is false.\n"
            "Switch it on: openclaw config set gateway.controlUi.enabled true"
        )
    running = not target.local or client.alive()
    if not running and not args.no_open and not args.json:
        ensure_running(client)
        running = True
    base = str(page.get("basePath") or "").strip("/")
    clean = f"{target.http_url}/{base}/" if base else f"{target.http_url}/"
    report: DashboardReport = {"url": clean, "wsUrl": target.url, "running": running}
    if target.secret and running:
        ticket = client.call("signIn.create", {"secret": target.secret})
        report["signInUrl"], report["expiresInMs"] = f"{clean}#ticket={ticket['ticket']}", ticket["expiresInMs"]
    address = str(report.get("signInUrl") or clean)
    opened = not args.no_open and not args.json and _opens(address)
    if args.json:
        print_json(report)
        return 0
    if not running:
        sys.stdout.write(f"No Gateway is running. Start it with `{start_command()}`; its page is at {clean}\n")
        return 0
    lines = [f"Opened in your browser: {clean}"] if opened else ["Open this address; it signs you in once:", address]
    if not opened and (lifetime := report.get("expiresInMs")):
        lines.append(f"It is good for {lifetime // 60_000} minutes. Later: openclaw dashboard")
    sys.stdout.write("\n".join(lines) + "\n")
    if page.get("root"):
        note("gateway.controlUi.root has a page of your own; if it knows no tickets, enter the token there.")
    if os.environ.get("SSH_CONNECTION") and target.local:
        note(
            f"From your own machine: ssh -N -L {target.port}:127.0.0.1:{target.port} USER@HOST, then open the address."
        )
    return 0


def _opens(address: str) -> bool:
    """Opens a browser where there is one that the person can see."""
    seen = os.environ.get("BROWSER") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if os.environ.get("SSH_CONNECTION") or not (seen or sys.platform == "darwin"):
        return False
    import webbrowser

    return webbrowser.open(address)


def status(args: argparse.Namespace) -> int:
    client = from_args(args)
    began = time.monotonic()
    try:
        status = client.call("status")
        latency = None if client.from_folder else round((time.monotonic() - began) * 1000)
        health = client.call("health", {"probe": True} if args.deep else {})
        usage = client.call("usage.status") if args.usage and not client.from_folder else None
    except UserError as error:
        if not args.json:
            raise
        print_json({**_surroundings(client, {}, None, str(error).splitlines()[0]), **failure(error)})
        return EXIT_FAILURE
    if args.json:
        missing = f"No Gateway is running at {client.target.url}." if client.from_folder else None
        report = {**status, **_surroundings(client, status, latency, missing), "agents": _agents(health)}
        report |= {"health": health} if args.deep else {}
        print_json(report | ({"usage": usage} if usage is not None else {}))
    else:
        sys.stdout.write(_page(client, status, health, latency))
        if usage is not None:
            sys.stdout.write(_usage_text(usage))
    return 0


def _surroundings(
    client: GatewayClient, status: StatusAnswer, latency: int | None, error: str | None
) -> dict[str, object]:
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
    installed = os.path.exists(unit_path())
    label = f"{system.sysname.lower()} {system.release} ({system.machine})"
    return {
        "cli": {"version": __version__},
        "os": {"platform": system.sysname.lower(), "arch": system.machine, "release": system.release, "label": label},
        "stateDir": paths.state_dir(),
        "configPath": client.target.config_path,
        "gateway": gateway,
        "gatewayService": {
            "label": unit_name(),
            "installed": installed,
            "loadedText": "installed" if installed else "not installed",
        },
    }


def _agents(health: HealthAnswer) -> AgentsSummary:
    rows: list[AgentSessions] = []
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


def _page(client: GatewayClient, status: StatusAnswer, health: HealthAnswer, latency: int | None) -> str:
    from openclaw.cli.sessions import table

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
    reachable = f"reachable in {latency} ms{process}" if latency is not None else "not running"
    facts = [
        ("Gateway", f"{client.target.url} ({reachable})"),
        ("Model", f"{defaults.get('model') or 'none'} (window {defaults.get('contextTokens') or 'unknown'} tokens)"),
        ("Agents", ", ".join(f"{agent['id']} ({agent['sessionsCount']})" for agent in agents["agents"]) or "none"),
        ("Heartbeat", ", ".join(heartbeat) or "off"),
        ("Sessions", f"{sessions.get('count', 0)}, last used {age(newest) if newest is not None else 'never'}"),
        *(("Session store", str(path)) for path in sessions.get("paths") or []),
        ("Config", client.target.config_path),
    ]
    if queued := status.get("queuedSystemEvents"):
        facts.append(("Events", f"{len(queued)} for the next turn of their agents"))
    lines = ["OpenClaw status", "", paint("Overview", "bold")]
    lines += [f"  {name:<14}{value}" for name, value in facts]
    lines += ["", paint("Channels", "bold")]
    channels = _channel_lines(health) or [str(line) for line in status.get("channelSummary") or []]
    lines += [f"  {line}" for line in channels or ["none configured"]]
    lines += ["", paint("Sessions", "bold")]
    recent = (sessions.get("recent") or [])[:10]
    lines += [f"  {line}" for line in table(recent).splitlines()] if recent else ["  none yet"]
    start = "" if latency is not None else f"`{start_command()}` to start it, "
    tips = f"Next: {start}`openclaw chat` to talk, `openclaw logs -f` to watch, `openclaw doctor` to check the files."
    lines += ["", *fitted(tips, 80).split("\n")]
    # An error of a platform may hold line breaks. They make no line that looks like one of ours.
    return "".join(" ".join(line.splitlines()) + "\n" for line in lines)


def _usage_text(usage: UsageStatusAnswer) -> str:
    lines = ["", paint("Usage", "bold")]
    for provider in usage.get("providers") or []:
        windows = [f"{w.get('label')} {w.get('usedPercent')}% used" for w in provider.get("windows") or []]
        shown = provider.get("error") or ", ".join(windows) or "no data"
        lines.append(f"  {provider.get('displayName')}: {shown!s}")
    if len(lines) == 2:
        lines.append("  no provider reports quotas")
    return "\n".join(lines) + "\n"


COMMANDS = {
    "status": Action(
        "Show the Gateway, its model, channels and sessions",
        status,
        (
            Flag("--deep", "have the Gateway probe its channels afresh"),
            Flag("--usage", "add what the model providers say about quotas"),
            *CLIENT,
        ),
        example="openclaw status --json",
    ),
    "health": health_query("openclaw health --json"),
    "dashboard": Action(
        "Open the web page in your browser, signed in",
        dashboard,
        (Flag("--no-open", "only print the address; it signs in once"), JSON),
        about=(
            "The address signs in once and within two minutes; the Gateway's token is in no address. A Gateway is "
            "started if none runs. Without a screen the address is printed."
        ),
        example="openclaw dashboard --no-open",
    ),
}
